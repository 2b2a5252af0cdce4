"""A training step under torch's profiler, in a worker.

Steps with and without the profiler are interleaved, so that the cost of profiling is known. Every
part of the model is marked as it runs (`flopwatch.worker.instruments`).

Regions for models that mark none themselves, those of the library transformers, by hooks.

The name of a module and of its class say what it is; architectures differ, and what is not
recognised falls to what is around it, or to "other". The arithmetic between modules of attention
(scores, softmax, the use of rotary positions) has the region of the whole.

A timeline that opens in Perfetto, with regions in the backward pass too.

The profiler writes what was marked: phases, and regions of the forward pass. In the backward pass
there are only autograd's nodes, whose regions the breakdown knows.
"""

from __future__ import annotations

import re
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.autograd.profiler import profile as run_profiler
from torch.autograd.profiler import record_function

from flopwatch import env
from flopwatch.analysis.profile_breakdown import (
    Breakdown,
    ProfiledStep,
    list_node_regions,
    make_breakdown,
)
from flopwatch.analysis.profile_request import PHASES, TRACE_GENERATOR, Phase, Profile, Request
from flopwatch.devices.base import open_backend
from flopwatch.devices.kinds import find_kind, is_host
from flopwatch.devices.nvtx_ranges import mark_range
from flopwatch.errors import UsageError
from flopwatch.jobs.activation_memory import estimate_step
from flopwatch.jobs.precision import require_built
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models import builder
from flopwatch.models.step_workload import TrainingStep, share_model
from flopwatch.models.transformer import Transformer
from flopwatch.output.units import format_bytes
from flopwatch.records.file_safety import replace_file
from flopwatch.runner.memory_fit import PROCESS_BYTES
from flopwatch.settings import Device
from flopwatch.traces.operation_kinds import NODE
from flopwatch.traces.trace_reader import read_trace
from flopwatch.worker.instruments import listening, region
from flopwatch.worker.limits import Collector

PATTERNS: dict[str, str] = {
    "head": r"(lm_head|embed_out)$",
    "attention/rotation": r":\w*RotaryEmbedding$",
    "embedding": r"(embed_\w+|wte|wpe|word_embeddings)$|:\w*Embedding$",
    "norm": r":\w*Norm\w*$",
    "attention/qkv": r"([qkv]_proj|qkv_proj|q_[ab]_proj|kv_[ab]_proj\w*|query_key_value|c_attn|"
    r"Wqkv|in_proj|query|key|value)$",
    "attention/output": r"(o_proj|out_proj)$|.*(attn|attention)\.(c_proj|dense|proj)$",
    "attention": r":\w*Attention\w*$",
    "feed-forward/up": r"(up_proj|gate_proj|gate_up_proj|fc1|c_fc|fc_in|dense_h_to_4h|w1|w3)$",
    "feed-forward/activation": r"(act|act_fn|activation|activation_fn|activation_func)$",
    "feed-forward/down": r"(down_proj|fc2|fc_out|dense_4h_to_h|w2)$|.*mlp\.c_proj$",
    "feed-forward": r"(mlp|feed_forward|ffn)$|:\w*(MLP|FeedForward)$",
}
"""By region, what modules there are called: the last part of the name, or with a dot the whole
name, or after a colon the class. The first that matches counts."""


def find_region(name: str, class_name: str) -> str | None:
    """
    >>> find_region("model.layers.0.self_attn.q_proj", "Linear")
    'attention/qkv'
    >>> find_region("model.layers.0.input_layernorm", "LlamaRMSNorm")
    'norm'
    >>> find_region("model.layers.0", "LlamaDecoderLayer")
    """
    last = name.rpartition(".")[2]
    names = (last, name, f":{class_name}")
    return next(
        (
            found
            for found, pattern in PATTERNS.items()
            if any(re.match(pattern, each) for each in names)
        ),
        None,
    )


