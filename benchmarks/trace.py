"""How long does a profiler trace of 100 MB take, how much memory, and against what others need?

Writes a trace as torch.profiler would: training steps of a transformer on a GPU, forward, backward
and optimizer with nested operators, launches, kernels on two streams, shapes and flow events. Reads
it with `flopwatch explain --json` and with HolisticTraceAnalysis (which only reads it, and makes
its temporal breakdown), each in a fresh process, taking turns. The reach is 10 s and 1 GiB, and to
be 5 times as fast as HolisticTraceAnalysis; where it is missed, this exits with 1.

    python benchmarks/trace.py
    python benchmarks/trace.py --hta /tmp/hta/bin/python     # where HolisticTraceAnalysis is
    python benchmarks/trace.py --megabytes 1000 --rounds 1

HolisticTraceAnalysis goes into an environment of its own: `python -m venv /tmp/hta` and
`/tmp/hta/bin/pip install HolisticTraceAnalysis==0.5.0`. Without it, only flopwatch is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

REACH_S = 10.0
REACH_BYTES = 2**30
REACH_RATIO = 5.0
LAYERS = 24
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
found = analysis.get_temporal_breakdown(visualize=False)
print(found.to_json(orient="records"))
"""
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_cublas"
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, "
    "false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)"
)
POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16, "
    "c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, "
    "std::array<char*, 3ul> >(int, at::native::BinaryFunctor<c10::BFloat16>, std::array<char*, 3>)"
)
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LAYER = (
    ("aten::layer_norm", "aten::native_layer_norm", NORM, 9.2),
    ("aten::linear", "aten::addmm", GEMM, 41.7),
    ("aten::scaled_dot_product_attention", "aten::_flash_attention_forward", FLASH, 63.1),
    ("aten::linear", "aten::addmm", GEMM, 15.3),
    ("aten::add", "aten::add", POINTWISE, 7.9),
    ("aten::layer_norm", "aten::native_layer_norm", NORM, 9.1),
    ("aten::linear", "aten::addmm", GEMM, 55.2),
    ("aten::gelu", "aten::gelu", POINTWISE, 12.4),
    ("aten::linear", "aten::addmm", GEMM, 54.8),
)
"""Of a block: outer operator, inner operator, kernel, its microseconds."""


class Writer:
    """Events as torch.profiler lays them out, with a host that is ahead of its device."""

    def __init__(self) -> None:
        self.host_us, self.device_us, self.network_us = 1e9, 1e9, 1e9
        self.number = 0

    def operator(self, name: str, start: float, dur: float, tid: int, more: str = "") -> str:
        self.number += 1
        return (
            f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 500, "tid": {tid},\n'
            f'    "ts": {start:.3f}, "dur": {dur:.3f},\n    "args": {{\n'
            f'      "External id": {self.number},"Record function id": 0, '
            f'"Ev Idx": {self.number}{more}\n    }}\n  }}'
        )

    def kernel(self, name: str, dur: float, stream: int, tid: int) -> Iterator[str]:
        """With its launch, and the arrow between both."""
        self.number += 1
        ready = self.network_us if stream == 20 else self.device_us
        start = max(ready, self.host_us + 4.2)
        if stream == 20:
            self.network_us = start + dur
        else:
            self.device_us = start + dur + 0.9
        yield (
            '  {\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 500, '
            f'"tid": {tid},\n    "ts": {self.host_us:.3f}, "dur": 3.1,\n    "args": {{\n'
            f'      "External id": {self.number}, "cbid": 211, "correlation": {self.number}\n'
            "    }\n  }"
        )
        for phase, pid, line, moment in (("s", 500, tid, self.host_us), ("f", 0, stream, start)):
            yield (
                f'  {{\n    "ph": "{phase}", "id": {self.number}, "pid": {pid}, "tid": {line}, '
                f'"ts": {moment:.3f},\n    "cat": "ac2g", "name": "ac2g"\n  }}'
            )
        yield (
            f'  {{\n    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": {stream},\n'
            f'    "ts": {start:.3f}, "dur": {dur:.3f},\n    "args": {{\n'
            f'      "External id": {self.number}, "queued": 0, "device": 0, "context": 1,\n'
            f'      "stream": {stream}, "correlation": {self.number},\n'
            '      "registers per thread": 168, "shared memory": 49152, "blocks per SM": 7.757576,'
            '\n      "warps per SM": 31.030304, "grid": [16, 64, 1], "block": [128, 1, 1],\n'
            '      "est. achieved occupancy %": 48\n    }\n  }'
        )

    def layer(self, tid: int, *, is_backward: bool, first: int) -> Iterator[str]:
        for place, (outer, inner, kernel, dur) in enumerate(LAYER):
            begin, number = self.host_us, first + place
            shapes = (
                f', "Sequence number": {number}, "Fwd thread id": {int(is_backward)}, '
                '"Input Dims": [[4096], [8192, 1024], [1024, 4096], [], []], "Input type": '
                '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"], '
                '"Concrete Inputs": ["", "", "", "1", "1"]'
            )
            self.host_us += 2.2
            events: list[str] = []
            for _ in range(2 if is_backward else 1):
                events += self.kernel(kernel, dur, 7, tid)
                self.host_us += 5.3
            outer_name = f"autograd::engine::evaluate_function: Op{place}Backward0"
            yield self.operator(
                outer_name if is_backward else outer, begin, self.host_us - begin + 2, tid, shapes
            )
            for depth, name in enumerate(("aten::t", "aten::transpose", "aten::as_strided")):
                yield self.operator(name, begin + 0.2 + 0.1 * depth, 0.9 - 0.2 * depth, tid)
            yield self.operator(inner, begin + 1.5, self.host_us - begin - 1, tid, shapes)
            yield from events
            self.host_us += 3.0

    def step(self, number: int) -> Iterator[str]:
        begin = self.host_us
        self.host_us += 50
        for layer in range(LAYERS):
            yield from self.layer(500, is_backward=False, first=1000 * number + 10 * layer)
        for layer in reversed(range(LAYERS)):
            yield from self.layer(501, is_backward=True, first=1000 * number + 10 * layer)
            yield from self.kernel(REDUCE, 180.5, 20, 501)
            self.host_us += 4
        for _ in range(60):
            yield from self.kernel(ADAM, 31.3, 7, 500)
            self.host_us += 6
        self.host_us = max(self.host_us, self.device_us - 900)
        yield (
            f'  {{\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{number}", '
            f'"pid": 500, "tid": 500,\n    "ts": {begin:.3f}, "dur": {self.host_us - begin:.3f},\n'
            '    "args": {"External id": 0, "Ev Idx": 0}\n  }'
        )


