"""The first choice of each tool for each shape, without a GPU and without measuring anything.

    python experiments/first_choice/choose.py --target h200 --out experiments/first_choice/choices-h200.json
        [--tools tilesight nvMatmulHeuristics roller Helion] [--database FILE]

`--tools` replaces the choices of these tools in OUT and keeps the others. A tool that is not installed, or
has no answer for a shape, leaves its reason in `failure`.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nearest import nearest
from shapes import DTYPE, workloads

from tilesight.kernels import template_for
from tilesight.problem.workload import Workload
from tilesight.target.spec import Target, load_target


@dataclass
class Choice:
    """What a tool chose for a shape.

    Attributes:
        config: of the project's template; empty for Helion's kernels, and if there is none.
        own: the tool's own words.
        changed: values of `own` that the template cannot have, as "wanted -> taken".
        dropped: values of `own` that have no counterpart in the template.
        predicted_us: the tool's estimate; None if it makes none.
        failure: why there is no choice.
    """

    operator: str
    shape: str
    tool: str
    form: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, Any] = field(default_factory=dict)
    predicted_us: float | None = None
    sigma: float | None = None
    model: str = ""
    failure: str = ""


Answer = dict[str, Any]  # fields of a Choice
Chooser = Callable[[str, Workload, Target], Answer]


def tilesight_first(database: str) -> Chooser:
    """The best prediction of `tilesight rank` at effort `predict`."""
    from tilesight.api.tuning import rank

    def choose(operator: str, workload: Workload, target: Target) -> Answer:
        shape = {**workload.dims, **workload.attrs}
        best = rank(operator, target, shape, dtype=DTYPE, database=database)[0].trials[0]
        prediction = best.prediction
        assert prediction is not None
        return {
            "config": dict(best.config),
            "predicted_us": prediction.latency_us,
            "sigma": prediction.uncertainty,
            "model": prediction.model,
        }

    return choose


def nvmatmulheuristics_first(target_name: str) -> Chooser:
    """The first config of nvMatmulHeuristics for CUTLASS 3, with its performance model, and its estimate."""
    import nvMatmulHeuristics as nv  # noqa: N813

    interface = nv.NvMatmulHeuristicsInterfaceEx(
        backend=nv.NvMatmulHeuristicsTarget.CUTLASS3,
        flags=nv.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=nv.NvMatmulHeuristicsNvidiaGpu[f"{target_name.upper()}_SXM"],
    )

    def choose(operator: str, workload: Workload, target: Target) -> Answer:
        if operator != "matmul":
            raise NotImplementedError("it chooses for matrix products only")
        sizes = [int(workload.dims[d]) for d in ("m", "n", "k")]
        layout = nv.NvMatmulHeuristicsMatmulLayout.NN_ROW_MAJOR
        problem = interface.makeNvMatmulHeuristicsProblem(*sizes, layout)
        first = interface.get(problem, 1, precision="TST")[0]
        kernel = first["kernel"]
        names = ("cta_tile_m", "cta_tile_n", "cta_tile_k", "warp_tile_m", "warp_tile_n", "warp_tile_k")
        rest = ("stages", "split_k", "cluster_m", "cluster_n", "cta_order", "swizzle_factor")
        own = {name: int(getattr(kernel, name)) for name in (*names, *rest)}
        warps = own["cta_tile_m"] // own["warp_tile_m"] * (own["cta_tile_n"] // own["warp_tile_n"])
        wanted = {
            "block_m": own["cta_tile_m"],
            "block_n": own["cta_tile_n"],
            "block_k": own["cta_tile_k"],
            "num_stages": own["stages"],
            "threads": 32 * warps,
        }
        panel = _panel(own["swizzle_factor"] if own["swizzle_factor"] > 1 else 0)
        config, changed = nearest(
            template_for(operator, target, DTYPE), workload, target, wanted, _matmul_rest(panel)
        )
        neutral = {"split_k": 1, "cluster_m": 1, "cluster_n": 1, "cta_order": 0}
        return {
            "config": dict(config),
            "own": own,
            "changed": changed,
            "dropped": {name: own[name] for name, value in neutral.items() if own[name] != value},
            "predicted_us": first["runtime"] * 1e6,
        }

    return choose


def roller_first(target_name: str) -> Chooser:
    """The first hint of TileLang's carver (the roller policy) from its template of the operator."""
    from stand_in import pretend

    pretend(target_name)
    from tilelang.carver.template import FlashAttentionTemplate, GeneralReductionTemplate, MatmulTemplate

    numeric = {"in_dtype": DTYPE, "out_dtype": DTYPE, "accum_dtype": "float32"}

    def matmul(dims: dict[str, int]) -> Any:
        m, n, k = (dims[d] for d in ("m", "n", "k"))
        return MatmulTemplate(M=m, N=n, K=k, trans_A=False, trans_B=False, **numeric)

    def attention(dims: dict[str, int]) -> Any:
        return FlashAttentionTemplate(
            batch_size=dims["batch"],
            num_heads=dims["heads"],
            head_dim=dims["head_dim"],
            seq_length=dims["seq_len"],
            seq_kv_length=dims["seq_len"],
            **numeric,
        )

    def reduction(dims: dict[str, int]) -> Any:
        return GeneralReductionTemplate(structure="SR", shape=[dims["m"], dims["n"]], dtype=DTYPE)

    makers = {"matmul": matmul, "flash_attention": attention, "rms_norm": reduction}

    def choose(operator: str, workload: Workload, target: Target) -> Answer:
        dims = {name: int(value) for name, value in workload.dims.items()}
        hints = makers[operator](dims).recommend_hints(10)
        if not hints:
            raise LookupError("it returns no hint for this shape")
        hint = hints[0]
        template = template_for(operator, target, DTYPE)
        if operator == "flash_attention":
            scores, result = hint.values() if isinstance(hint, dict) else (hint, hint)
            own = {"scores": scores.to_dict(), "result": result.to_dict()}
            wanted = {
                "block_m": int(scores.block[-2]),
                "block_n": int(scores.block[-1]),
                "num_stages": int(scores.pipeline_stage),
                "threads": _threads(scores),
            }
            config, changed = nearest(template, workload, target, wanted, {"block_order": ("by_head",)})
        elif operator == "matmul":
            own = {**hint.to_dict(), "rasterization": repr(hint.rasterization_plan)}
            wanted = {
                "block_m": int(hint.block[-2]),
                "block_n": int(hint.block[-1]),
                "block_k": int(hint.rstep[0]),
                "num_stages": int(hint.pipeline_stage),
                "threads": _threads(hint),
            }
            panel = _panel(hint.rasterization_plan.panel_width_ or 0)
            config, changed = nearest(template, workload, target, wanted, _matmul_rest(panel))
        else:
            own = hint.to_dict()
            lanes = math.prod(hint.reduce_thread or [1])
            wanted = {
                "block_m": int(hint.block[0]),
                "threads": lanes * math.prod(hint.thread),
                "reduce_threads": lanes,
                "vector": int(hint.vectorize.get("A", 1)),
            }
            # a step that covers the row keeps it; a smaller one goes over the row twice
            keep = ("registers", "shared", "global") if hint.rstep[0] >= dims["n"] else ("global",)
            config, changed = nearest(template, workload, target, wanted, {"keep": keep, "unroll": (1,)})
        return {"config": dict(config), "own": json.loads(json.dumps(own, default=str)), "changed": changed}

    return choose