@contextmanager
def marking(model: Any) -> Iterator[None]:
    """Have every module that is recognised enter its region, for as long as this lasts."""
    entered: list[AbstractContextManager[object]] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            entered.append(region(name))
            entered[-1].__enter__()

        return hook

    def leave(*_: object) -> None:
        entered.pop().__exit__(None, None, None)

    hooks = []
    for path, module in model.named_modules():
        name = find_region(path, type(module).__name__)
        if name is not None:
            hooks.append(module.register_forward_pre_hook(enter(name)))
            # Always: checkpointing leaves a module by an exception once it has what it needs.
            hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        with _marking_loss(model):
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _marking_loss(model: Any) -> Iterator[None]:
    """The loss is no module, but a function that models of transformers can be given."""
    original = getattr(model, "loss_function", None)
    if original is None:
        yield
        return

    def marked(*arguments: Any, **options: Any) -> Any:
        with region("loss"):
            return original(*arguments, **options)

    model.loss_function = marked
    try:
        yield
    finally:
        model.loss_function = original


MARGIN_US = 0.001
"""By which a region reaches beyond its nodes, so that it is around them for every reader."""


def complete_trace(content: bytes, step: ProfiledStep) -> bytes:
    """With who made it, and regions; `step` is what was read of it."""
    trace = msgspec.json.decode(content)
    trace["generator"] = TRACE_GENERATOR
    nodes = [one for one in trace["traceEvents"] if one.get("name", "").startswith(NODE)]
    nodes.sort(key=lambda node: node["ts"])
    regions = list_node_regions(step)
    # Otherwise there is a node of another thread, say, and which is which is not known.
    if len(nodes) == len(regions):
        trace["traceEvents"] += [*_join(list(zip(nodes, regions, strict=True)))]
    return msgspec.json.encode(trace)


def _join(placed: Sequence[tuple[dict[str, Any], str]]) -> Iterator[dict[str, Any]]:
    """An event around neighbours that belong to the same region."""
    for (tid, place), run in groupby(placed, lambda one: (one[0]["tid"], one[1])):
        nodes = [node for node, _ in run]
        start = nodes[0]["ts"] - MARGIN_US
        yield {
            "ph": "X",
            "cat": "user_annotation",
            "name": place,
            "pid": nodes[0]["pid"],
            "tid": tid,
            "ts": start,
            "dur": nodes[-1]["ts"] + nodes[-1]["dur"] + MARGIN_US - start,
        }


WARMUP_ROUNDS = 2

"""Set by Nsight Systems for what it runs."""

Marker = Callable[[str], AbstractContextManager[object]]


def profile(request: Mapping[str, Any], device: Device) -> Profile:
    """What `Request` says, as plain data."""
    wanted = msgspec.convert(request, Request)
    require_built(wanted.job.precision, has_tf32=find_kind(device).has_tf32)
    try:
        require_memory(wanted, device, find_available_bytes(device))
        return Profiler(wanted, device).run()
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate" not in str(error):
            raise
        raise _refuse(wanted, "more memory than there is") from None


def find_available_bytes(device: Device) -> int | None:
    """What this process may take for its tensors; None where nothing limits it."""
    if not is_host(device):
        return open_backend(device).count_free_bytes()
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if limit_bytes == resource.RLIM_INFINITY else limit_bytes - PROCESS_BYTES


def require_memory(request: Request, device: Device, available_bytes: int | None) -> None:
    """What cannot fit would take minutes to fail, and fill the memory meanwhile."""
    if available_bytes is None or not request.job.shape.is_ours:  # others take seconds to survey
        return
    needed_bytes = estimate_step(request.job, on_host=is_host(device)).peak_bytes
    if needed_bytes > available_bytes:
        needed, available = format_bytes(needed_bytes), format_bytes(available_bytes)
        raise _refuse(request, f"{needed} of memory, and there are {available}")


def _refuse(request: Request, needs: str) -> UsageError:
    return UsageError(
        f"a training step of {request.job} needs {needs}; choose a smaller micro-batch, sequence "
        "length or model, or try --recompute full or --optimizer sgd"
    )


def is_marking_ranges(request: Request, device: Device, environ: env.Environ = None) -> bool:
    """Whether another profiler watches, which needs NVTX ranges only."""
    has_ranges = find_kind(device).has_nvtx
    if request.nvtx and not has_ranges:
        raise UsageError(
            f"--nvtx marks ranges for NVIDIA's profilers, which do not see {device}; leave it out"
        )
    under_nsys = has_ranges and bool(env.read("NSYS_PROFILING_SESSION_ID", environ))
    if under_nsys and request.trace:
        raise UsageError("under nsys its own report has the timeline; leave --trace out")
    return request.nvtx or under_nsys