def write_trace(path: Path, size_bytes: float) -> int:
    """How many events it has."""
    head = (
        '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n'
        '    {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85000000000}\n'
        '  ],\n  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},\n'
        '  "traceEvents": [\n'
    )
    writer, count, number = Writer(), 0, 0
    with path.open("w") as file:
        file.write(head)
        while file.tell() < size_bytes:
            number += 1
            events = list(writer.step(number))
            file.write(("" if count == 0 else ",\n") + ",\n".join(events))
            count += len(events)
        file.write('\n  ],\n  "traceName": "trace.json"\n}\n')
    return count


@dataclass(frozen=True)
class Run:
    seconds: float
    peak_bytes: int
    out: str


def run(words: list[str], folder: Path) -> Run:
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        begin_s = time.perf_counter()
        process = subprocess.Popen(words, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin_s
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(words[:4])} failed: {err.read()[-2000:]}")
        return Run(seconds, usage.ru_maxrss * 1024, out.read())


def has_hta(python: str) -> bool:
    found = subprocess.run([python, "-c", "import hta"], capture_output=True, check=False)
    return found.returncode == 0


def describe_busy(out: str, by: str) -> str:
    """Computing, other work and idle time over the whole of what ran, in milliseconds."""
    if by == "flopwatch":
        (trace,) = json.loads(out)["traces"]
        whole = trace["whole"]
        computing = whole["computing_ns"]
        rows = whole["rows"]
        other = rows.get("communication", 0) + rows.get("memory copies", 0)
        times = [computing, other, whole["total_ns"] - computing - other]
        return " / ".join(f"{each / 1e6:.1f}" for each in times)
    (row,) = json.loads(out.strip().splitlines()[-1])
    names = ("compute_time(us)", "non_compute_time(us)", "idle_time(us)")
    return " / ".join(f"{row[name] / 1e3:.1f}" for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta", default=sys.executable, metavar="PYTHON")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flopwatch-") as name:
        folder = Path(name)
        path = folder / "trace.json"
        count = write_trace(path, 1e6 * asked.megabytes)
        print(f"{path.stat().st_size / 1e6:.0f} MB, {count:,} events")
        tools = {
            "flopwatch": [sys.executable, "-m", "flopwatch", "explain", str(path), "--json"],
            "HolisticTraceAnalysis": [asked.hta, "-c", HTA, str(path)],
        }
        if not has_hta(asked.hta):
            del tools["HolisticTraceAnalysis"]
            print("HolisticTraceAnalysis is not installed; --hta names a Python that has it")
        runs: dict[str, list[Run]] = {tool: [] for tool in tools}
        for _ in range(asked.rounds):
            for tool, words in tools.items():
                runs[tool].append(run(words, folder))
    is_missed = report(runs)
    sys.exit(1 if is_missed and asked.megabytes <= 100 else 0)


def report(runs: dict[str, list[Run]]) -> bool:
    print(f"{'':24}{'seconds':>10}{'peak GiB':>10}   computing / other / idle, ms")
    for tool, done in runs.items():
        seconds = median(one.seconds for one in done)
        peak = max(one.peak_bytes for one in done)
        busy = describe_busy(done[0].out, tool)
        print(f"{tool:24}{seconds:10.2f}{peak / 2**30:10.2f}   {busy}")
    own, *others = runs.values()
    is_missed = (
        median(one.seconds for one in own) > REACH_S
        or max(one.peak_bytes for one in own) > REACH_BYTES
    )
    if others:
        pairs = zip(own, others[0], strict=True)
        ratio = median(other.seconds / one.seconds for one, other in pairs)
        print(f"{'times as fast':24}{ratio:10.1f}   (reach {REACH_RATIO:.0f})")
        is_missed = is_missed or ratio < REACH_RATIO
    return is_missed


if __name__ == "__main__":
    main()
