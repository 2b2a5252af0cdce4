"""The suite of attention: forms, reference, counts, memory, and the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flopwatch.devices.base import open_backend
from flopwatch.errors import Unsupported
from flopwatch.layers import causal_attention
from flopwatch.records.record import Record
from flopwatch.records.store import read
from flopwatch.suites.case import Case
from flopwatch.suites.catalog import find_suite, load_suite
from flopwatch.suites.suite import Suite
from flopwatch.worker import agreement, compilation
from flopwatch.worker.sampling import run_phases
from tests.command_line import run_command_line

VARIANTS = ["plain", "compiled", "sdpa"]
EAGER = ["plain", "sdpa"]
PARTS = ["inputs", "reference", "saved for backward", "temporary peak"]
DTYPES = ["float32", "bfloat16", "float16"]


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite(find_suite("attention").path)


def make_case(variant: str, **params: object) -> Case:
    small = {"micro_batch": 2, "heads": 2, "head_size": 8, "seq_len": 24, "dtype": "float32"}
    return Case(suite="attention", variant=variant, params={**small, **params})


def check(suite: Suite, case: Case) -> set[str]:
    """Compare a case with its reference; the names of what was compared."""
    clock = open_backend("cpu").clock
    torch.manual_seed(3)
    found = agreement.gather(suite.build_case(case), clock).values
    torch.manual_seed(3)
    reference = suite.build_reference(case)
    assert reference is not None
    expected = agreement.gather(reference, clock).values
    done = agreement.compare(found, expected, against="it", tolerance=suite.tolerance(case))
    assert done is not None
    return set(done.errors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", EAGER)
def test_variants_agree_with_the_reference(suite: Suite, variant: str, dtype: str) -> None:
    compared = check(suite, make_case(variant, dtype=dtype))
    assert compared == {"output", "grad q", "grad k", "grad v"}


@pytest.mark.parametrize("scores", [1, 24 * 7, 1 << 20])  # slices of one row, uneven ones, one
def test_slices_are_the_same_as_the_whole(scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal_attention, "SLICE_SCORES", scores)
    torch.manual_seed(0)
    q, k, v, grad = (torch.randn(2, 3, 24, 8, dtype=torch.float64) for _ in range(4))
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    output = causal_attention.attend_plainly(*leaves, causal_attention.make_mask(24, 24, "cpu"))
    output.backward(grad)
    sliced = causal_attention.attend_in_slices(q, k, v, grad)
    torch.testing.assert_close(sliced.output, output)
    for found, leaf in zip(sliced[1:], leaves, strict=True):
        torch.testing.assert_close(found, leaf.grad)


def test_nobody_sees_the_future() -> None:
    q, k, v = torch.randn(3, 1, 1, 16, 4).unbind()
    mask = causal_attention.make_mask(16, 16, "cpu")
    before = causal_attention.attend_plainly(q, k, v, mask)
    k[..., 9:, :], v[..., 9:, :] = 1e3, 1e3
    after = causal_attention.attend_plainly(q, k, v, mask)
    assert torch.equal(before[..., :9, :], after[..., :9, :])
    assert not torch.isclose(before[..., 9:, :], after[..., 9:, :]).any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_counts_the_same_flops(suite: Suite, variant: str) -> None:
    case = make_case(variant, micro_batch=3, heads=5, seq_len=7, head_size=11)
    assert suite.count_flops(case) == {
        "forward": {"float32": 4 * 3 * 5 * 7 * 7 * 11},
        "backward": {"float32": 8 * 3 * 5 * 7 * 7 * 11},
    }


def check_memory(suite: Suite, case: Case) -> None:
    workload = suite.build_case(case)
    assert workload.reset is not None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # each has its work space, which is not predicted
    try:
        memory = open_backend("cpu").measure_memory(workload.reset, workload.phases)
    finally:
        torch.set_num_threads(threads)
    assert memory is not None
    parts = suite.estimate_memory(case)
    beyond_inputs = parts["saved for backward"] + parts["temporary peak"]
    assert beyond_inputs == pytest.approx(memory.peak_bytes, rel=0.1)
    assert parts["saved for backward"] == pytest.approx(memory.phases["forward"].end_bytes, rel=0.1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", EAGER)
@pytest.mark.parametrize(("seq_len", "head_size"), [(192, 32), (128, 96)])
def test_the_memory_is_predicted(
    suite: Suite, variant: str, dtype: str, seq_len: int, head_size: int
) -> None:
    case = make_case(variant, micro_batch=32, seq_len=seq_len, head_size=head_size, dtype=dtype)
    check_memory(suite, case)


@pytest.mark.slow  # compiling takes seconds
@pytest.mark.filterwarnings("ignore")  # torch's own, of its own
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_is_right_and_its_memory_predicted(suite: Suite, dtype: str) -> None:
    case = make_case("compiled", micro_batch=8, seq_len=128, head_size=16, dtype=dtype)
    check(suite, case)
    check_memory(suite, case)
    workload = suite.build_case(make_case("compiled", seq_len=40, dtype=dtype))
    before_s = compilation.compile_seconds()
    run_phases(workload)
    took_s = compilation.compile_seconds() - before_s
    assert workload.list_facts()["compile_s"] == took_s > 0.1


def test_the_grids(suite: Suite) -> None:
    assert len([case for case in suite.expand() if case.dtype == "float32"]) == 4 * 5 * 3
    quick = {(case.seq_len, case.variant) for case in suite.expand(quick=True)}
    assert quick == {(256, "plain"), (256, "sdpa"), *((1024, variant) for variant in VARIANTS)}
    assert {case.dtype for case in suite.expand(quick=True)} == {"float32"}


def test_without_a_compiler_compiled_is_unsupported(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "find_compiler", lambda: None)
    compilation.start_compiler.cache_clear()
    with pytest.raises(Unsupported, match="needs a C\\+\\+ compiler here; install g\\+\\+"):
        suite.build_case(make_case("compiled"))


def test_where_even_a_trivial_function_fails_compiled_is_unsupported(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no\n  such instruction")

    monkeypatch.setattr(torch, "compile", fail)
    compilation.start_compiler.cache_clear()
    with pytest.raises(Unsupported, match="even on a trivial function: no such instruction$"):
        suite.build_case(make_case("compiled"))


def test_before_anything_is_compiled_no_time_was_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    assert compilation.compile_seconds() == 0


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["run", "attention", "--out", "out.jsonl", "--case-budget", "300ms"]
    small = ["--set", "micro_batch=2", "--set", "seq_len=64", "--set", "head_size=16"]
    return run_command_line(*command, *small, *options, cwd=folder)


def read_records(folder: Path) -> dict[str, Record]:
    return {record.variant: record for record in read(folder / "out.jsonl").records}


@pytest.mark.slow
def test_all_variants_through_the_command_line(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    records = read_records(tmp_path)
    assert list(records) == VARIANTS
    for record in records.values():
        assert record.status == "ok"
        assert record.check is not None
        assert list(record.samples_ns) == ["forward", "backward"]
        assert record.conditions == {"dtype": "float32", "autocast": "off"}
        estimate = record.predicted_memory_bytes
        assert list(estimate) == PARTS
        resident_bytes = estimate["inputs"] + estimate["reference"]
        assert record.resident_bytes == pytest.approx(
            resident_bytes, rel=0.05
        )  # the compiler holds some
        assert set(record.memory) == {"forward", "backward"}
    assert records["plain"].facts == records["sdpa"].facts == {}
    assert records["compiled"].facts["compile_s"] > 0.1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set", "heads=0"], "heads is 0, but takes a whole number from 1 on"),
        (["--set", "dtype=float64"], "attention accepts only its own values of 'dtype'; use --f"),
    ],
)
def test_bad_values_get_one_sentence(tmp_path: Path, options: list[str], sentence: str) -> None:
    done = run(tmp_path, *options)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