def helion_first(target_name: str, form: str) -> Chooser:
    """The config that Helion takes without autotuning: its heuristics' for the chip, or the default one."""
    from stand_in import pretend

    pretend(target_name)
    import torch
    from helion_kernels import bind, shapes_for
    from torch._subclasses.fake_tensor import FakeTensorMode

    def choose(operator: str, workload: Workload, _: Target) -> Answer:
        causal = bool(workload.attrs.get("causal", False))
        if form and not causal:
            raise LookupError("this form is for causal attention")
        with FakeTensorMode(allow_non_fake_inputs=True):
            shapes = shapes_for(operator, workload.dims)
            dtype = getattr(torch, DTYPE)
            arguments = tuple(torch.empty(shape, dtype=dtype, device="cuda:0") for shape in shapes)
        bound, config = bind(operator, causal, form, arguments)
        heuristics = list(bound.config_spec.autotuner_heuristics)
        promoted = bound.config_spec.compiler_default_config is not None
        return {"own": {**dict(config), "heuristics": heuristics, "promoted": promoted}}

    return choose


def _matmul_rest(panel: int) -> dict[str, Any]:
    return {"policy": ("square", "full_row", "full_col"), "epilogue": ("shared",), "swizzle": (panel, 0)}


def _panel(width: int) -> int:
    """The template's panel of blocks that is nearest to a width; 0 for none."""
    return min((4, 8, 16), key=lambda one: abs(math.log2(one / width))) if width else 0


def _threads(hint: Any) -> int:
    """A warp for each part of the tile."""
    return 32 * math.prod(max(1, -(-int(b) // int(w))) for b, w in zip(hint.block, hint.warp, strict=True))


def measured_before() -> set[str]:
    """Keys of the workloads whose kernels are in the project's datasets: the learned model has seen these."""
    from tilesight.records.dataset import read_dataset

    folder = Path(__file__).resolve().parents[1] / "datasets"
    return set(read_dataset([part for part in folder.iterdir() if part.is_dir()]).frame["workload"])


def main(given: argparse.Namespace) -> None:
    target = load_target(given.target)
    known = json.loads(given.out.read_text())["choices"] if given.out.exists() else []
    choices = [one for one in known if one["tool"] not in given.tools]
    with tempfile.TemporaryDirectory() as folder:
        makers: dict[tuple[str, str], Callable[[], Chooser]] = {
            ("tilesight", ""): lambda: tilesight_first(given.database or f"{folder}/empty.db"),
            ("nvMatmulHeuristics", ""): lambda: nvmatmulheuristics_first(given.target),
            ("roller", ""): lambda: roller_first(given.target),
            ("Helion", ""): lambda: helion_first(given.target, ""),
            ("Helion", "all keys"): lambda: helion_first(given.target, "all keys"),
        }
        for (tool, form), maker in makers.items():
            if tool not in given.tools:
                continue
            chooser = maker()
            for operator, shape, workload in workloads():
                found = Choice(operator, shape, tool, form)
                try:
                    found = Choice(operator, shape, tool, form, **chooser(operator, workload, target))
                except NotImplementedError:
                    continue
                except Exception as error:  # a tool may raise anything
                    if form and isinstance(error, LookupError):
                        continue
                    found.failure = f"{type(error).__name__}: {error}"[:300]
                choices.append(asdict(found))
                print(tool, form, shape, found.config or found.own, found.changed, found.failure, flush=True)
    found_in = measured_before()
    content = {
        "target": given.target,
        "in_datasets": [shape for _, shape, workload in workloads() if workload.key in found_in],
        "choices": choices,
    }
    text = json.dumps(content, indent=1)
    given.out.write_text(text + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The first choice of each tool, without a GPU.")
    tools = ("tilesight", "nvMatmulHeuristics", "roller", "Helion")
    parser.add_argument("--target", default="h200", choices=["h200", "h100"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tools", nargs="+", default=tools, choices=tools)
    parser.add_argument("--database", help="of earlier predictions; by default an empty one")
    main(parser.parse_args())
