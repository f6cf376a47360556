"""Columns of datasets: name, kind and meaning of each, and those that identify a candidate."""

from __future__ import annotations

from dataclasses import dataclass

from .trial import Status

VERSION = 1  # of the schema: raise it when a column changes its meaning or goes away


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `kind` is text, number or numbers; a `required` one has a value in every row."""

    name: str
    kind: str
    meaning: str
    required: bool = False


COLUMNS = (
    Column("operator", "text", "operator, e.g. matmul", required=True),
    Column("workload", "text", "canonical key of operator, dimensions, attributes and dtype", required=True),
    Column("shape", "text", "published name (M0), else the dimensions as m=..,n=..", required=True),
    Column("dims", "text", "dimensions, a JSON object", required=True),
    Column("dtype", "text", "element type of inputs and output", required=True),
    Column("attrs", "text", "attributes (causal), a JSON object", required=True),
    Column("template", "text", "kernel template", required=True),
    Column("template_version", "text", "hash of the template's code", required=True),
    Column("target", "text", "target's name, e.g. h200", required=True),
    Column("config", "text", "the candidate's config, canonical JSON", required=True),
    Column("flops", "number", "floating-point operations that any implementation must do", required=True),
    Column("min_bytes", "number", "bytes that must cross device memory at least", required=True),
    Column("status", "text", "last stage that it passed: " + ", ".join(Status), required=True),
    Column("failure_kind", "text", "stage and kind of the failure"),
    Column("failure", "text", "message of the failure"),
    Column("fingerprint", "text", "hash of the generated device code; missing if lowering failed"),
    Column("profile", "text", "work of its kernels: JSON, read it with profiles_of"),
    Column(
        "binary",
        "text",
        "hash of the machine code and of its launch: rows of one workload that share it are one kernel",
    ),
    Column("registers", "number", "registers of a thread, reported by the compiler"),
    Column("spill_bytes", "number", "bytes of a thread that the compiler spilled"),
    Column(
        "smem_bytes",
        "number",
        "shared memory of a block in bytes, static and dynamic, reported by the compiler",
    ),
    Column("measured_us", "number", "median time in microseconds; missing if the result was wrong"),
    Column("samples_us", "numbers", "samples of that median, in the order taken (single precision)"),
    Column("relative_error", "number", "||out - ref|| / ||ref||"),
    Column(
        "observed",
        "text",
        "state of the device while it was measured (clock, power, temperature, samples retaken) and the seed "
        "of "
        "inputs, a JSON object of numbers",
    ),
    Column(
        "vendor_us",
        "number",
        "time of the fastest vendor implementation of the workload, in the run that finished the case",
    ),
    Column("vendor", "text", "name of that implementation"),
    Column("counters", "text", "hardware counters, a JSON object of numbers"),
    Column(
        "run",
        "text",
        "id of the run in the metadata: environment, protocol, date, program, seed",
        required=True,
    ),
)
# columns that identify a candidate; another version of a template is another program
CANDIDATE = ("workload", "target", "template", "template_version", "config")
