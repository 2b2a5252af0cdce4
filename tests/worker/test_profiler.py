"""Profiles of small models, in this process, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from click.testing import CliRunner

from flopwatch.analysis.profile_breakdown import Entry, Operator, compare_attention
from flopwatch.analysis.profile_request import Phase, Profile, Request, make_request
from flopwatch.cli.main import cli
from flopwatch.devices.kinds import Devices, find_kind
from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models.builder import build
from flopwatch.output.profile_tables import HIDDEN, as_dict, list_sentences, list_sheets
from flopwatch.runner import session
from flopwatch.worker import profiler as worker
from flopwatch.worker.profiler import find_region

SMALL = "hidden_size=64:layers=2:vocabulary=256"
DECODER = f"decoder:{SMALL}"
WITH_PRODUCTS = {
    "attention/qkv", "attention/output", "feed-forward/up", "feed-forward/down", "head"
}  # fmt: skip


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine would take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_job(model: str, seq_len: int = 128, **choices: Any) -> TrainingJob:
    return TrainingJob(model, seq_len, **{"micro_batch": 4, "precision": "fp32", **choices})


SMALL_JOB = make_job("small")


def run(model: str, **choices: Any) -> Profile:
    asked = {name: choices.pop(name) for name in ("steps", "top", "trace") if name in choices}
    job = make_job(model, 16, **{"micro_batch": 2, **choices})
    return worker.profile(asdict(Request(job=job, **{"steps": 1, **asked})), "cpu")


def find_parts(profile: Profile, region: str, kind: str) -> set[str]:
    return {e.part for e in profile.entries if (e.region, e.kind) == (region, kind) and e.time_ns}


@pytest.mark.parametrize("model", ["decoder", "gpt", "opt", "gpt2", "gpt_neox", "qwen2"])
def test_every_region_has_its_products_forward_and_backward(model: str) -> None:
    found = run(f"{model}:{SMALL}", attention="plain")
    assert sum(entry.time_ns for entry in found.entries) == pytest.approx(found.step_ns, rel=0.01)
    both = {"forward", "backward"}
    for region in WITH_PRODUCTS:
        assert find_parts(found, region, "matmul") == both, region
    assert find_parts(found, "attention/softmax", "softmax") == both
    assert find_parts(found, "loss", "loss") == both
    assert find_parts(found, "other", "matmul") == set()
    regions = {entry.region for entry in found.entries}
    assert {"embedding", "norm", "optimizer", "between operations"} <= regions
    works = {work.name: work for work in compare_attention(found.entries, found.request.job)}
    assert all(work.forward_ns > 0 and work.backward_ns > 0 for work in works.values())
    assert works["scores and values"].forward_flops == 2 * 4 * 2 * 16**2 * 64
    assert works["softmax"].forward_flops == 2 * 5 * 2 * 16**2


def test_products_are_counted_and_phases_add_up() -> None:
    found = run(DECODER, top=100, steps=2)
    calls = {one.name: one.calls for one in found.operators}
    assert calls["aten::mm"] == 3 * (2 * 4 + 1)  # 4 in a block, the head, and two gradients of each
    assert calls["aten::_fused_adamw_"] == 1
    assert [phase.name for phase in found.phases] == ["forward", "backward", "optimizer"]
    assert find_parts(found, "attention/fused", "attention") == {"forward", "backward"}
    assert compare_attention(found.entries, found.request.job) == []
    for phase in found.phases:
        parts_ns = sum(entry.time_ns for entry in found.entries if entry.part == phase.name)
        assert parts_ns == pytest.approx(phase.plain_ns, rel=0.01)


@pytest.mark.parametrize("model", ["decoder", "qwen2"])
def test_what_checkpointing_computes_again_is_apart(model: str) -> None:
    found = run(f"{model}:{SMALL}", recompute="full")
    thrice = {"forward", "recomputed", "backward"}
    assert find_parts(found, "attention/qkv", "matmul") == thrice
    assert find_parts(found, "feed-forward/up", "matmul") == thrice
    assert find_parts(found, "head", "matmul") == {"forward", "backward"}


@pytest.mark.parametrize(
    ("name", "class_name", "region"),
    [
        ("transformer.h.0.attn.c_proj", "Conv1D", "attention/output"),
        ("transformer.h.0.mlp.c_proj", "Conv1D", "feed-forward/down"),
        ("gpt_neox.layers.0.attention.dense", "Linear", "attention/output"),
        ("model.rotary_emb", "LlamaRotaryEmbedding", "attention/rotation"),
        ("model.decoder.embed_positions", "OPTLearnedPositionalEmbedding", "embedding"),
        ("model.layers.0.mlp", "MixtralSparseMoeBlock", "feed-forward"),
        ("transformer.ln_f", "LayerNorm", "norm"),
        ("model.layers.0", "LlamaDecoderLayer", None),
        ("transformer.drop", "Dropout", None),
    ],
)
def test_modules_are_recognised(name: str, class_name: str, region: str | None) -> None:
    assert find_region(name, class_name) == region


def test_hooks_leave_no_trace_on_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = build(find_shape(f"opt:{SMALL}"))
    monkeypatch.setattr(worker.builder, "build", lambda *_, **__: model)
    loss_function = model.loss_function
    run(f"opt:{SMALL}")
    assert model.loss_function is loss_function
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_timeline_has_regions_in_both_passes(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    run(DECODER, trace=str(path), attention="plain")
    make_request(SMALL_JOB, trace=str(path))  # ours: may be replaced
    marked = [
        one
        for one in json.loads(path.read_text())["traceEvents"]
        if one.get("cat") == "user_annotation"
    ]
    backward = next(one for one in marked if one["name"] == "backward")
    end = backward["ts"] + backward["dur"]
    before = [one["name"] for one in marked if one["ts"] < backward["ts"]]
    inside = [one["name"] for one in marked if backward["ts"] < one["ts"] < end]
    for region in ("attention/scores", "feed-forward/up"):
        assert before.count(region) == inside.count(region) == 2
    assert all(one["ts"] + one["dur"] <= end for one in marked if one["name"] in inside[:3])


def test_ranges_for_another_profiler_are_phases_and_regions() -> None:
    open_: list[str] = []
    seen: list[tuple[str, ...]] = []

    @contextmanager
    def mark(name: str) -> Iterator[None]:
        open_.append(name)
        seen.append(tuple(open_))
        yield
        assert open_.pop() == name

    profiler = worker.Profiler(Request(job=make_job(f"qwen2:{SMALL}", 16), steps=1), "cpu")
    profiler._run_with_ranges(mark)
    assert ("forward", "attention", "attention/qkv") in seen
    assert ("forward", "loss") in seen
    assert {("backward",), ("optimizer",)} <= set(seen)
    assert len(profiler.profiled_ns) == len(profiler.plain_ns) == 1


def test_ranges_are_marked_under_nsys_or_on_request_and_on_a_gpu_only() -> None:
    request, asked = Request(job=SMALL_JOB), Request(job=SMALL_JOB, nvtx=True)
    nsys = {"NSYS_PROFILING_SESSION_ID": "1"}
    assert worker.is_marking_ranges(request, "cuda", nsys)
    assert worker.is_marking_ranges(asked, "cuda", {})
    assert not worker.is_marking_ranges(request, "cuda", {})
    assert not worker.is_marking_ranges(request, "cpu", nsys)
    with pytest.raises(UsageError, match="which do not see cpu; leave it out"):
        worker.is_marking_ranges(asked, "cpu", {})
    with pytest.raises(UsageError, match="leave --trace out"):
        worker.is_marking_ranges(replace(request, trace="x.json"), "cuda", nsys)


@pytest.mark.parametrize("precision", ["tf32", "fp8"])
def test_what_cannot_be_built_is_refused(precision: str) -> None:
    with pytest.raises(UsageError, match=f"^precision {precision} .*; choose one of fp32, "):
        run("small", precision=precision)


def test_the_precision_is_what_the_device_is_used_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def call(function: str, arguments: dict[str, Any], **_: object) -> Any:
        asked.append(arguments["request"]["job"]["precision"])
        raise UsageError("that is all")

    def run_on(device: str, *words: str) -> None:
        kind = Devices(kind=find_kind(device))
        monkeypatch.setattr("flopwatch.devices.present_accelerators.choose_devices", lambda _: kind)
        CliRunner().invoke(cli, ["profile", "--model", "small", *words])

    monkeypatch.setattr(session, "call", call)
    run_on("cpu")
    run_on("cuda")
    run_on("cuda", "--precision", "tf32")
    assert asked == ["fp32", "bf16-mixed", "tf32"]


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(worker, "make_step", fail)
    with pytest.raises(UsageError, match="step of decoder.* needs more memory than there is"):
        run(DECODER)


def test_what_cannot_fit_is_not_tried() -> None:
    with pytest.raises(UsageError, match=r"of xl, seq_len 128, .* needs 29\.\d GiB of memory"):
        worker.require_memory(Request(job=make_job("xl")), "cpu", 2**30)
    worker.require_memory(Request(job=make_job("xl")), "cpu", 2**36)
    worker.require_memory(Request(job=make_job("xl")), "cpu", None)


def test_what_cannot_be_done_is_said_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="experts can be accounted for"):
        make_request(make_job("gpt-125m:experts=2:active_experts=1"))
    missing = tmp_path / "missing" / "trace.json"
    with pytest.raises(UsageError, match=r"trace.json cannot be written \(No such file"):
        make_request(SMALL_JOB, trace=str(missing))
    with pytest.raises(UsageError, match="leave --trace out"):
        make_request(SMALL_JOB, trace=str(tmp_path / "t.json"), nvtx=True)
    for content in ("not a trace", '{"traceEvents": []}'):
        kept = tmp_path / "kept.json"
        kept.write_text(content)
        with pytest.raises(UsageError, match="exists and is not a trace of flopwatch"):
            make_request(SMALL_JOB, trace=str(kept))
        assert kept.read_text() == content
    make_request(SMALL_JOB, trace=str(tmp_path / "new.json"))
    assert not (tmp_path / "new.json").exists()


def make_profile(**changes: Any) -> Profile:
    """Of a step of 100 ms, with numbers that are easily added up."""
    ms = 1e6
    entries = [
        Entry(region="attention/qkv", kind="matmul", part="forward", time_ns=10 * ms),
        Entry(region="attention/scores", kind="matmul", part="forward", time_ns=4 * ms),
        Entry(region="attention/scores", kind="element-wise", part="forward", time_ns=1 * ms),
        Entry(region="attention/softmax", kind="softmax", part="forward", time_ns=3 * ms),
        Entry(region="attention", kind="element-wise", part="forward", time_ns=2 * ms),
        Entry(region="attention/qkv", kind="matmul", part="backward", time_ns=60 * ms),
        Entry(region="optimizer", kind="element-wise", part="optimizer", time_ns=15 * ms),
        Entry(
            region="between operations",
            kind="between operations",
            part="forward",
            time_ns=5 * ms,
        ),
    ]
    operators = [Operator(name="aten::mm", kind="matmul", calls=4, time_ns=70 * ms)]
    times_ms = {"forward": (25, 30), "backward": (60, 62), "optimizer": (15, 18)}
    profile = Profile(
        request=Request(job=make_job("small", attention="plain")),
        device="cpu",
        threads=2,
        torch="2.13.0",
        attention="plain",
        parameters=128,
        phases=[
            Phase(name=n, plain_samples_ns=[plain * ms], profiled_samples_ns=[profiled * ms])
            for n, (plain, profiled) in times_ms.items()
        ],
        entries=entries,
        operators=operators,
    )
    return replace(profile, **changes)


def list_rows(profile: Profile, sheet: int) -> dict[str, list[str]]:
    groups = list_sheets(profile)[sheet].groups
    return {name: cells for group in groups for name, *cells in group}


def test_the_table_of_regions_adds_up() -> None:
    sheet = list_sheets(make_profile())[0]
    assert sheet.title == "profile small, 4 x 128 tokens, fp32, plain attention, adamw"
    assert sheet.headings == ["region", "forward", "backward", "optimizer", "total", "share"]
    assert list_rows(make_profile(), 0) == {
        "attention": ["20.0 ms", "60.0 ms", "", "80.0 ms", "80.0 %"],
        "  qkv": ["10.0 ms", "60.0 ms", "", "70.0 ms", "70.0 %"],
        "  scores": ["5.00 ms", "", "", "5.00 ms", "5.0 %"],
        "  softmax": ["3.00 ms", "", "", "3.00 ms", "3.0 %"],
        "  rest": ["2.00 ms", "", "", "2.00 ms", "2.0 %"],
        "optimizer": ["", "", "15.0 ms", "15.0 ms", "15.0 %"],
        "between operations": ["5.00 ms", "", "", "5.00 ms", "5.0 %"],
        "whole step": ["25.0 ms", "60.0 ms", "15.0 ms", "100 ms", "100.0 %"],
    }


def test_kinds_operators_and_attention_have_tables() -> None:
    profile = make_profile()
    assert list_rows(profile, 1)["matmul"] == [
        "14.0 ms",
        "60.0 ms",
        "",
        "74.0 ms",
        "74.0 %",
    ]
    assert list_rows(profile, 2) == {"aten::mm": ["matmul", "4", "17.5 ms", "70.0 ms", "70.0 %"]}
    elements = 4 * 12 * 12 * 128**2
    assert list_rows(profile, 3)["softmax"][:3] == [
        "3.00 ms", f"{5 * elements / 1e6:.1f}M", f"{5 * elements / 3e6:.1f} GFLOP/s"
    ]  # fmt: skip


def test_sentences_give_the_shares_and_the_overhead() -> None:
    products, softmax, overhead = list_sentences(make_profile())
    assert "56.0 % of the forward pass and 74.0 % of the whole step." in products
    assert "softmax takes 75 % of the time" in softmax
    assert "with 2.0 % of their FLOPs" in softmax
    assert overhead.startswith("Profiling added 10.0 % to a step,")


def test_steps_that_differ_much_are_not_trusted() -> None:
    phase = Phase(
        name="forward",
        plain_samples_ns=[10e6, 11e6, 30e6],
        profiled_samples_ns=[12e6, 13.2e6, 31e6],  # all the slower with it, at any time
    )
    profile = make_profile(phases=[phase])
    *_, overhead, spread = list_sentences(profile)
    assert profile.step_ns == 11e6
    assert overhead.startswith("Profiling added 20.0 %")
    assert "took from 10.0 ms to 30.0 ms" in spread
    *_, load = list_sentences(profile, 0.64)
    assert load.startswith("Other processes took 64 % of the cores meanwhile: ")
    assert list_sentences(profile, 0.04) == list_sentences(profile)


def test_a_fused_kernel_hides_its_softmax() -> None:
    entries = [
        Entry(region="attention/fused", kind="attention", part="forward", time_ns=20e6),
        Entry(region="head", kind="matmul", part="forward", time_ns=80e6),
    ]
    phases = [Phase(name="forward", plain_samples_ns=[100e6], profiled_samples_ns=[99e6])]
    profile = make_profile(entries=entries, phases=phases)
    products, hidden, overhead = list_sentences(profile)
    assert "fused attention, mostly matmuls too, 20.0 % and 20.0 %" in products
    assert hidden == HIDDEN
    assert overhead == "Profiling added no more to a step than noise."
    assert len(list_sheets(profile)) == 3


def test_under_another_profiler_there_are_times_of_phases_only() -> None:
    profile = make_profile(entries=[], operators=[], device="cuda")
    (sheet,) = list_sheets(profile)
    assert [row[:2] for row in sheet.groups[0]][0] == ["forward", "25.0 ms"]
    assert len(list_sentences(profile)) == 1


def test_what_a_gpu_does_not_do_is_called_idle() -> None:
    profile = make_profile(device="cuda")
    assert "idle" in list_rows(profile, 0)
    assert "idle" in list_rows(profile, 1)
    assert list_sheets(profile)[2].headings[0] == "kernel"


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the seconds that a worker takes, but with all that passes to it and back as JSON."""

    def call(function: str, arguments: dict[str, Any], **_: object) -> Any:
        assert function == "profile_step"
        value = worker.profile(**json.loads(json.dumps(arguments)), device="cpu")
        return json.loads(json.dumps(msgspec.to_builtins(value)))

    monkeypatch.setattr(session, "call", call)


