"""Work of device functions that a kernel imports as CUDA C++ text, against counts made by hand."""

from __future__ import annotations

import pytest

from tests.unit.costmodel import kernels_with_calls as kernels
from tests.unit.costmodel.extract.reading import accesses, read, total
from tilesight.api.run_time_facts import RunTimeFacts
from tilesight.costmodel.extract.imported_source import FunctionWork, PointerUse, work_of_call
from tilesight.errors import InputError


def work(body: str, *constants: float | None, parameters: str = "float *x, float *y, int n") -> FunctionWork:
    found = work_of_call(f"__device__ void f({parameters}) {{ {body} }}", "f", constants)
    assert found is not None
    return found


def test_a_text_that_does_not_define_the_function() -> None:
    assert work_of_call("__device__ int g(int a) { return a; }", "f", ()) is None
    assert work_of_call("this is ( no C++", "f", ()) is None


@pytest.mark.parametrize(
    ("loop", "trips"),
    [
        ("for (int i = 0; i < n; ++i)", 12),
        ("for (int i = 0; i < n / 2; i++)", 6),
        ("for (int i = 0; i <= n; i += 4)", 4),
        ("for (int i = n; i > 0; i -= 3)", 4),
        ("for (int i = n; i >= 0; --i)", 13),
        ("for (int i = n; i > 0; i >>= 1)", 4),
        ("for (int i = 1; i < n; i *= 2)", 4),
        ("for (int i = 5; i < 5; ++i)", 0),
        ("#pragma unroll\nfor (int i = 0; i < (1 << 3); ++i)", 8),
    ],
)
def test_loops_with_constant_bounds_are_counted_in_full(loop: str, trips: int) -> None:
    found = work(f"float s = 0.f;\n{loop} {{ s += x[0]; }}", None, None, 12.0)
    assert found.counts.get("vector_ops", 0) == trips
    assert found.uses == ((PointerUse(0, False, trips, 0.0),) if trips else ())
    assert not found.assumed
    assert not found.unread


def test_loops_that_depend_on_data_are_assumed() -> None:
    found = work("for (int i = 0; i < n; ++i) y[i] = x[i] * 2.f;", None, None, None)
    assert found.counts["vector_ops"] == 8
    assert found.assumed == ("a loop over i was taken for 8 iterations",)
    assert work("while (*x > 1.f) *x *= 0.5f;", None, None, None).assumed == (
        "a while loop was taken for 8 iterations",
    )


def test_constant_branches_are_taken_and_others_counted_by_their_longer_side() -> None:
    known = work("if (n > 4) { y[0] = x[0] + 1.f; } else { y[0] = expf(x[0]); }", None, None, 8.0)
    assert dict(known.counts) == {"vector_ops": 1.0}
    unknown = work("if (n > 4) { y[0] = x[0] + 1.f; } else { y[0] = expf(x[0]); }", None, None, None)
    assert unknown.counts["special_ops"] == 1.0
    assert unknown.counts["integer_ops"] == 1.0


def test_calls_casts_defaults_and_templates() -> None:
    source = """
    template <typename T, bool S = false>
    __device__ __forceinline__ float twice(const T *p, const int n = 3) {
        float s = 0.f;
        for (int i = 0; i < n; ++i) { s = fmaf(s, 2.f, (float)p[i]); }
        return s;
    }
    extern "C" __device__ void f(void *a, float *b) {
        uint4 const *wide = reinterpret_cast<uint4 const *>(a);
        b[0] = twice<uint4>(wide) / 3.f;
    }
    """
    found = work_of_call(source, "f", (None, None))
    assert found is not None
    assert found.counts["vector_ops"] == 3 + 8  # three multiply-adds and a division
    assert found.counts["special_ops"] == 1
    assert {(use.argument, use.write, use.times) for use in found.uses} == {(0, False, 3.0), (1, True, 1.0)}


def test_ptx_is_counted_by_its_instructions() -> None:
    body = r"""
    unsigned r;
    asm volatile("{ .reg .b32 t;\n"
                 "lop3.b32 t, %1, %2, %3, 0x6a;\n\t" "@p add.f16x2 %0, t, t; mov.b32 t, 0; }"
                 : "=r"(r) : "r"(n >> 4), "r"(n), "n"(7));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y[0]) : "f"(x[0]));
    """
    found = work(body, None, None, None)
    assert dict(found.counts) == {"integer_ops": 1.5, "vector_ops": 1.0, "special_ops": 1.0}
    assert {(use.argument, use.write) for use in found.uses} == {(0, False), (1, True)}
    assert work('asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 a, b, c, d;");').unread == ("mma",)


