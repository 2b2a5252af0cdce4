"""Small traces made by hand, as torch.profiler would write them; times are microseconds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

HOST, MAIN, BACKWARD_THREAD = 100, 100, 101
"""The process, its first thread, and that of autograd."""
NODE = "autograd::engine::evaluate_function: "


class TraceMaker:
    def __init__(self, *, device: str | None = "NVIDIA H100 80GB HBM3", **about: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.about: dict[str, Any] = {"schemaVersion": 1, **about}
        if device is not None:
            self.about["deviceProperties"] = [{"id": 0, "name": device}]
        self.last_id = 0

    def _add(self, cat: str, name: str, start: float, dur: float, **more: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": dur, "pid": HOST, **more}
        )

    def operator(self, name: str, start: float, dur: float, tid: int = MAIN, **args: Any) -> None:
        self._add("cpu_op", name, start, dur, tid=tid, args=args)

    def annotation(self, name: str, start: float, dur: float, tid: int = MAIN) -> None:
        self._add("user_annotation", name, start, dur, tid=tid, args={})

    def module(self, name: str, start: float, dur: float, tid: int = MAIN) -> None:
        self._add("python_function", f"nn.Module: {name}", start, dur, tid=tid, args={})

    def step(self, number: int, start: float, dur: float) -> None:
        self.annotation(f"ProfilerStep#{number}", start, dur)

    def kernel(
        self,
        name: str,
        start: float,
        dur: float,
        *,
        launched: float | None = None,
        tid: int = MAIN,
        stream: int = 7,
        device: int = 0,
        cat: str = "kernel",
        correlation: int | None = None,
    ) -> int:
        """`launched` is when the call began that launched it, which takes 1 us."""
        self.last_id += 1
        number = self.last_id if correlation is None else correlation
        args = {"correlation": number, "stream": stream, "device": device}
        self._add(cat, name, start, dur, tid=stream, args=args)
        self.events[-1]["pid"] = device
        if launched is not None:
            self._add(
                "cuda_runtime", "cudaLaunchKernel", launched, 1, tid=tid,
                args={"correlation": number},
            )  # fmt: skip
        return number

    def copy(self, name: str, start: float, dur: float, **more: Any) -> int:
        return self.kernel(name, start, dur, cat="gpu_memcpy", **more)

    def to_dict(self) -> dict[str, Any]:
        return {**self.about, "traceEvents": self.events}

    def write(self, path: Path, *, indent: int | None = None) -> Path:
        text = json.dumps(self.to_dict(), indent=indent).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def make_training_step(maker: TraceMaker, start: float = 0.0, number: int | None = 1) -> None:
    """A step of 100 us, of which the test knows every microsecond:

    host    data 0-10, then launches; the optimizer's are at 62
    stream 7: gemm 12-22, flash 22-30, norm 30-34, loss 34-38, gemm 40-50 (backward), adam 66-74
    stream 20: nccl 45-60 (5 overlapped), copy 76-80 (queued at 75)
    """
    t = start
    if number is not None:
        maker.step(number, t, 100)
    maker.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", t, 10)
    maker.operator("aten::linear", t + 10, 3, **{"Sequence number": 1})
    maker.operator(
        "aten::addmm", t + 10, 2.5,
        **{
            "Sequence number": 1,
            "Input Dims": [[16], [64, 32], [32, 16]],
            "Input type": ["c10::BFloat16"] * 3,
        },
    )  # fmt: skip
    maker.kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", t + 12, 10, launched=t + 11)
    maker.operator("aten::scaled_dot_product_attention", t + 13, 3, **{"Sequence number": 2})
    maker.kernel("pytorch_flash::flash_fwd_kernel", t + 22, 8, launched=t + 14)
    maker.operator("aten::layer_norm", t + 16, 3, **{"Sequence number": 3})
    maker.kernel("void my_reduction<float>(float*)", t + 30, 4, launched=t + 17)
    maker.operator("aten::cross_entropy_loss", t + 19, 3, **{"Sequence number": 4})
    maker.kernel("elementwise_kernel<128>", t + 34, 4, launched=t + 20)
    thread = BACKWARD_THREAD
    maker.operator(f"{NODE}AddmmBackward0", t + 38, 6, tid=thread, **{"Sequence number": 1})
    maker.operator("AddmmBackward0", t + 38, 5, tid=thread, **{"Sequence number": 1})
    maker.operator("aten::mm", t + 38, 4, tid=thread)
    maker.kernel(
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n", t + 40, 10, launched=t + 39, tid=thread
    )
    maker.operator("c10d::allreduce_", t + 42, 2, tid=thread)
    maker.kernel(
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        t + 45,
        15,
        launched=t + 42,
        tid=thread,
        stream=20,
    )
    maker.annotation("Optimizer.step#AdamW.step", t + 62, 10)
    maker.operator("aten::_foreach_add_", t + 62, 4)
    maker.kernel("void multi_tensor_apply_kernel<int>(int)", t + 66, 8, launched=t + 63)
    maker.copy("Memcpy HtoD (Pinned -> Device)", t + 77, 4, launched=t + 74, stream=21)


STEP_ROWS_US = {
    "matmul": 20,
    "attention": 8,
    "norm": 4,
    "loss": 4,
    "optimizer": 8,
    "communication": 10,
    "memory copies": 4,
    "waiting for data": 10,
    "idle": 2 + 2,
    "launch gaps": 100 - 20 - 8 - 4 - 4 - 8 - 10 - 4 - 10 - 4,
}
"""Of a step of `make_training_step`. Idle: the optimizer's kernel is queued from 64 to 66, the copy
from 75 to 77. Nothing is queued from 10 to 12, where the launch ends when the kernel begins."""


def write_examples(folder: Path) -> None:
    """The traces that examples of the documentation and of `--help` name."""
    (folder / "traces").mkdir()
    for rank, name in enumerate(("traces/rank0", "traces/rank1", "trace", "old", "new")):
        about = {"distributedInfo": {"rank": rank, "world_size": 2}} if rank < 2 else {}
        maker = TraceMaker(**about)
        make_training_step(maker)
        maker.write(folder / f"{name}.json.gz")