@pytest.mark.usefixtures("in_process")
def test_the_command_prints_tables_sentences_and_the_path_of_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    options = ["--micro-batch", "1", "--seq-len", "8", "--steps", "1", "--trace", str(path)]
    result = CliRunner().invoke(cli, ["profile", "--model", DECODER, *options])
    assert result.exit_code == 0, result.output
    assert "between operations" in result.stdout
    assert HIDDEN in result.stdout
    assert f"wrote {path}" in result.stderr
    assert json.loads(path.read_text())["traceEvents"]


@pytest.mark.usefixtures("in_process")
def test_the_command_gives_json() -> None:
    options = [
        "--micro-batch",
        "1",
        "--seq-len",
        "8",
        "--steps",
        "1",
        "--attention",
        "plain",
        "--json",
    ]
    result = CliRunner().invoke(cli, ["profile", "--model", DECODER, *options])
    content = json.loads(result.stdout)
    whole = content["regions"][-1]
    assert whole["name"] == "whole step"
    assert sum(whole["parts_ns"].values()) == pytest.approx(content["step_ns"])
    assert [work["name"] for work in content["inside_attention"]] == [
        "projections", "scores and values", "softmax"
    ]  # fmt: skip
    assert content["request"]["job"]["micro_batch"] == 1


@pytest.mark.slow
def test_the_command_has_a_worker_do_it() -> None:
    options = ["--micro-batch", "1", "--seq-len", "8", "--steps", "1", "--threads", "1", "--json"]
    result = CliRunner().invoke(cli, ["profile", "--model", DECODER, *options])
    content = json.loads(result.stdout)
    assert content["threads"] == 1
    assert {line["name"] for line in content["kinds"]} >= {"matmul", "attention"}


def test_a_batch_of_nothing_is_refused() -> None:
    result = CliRunner().invoke(cli, ["profile", "--model", "small", "--micro-batch", "0"])
    assert isinstance(result.exception, UsageError)
    assert "--micro-batch '0' is not a whole number" in str(result.exception)


def test_json_is_plain() -> None:
    assert json.loads(json.dumps(as_dict(make_profile())))["kinds"][0]["name"] == "matmul"