def test_loads_and_stores_in_ptx_go_through_the_pointers_whose_addresses_they_take() -> None:
    body = r"""
    float4 v;
    asm volatile("{ .reg .b32 at;\n\tmapa.shared::cluster.u32 at, %4, %5;\n\t"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at]; }"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"((unsigned int)__cvta_generic_to_shared(x)), "r"(n));
    asm volatile("st.shared.b16 [%0], %1;" : : "r"((unsigned int)__cvta_generic_to_shared(&y[4])), "f"(x[0]));
    """
    found = work(body, None, None, None)
    assert found.uses == (
        PointerUse(0, False, 1.0, 0.0),  # x[0]
        PointerUse(0, False, 1.0, 16.0, cluster=True),
        PointerUse(1, True, 1.0, 2.0),
    )
    assert dict(found.counts) == {"integer_ops": 1.0}
    assert not found.unread
    # an address that is none of the arguments
    assert work('asm("ld.global.f32 %0, [%1];" : "=f"(y[0]) : "l"(table));').unread == ("ld",)


def test_what_the_text_does_not_define_is_reported() -> None:
    assert work("y[0] = from_elsewhere(x[0]);", None, None, None).unread == ("from_elsewhere",)


def test_a_recursion_ends() -> None:
    found = work_of_call("__device__ int f(int a) { return a + f(a - 1); }", "f", (None,))
    assert found is not None
    assert 1 <= found.counts["integer_ops"] <= 40


def test_a_kernel_is_charged_for_the_function_that_it_imports() -> None:
    n = 4096
    p = read(kernels.imported(n))
    assert not p.unknown_calls
    # per element: one multiplication of the kernel's, and four rounds of one multiply-add
    assert p.blocks * total(p, "vector_ops") == pytest.approx(n * 5, rel=0.01)
    loads = [a for a in accesses(p) if a.tensor == "t0"]
    assert sum(a.bytes for a in loads) * p.blocks == n * 4


@pytest.mark.parametrize(
    ("name", "special", "arithmetic"),
    [("fabsf", 0, 1), ("fminf", 0, 1), ("nearbyintf", 0, 1), ("__fdiv_rn", 1, 8), ("__frcp_rz", 1, 6)],
)
def test_functions_of_c_and_cuda_are_known(name: str, special: float, arithmetic: float) -> None:
    p = read(kernels.external(4096, name))
    assert not p.unknown_calls
    counted = [p.blocks * total(p, kind) for kind in ("special_ops", "vector_ops", "integer_ops")]
    without = read(kernels.external(4096, "__saturatef"))  # one instruction, and the same addresses
    addresses = without.blocks * total(without, "integer_ops")
    assert counted[0] == 4096 * special
    assert counted[1] + counted[2] - addresses == 4096 * arithmetic


def test_an_unknown_function_is_reported_and_its_stated_cost_taken() -> None:
    unknown = read(kernels.external(4096))
    assert unknown.unknown_calls == ("mystery",)
    stated = kernels.profile(kernels.external(4096), RunTimeFacts(calls="mystery=100"))
    assert not stated.unknown_calls
    more = kernels.profile(kernels.external(4096), RunTimeFacts(calls={"mystery": 300}))
    difference = more.blocks * (total(more, "vector_ops") - total(stated, "vector_ops"))
    assert difference == pytest.approx(4096 * 200)


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ("mysterious=3", "mystery"),
        ("mystery=-1", "mystery=-1 must be a number from 0 on"),
        ("mystery=many", "mystery=many must be a number from 0 on"),
        ("mystery=nan", "must be a number from 0 on"),
        ("mystery", "is not of the form name=value"),
    ],
)
def test_wrong_costs(calls: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        kernels.profile(kernels.external(4096), RunTimeFacts(calls=calls))


def test_threads_that_return_early_do_not_execute_the_rest() -> None:
    # of 64 blocks, 16 go on
    p = read(kernels.early_return(64, 16))
    stores = accesses(p, write=True)
    phases = [ph for r in p.roles for ph in r.phases]
    written = sum(ph.trips.mean * a.bytes for ph in phases for a in ph.work.accesses if a in stores)
    assert written * p.blocks == pytest.approx(16 * 1024 * 4)


def test_skipped_iterations_and_loops_that_may_end_early() -> None:
    skipped = read(kernels.skipping())
    stored = sum(a.bytes for a in accesses(skipped, write=True))
    assert stored == pytest.approx(128 * 4 * 8, rel=0.15)  # half of the 16 iterations, which are sampled
    assert "a loop may end early: all its iterations are charged" in read(kernels.breaking()).notes


def test_a_statement_of_ptx_accesses_the_operand_that_it_names() -> None:
    text = 'asm("ld.global.f32 %0, [%2]; st.global.f32 [%1], %0;" : "=f"(v) : "l"(y), "l"(x));'
    found = work(f"float v; {text}", None, None, None)
    assert set(found.uses) == {PointerUse(0, False, 1, 4.0), PointerUse(1, True, 1, 4.0)}


def test_a_statement_of_ptx_with_one_of_two_addresses_in_a_register_is_unread() -> None:
    text = 'asm("{ .reg .b64 p; mov.b64 p, %1; ld.global.f32 %0, [p]; }" : "=f"(v) : "l"(y), "l"(x));'
    assert work(f"float v; {text}", None, None, None).unread == ("ld",)
