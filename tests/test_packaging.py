"""The core installs no torch and no plotting; what needs them says how to install them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flopwatch import __version__
from flopwatch.cli.main import cli
from flopwatch.errors import FlopwatchError
from flopwatch.lazy import EXTRAS, require
from flopwatch.records.record import encode

from .conftest import make_record
from .traces.trace_maker import TraceMaker, make_training_step

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HEAVY = ("scipy", "threadpoolctl", "torch", "transformers", "triton", "vl_convert")
BLOCKER = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""
JOB = ("--model", "7b", "--seq-len", "2048", "--hardware", "8xH100-SXM")
IN_THE_CORE = [
    ("check", "old.jsonl"),
    ("compare", "old.jsonl", "new.jsonl"),
    ("explain", "old.jsonl"),
    ("explain", "trace.json", "-o", "trace.html"),
    ("export", "old.jsonl", "--format", "pyperf", "-o", "pyperf.json"),
    ("import", "google.json", "-o", "imported.jsonl"),
    ("memory", "--model", "small"),
    ("mfu", "--formula"),
    ("models", "llama"),
    ("plan", *JOB),
    ("predict", *JOB, "--micro-batch", "4"),
    ("peaks", "--list"),
    ("peaks", "H100-SXM"),
    ("query", "select count(*) from records", "old.jsonl"),
    ("query", "select count(*) from cases", "published:mosaic"),
    ("report", "old.jsonl", "-o", "page.html"),
    ("plot", "old.jsonl", "-o", "plot.vl.json"),
    ("show", "old.jsonl"),
    ("show", "published"),
    ("show", "published:switchback", "--layout", "published"),
    ("explain", "published:mosaic"),
    ("export", "published:dyad", "--format", "flopwatch", "-o", "dyad.jsonl"),
    ("run", "--list"),
    ("run", "--new", "my_suite.py"),
    ("schema", "record"),
]
WITH_AN_EXTRA = [
    ("torch", "ab", "main", "--suite", "suite.py"),
    ("torch", "doctor"),
    ("torch", "peaks", "--quick"),
    ("torch", "profile", "--model", "small"),
    ("torch", "run", "activations", "--quick"),
    ("torch", "run", "activations", "--dry-run"),
    ("plots", "plot", "old.jsonl", "-o", "plot.png"),
]
GOOGLE = (
    '{"context": {}, "benchmarks": [{"name": "a", "iterations": 9, "real_time": 2.0, '
    '"time_unit": "ns"}]}'
)


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with records, from which heavy packages cannot be imported."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "blocker").mkdir()
    (folder / "blocker" / "sitecustomize.py").write_text(BLOCKER)
    samples_ns = [100.0 + n % 3 for n in range(20)]
    (folder / "old.jsonl").write_bytes(encode(make_record(samples_ns={"call": samples_ns})) + b"\n")
    slower = make_record(samples_ns={"call": [2 * ns for ns in samples_ns]})
    (folder / "new.jsonl").write_bytes(encode(slower) + b"\n")
    (folder / "google.json").write_text(GOOGLE)
    maker = TraceMaker()
    make_training_step(maker)
    maker.write(folder / "trace.json")
    return folder


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder / "blocker"), str(ROOT / "src")])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
    )


def test_every_command_is_tried() -> None:
    tried = {name for name, *_ in IN_THE_CORE} | {name for _, name, *_ in WITH_AN_EXTRA}

    # These fit for a while, by numpy alone.
    assert tried | {"calibrate", "validate"} == set(cli.commands)


COMMANDS = """
import contextlib, io, json, sys, traceback
from flopwatch.cli.main import main

for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
        except Exception:
            code = traceback.format_exc()
    print(json.dumps([arguments, code, said.getvalue()]))
