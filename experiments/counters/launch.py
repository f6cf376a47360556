"""The program under ncu: launches each kernel of a list once between cudaProfilerStart and cudaProfilerStop.

    ncu ... python launch.py JOB.json

JOB.json: {"log": file, "deadline": unix time, "seed": n, "target": name, "items": [{"number", "operator",
"shape", "dtype", "artifact", "entry", "scratch"}, ...]}, where `scratch` has [shape, dtype] of each tensor
that the kernel takes after its outputs. Writes a line to the log at the start and the end of each item, so
that the parent knows which launches ncu profiled. Ends at the first kernel that fails; the parent starts
another process for the rest.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from tilesight.runner.bench import BenchCase

WARM_UPS = 2  # launches outside the profiled range


def tensors_of(case: "BenchCase", scratch: Sequence[tuple[Sequence[int], str]]) -> "list[torch.Tensor]":
    """What a kernel takes, in order: inputs, outputs, and memory of the shapes and dtypes in `scratch`."""
    import torch

    inputs = list(case.sets[0].inputs.values())
    device = inputs[0].device
    own = [torch.empty(*shape, dtype=getattr(torch, dtype), device=device) for shape, dtype in scratch]
    return [*inputs, *case.outputs().values(), *own]


def main(path: str) -> int:
    import torch

    from tilesight.builder.loaded_kernel import LoadedKernel
    from tilesight.kernels import operator
    from tilesight.runner.bench import BenchCase, InputSet

    job = json.loads(Path(path).read_text())
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    case, held, held_back = None, None, []
    with open(job["log"], "a") as log:

        def note(event: str, number: int, **more: object) -> None:
            log.write(json.dumps({"event": event, "number": number, **more}) + "\n")
            log.flush()

        for item in job["items"]:
            if time.time() > job["deadline"]:
                return 0
            note("begin", item["number"])
            try:
                wanted = (item["operator"], item["shape"], item["dtype"])
                if held != wanted:
                    case = None  # frees its memory first
                    torch.cuda.empty_cache()
                    found = operator(item["operator"])
                    workload = found.workload(item["shape"], item["dtype"])
                    inputs = {
                        name: tensor.contiguous()
                        for name, tensor in found.inputs(workload, "cuda", job["seed"]).items()
                    }
                    case, held = BenchCase(found, workload, job["seed"], (InputSet(inputs, {}, {}),)), wanted
                kernel = LoadedKernel(item["artifact"], item["entry"])
                call = kernel.bind(tensors_of(case, item["scratch"]), stream)
                for _ in range(WARM_UPS):
                    call()
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                call()
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()
                held_back.append(kernel)  # modules are not unloaded under the profiler
            except Exception as error:
                note("failed", item["number"], message=f"{type(error).__name__}: {error}"[:300])
                return 1
            note("end", item["number"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