def make_step(job: TrainingJob, device: Device) -> TrainingStep:
    torch.manual_seed(0)
    return TrainingStep(share_model(job, device), job)


class Profiler:
    """Runs steps with and without torch's profiler, interleaved."""

    def __init__(self, request: Request, device: Device) -> None:
        self.request = request
        self.device: Device = device
        self.nvtx = is_marking_ranges(request, device)
        self.clock = open_backend(device).clock
        self.step = make_step(request.job, device)
        self.model = self.step.shared.model
        self.plain_ns: list[list[float]] = []
        self.profiled_ns: list[list[float]] = []
        self.profiled: list[ProfiledStep] = []

    def run(self) -> Profile:
        if self.nvtx:
            self._run_with_ranges(mark_range)
        else:
            self._run_rounds()
        phases = [
            Phase(
                name=name,
                plain_samples_ns=[times[position] for times in self.plain_ns],
                profiled_samples_ns=[times[position] for times in self.profiled_ns],
            )
            for position, name in enumerate(PHASES)
        ]
        breakdown = Breakdown(entries=(), operators=())
        if self.profiled:
            plain_ns = {phase.name: phase.plain_ns for phase in phases}
            has_kernels = any(step.has_kernels for step in self.profiled)
            breakdown = make_breakdown(self.profiled, plain_ns, by_kernels=has_kernels)
        return Profile(
            request=self.request,
            device=self.device,
            threads=torch.get_num_threads(),
            torch=str(torch.__version__),
            attention=builder.find_attention(self.model),
            parameters=sum(p.numel() for p in self.model.parameters()),
            phases=phases,
            entries=breakdown.entries,
            operators=breakdown.operators[: self.request.top],
        )

    def _run_rounds(self) -> None:
        with (
            Collector(time.monotonic) as collector,
            tempfile.TemporaryDirectory(prefix="flopwatch-") as folder,
        ):
            recorded = Path(folder, "trace.json")
            for position in range(-WARMUP_ROUNDS, self.request.steps):
                collector.collect_if_due()
                plain_ns = self._time_step()
                profiled_ns, step = self._profile_step(recorded)
                if position >= 0:
                    self.plain_ns.append(plain_ns)
                    self.profiled_ns.append(profiled_ns)
                    self.profiled.append(step)
            if self.request.trace is not None:
                content = complete_trace(recorded.read_bytes(), step)
                replace_file(Path(self.request.trace), content)

    def _time_step(self, mark: Marker = lambda name: nullcontext()) -> list[float]:
        """The times of the phases, in nanoseconds."""
        self.step.prepare()
        marks = [self.clock.mark()]
        value: tuple[Any, ...] = ()
        for name, phase in self.step.phases.items():
            with mark(name):
                result = phase(*value)
            value = (result,)
            marks.append(self.clock.mark())
        return self.clock.elapsed_ns(marks)

    def _profile_step(self, recorded: Path) -> tuple[list[float], ProfiledStep]:
        """Times of phases, and what the profiler has written of them."""
        names: set[str] = set()

        def record(name: str) -> AbstractContextManager[object]:
            names.add(name)
            return record_function(name)

        device = None if is_host(self.device) else self.device
        with (
            self._listening(record),
            run_profiler(use_kineto=True, use_device=device) as profiler,
        ):
            times_ns = self._time_step(record)
        profiler.export_chrome_trace(str(recorded))
        step = ProfiledStep(
            trace=read_trace(recorded), phases=PHASES, regions=names.difference(PHASES)
        )
        return times_ns, step

    def _run_with_ranges(self, mark: Marker) -> None:
        """For another profiler, which sees NVTX ranges; torch's own would be in its way."""
        for position in range(-WARMUP_ROUNDS, self.request.steps):
            plain_ns = self._time_step()
            with self._listening(mark):
                marked_ns = self._time_step(mark)
            if position >= 0:
                self.plain_ns.append(plain_ns)
                self.profiled_ns.append(marked_ns)

    @contextmanager
    def _listening(self, mark: Marker) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(listening(mark))
            if not isinstance(self.model, Transformer):
                stack.enter_context(marking(self.model))
            yield