"""


def run_commands(folder: Path, commands: Iterable[Sequence[str]]) -> list[tuple[str, Any, str]]:
    """Each with its exit code and what it says, one after another in the same process."""
    done = run_python(folder, "-c", COMMANDS, json.dumps([*commands]))
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [(" ".join(arguments), code, said) for arguments, code, said in found]


def test_core_commands_work_without_torch(light: Path) -> None:
    found = run_commands(light, IN_THE_CORE)
    assert len(found) == len(IN_THE_CORE)
    assert [(name, code, said) for name, code, said in found if code != 0] == []


def test_other_commands_say_what_to_install(light: Path) -> None:
    found = run_commands(light, [arguments for _, *arguments in WITH_AN_EXTRA])
    assert len(found) == len(WITH_AN_EXTRA)
    for (extra, *_), (name, code, said) in zip(WITH_AN_EXTRA, found, strict=True):
        assert code == 2, (name, code, said)
        assert said.splitlines()[-1].endswith(f"run: pip install 'flopwatch[{extra}]'"), name
        assert "Traceback" not in said, name


def test_a_command_in_a_process_of_its_own(light: Path) -> None:
    done = run_python(light, "-m", "flopwatch", *IN_THE_CORE[0])
    assert done.returncode == 0, done.stderr


def test_jobs_are_described_and_predicted_without_torch(light: Path) -> None:
    program = (
        "import flopwatch\n"
        "job = flopwatch.TrainingJob('7b', 2048, micro_batch=4)\n"
        "print(flopwatch.predict(job, '8xA100-80GB').tokens_per_s)\n"
        "print(flopwatch.plan(job, '8xA100-80GB').best[0].tokens_per_s)\n"
        "print(flopwatch.flops(job).per_token)\n"
        "print(flopwatch.memory(job, '8xA100-80GB').fits)\n"
        "print(flopwatch.mfu(job, mfu=0.5, hardware='8xA100-80GB').utilisations[0].mfu)\n"
    )
    done = run_python(light, "-c", program)

    assert done.returncode == 0, done.stderr
    *numbers, fits, mfu = done.stdout.splitlines()
    assert [float(number) > 0 for number in numbers] == [True] * 3
    assert (fits, float(mfu)) == ("False", pytest.approx(0.5))


def test_functions_are_timed_without_torch_and_tensors_are_not(light: Path) -> None:
    program = (
        "import flopwatch\n"
        "print(flopwatch.measure(lambda: sum(range(100)), budget_s=0.05))\n"
        "both = {'a': lambda: 1, 'b': lambda: 1}\n"
        "calls = [\n"
        "    lambda: flopwatch.compare(both, tolerance=0.1),\n"
        "    lambda: flopwatch.measure(both['a'], cache='cold'),\n"
        "    lambda: flopwatch.layers.swap,\n"
        "]\n"
        "import flopwatch.layers\n"
        "for call in calls:\n"
        "    try: call()\n"
        "    except ImportError as error: print(error)\n"
    )
    done = run_python(light, "-c", program)

    assert done.returncode == 0, done.stderr
    measured, *refused = done.stdout.splitlines()
    assert "after" in measured
    assert len(refused) == 3
    assert all(line.endswith("pip install 'flopwatch[torch]'") for line in refused)


def test_a_package_that_is_there_is_not_missed() -> None:
    require("torch")


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "no_such_package", "some")

    with pytest.raises(FlopwatchError, match=r"^this needs no_such_package.*'flopwatch\[some\]'$"):
        require("no_such_package")


def list_names(requirements: list[str]) -> set[str]:
    names = (re.match(r"[\w-]+(\[[\w,]+\])?", requirement) for requirement in requirements)
    return {name[0] for name in names if name}


def test_the_core_depends_on_these() -> None:
    assert list_names(PROJECT["dependencies"]) == {
        "click",
        "duckdb",
        "msgspec",
        "numpy",
        "psutil",
        "rich",
    }


def test_the_state_of_gpus_can_be_read_wherever_torch_is_installed() -> None:
    extras = PROJECT["optional-dependencies"]
    assert "nvidia-ml-py>=12; platform_system != 'Darwin'" in extras["torch"]
    assert list_names(extras["amd"]) == {"amdsmi"}


def test_every_package_of_an_extra_is_in_it() -> None:
    extras = PROJECT["optional-dependencies"]

    sold_as = {  # where a package is named otherwise than imported
        "vl_convert": "vl-convert-python",
        "mlflow": "mlflow-skinny",
        "prometheus_client": "prometheus-client",
    }
    for package, extra in EXTRAS.items():
        assert sold_as.get(package, package) in list_names(extras[extra])


def test_versions_agree() -> None:
    assert PROJECT["version"] == __version__
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_make_installs_the_pinned_versions() -> None:
    makefile = (ROOT / "Makefile").read_text()

    assert re.findall(r"PIP\) install (.*)", makefile) == [
        '-c constraints.txt -e ".[torch,plots]"',
        '-c constraints.txt -e ".[test]"',
    ]
    assert "://" not in makefile + (ROOT / "constraints.txt").read_text()


@pytest.mark.slow
def test_a_light_install_is_small_and_predicts(tmp_path: Path) -> None:
    """Downloads, unless pip is told where wheels are (PIP_NO_INDEX, PIP_FIND_LINKS)."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "light_install.py")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    print(done.stdout)

    size = re.match(r"environment: (\d+) MB", done.stdout)
    assert size is not None
    assert int(size[1]) < 300
    assert re.search(r"flopwatch predict: [\d.]+ s cold", done.stdout)
