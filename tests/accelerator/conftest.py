"""The device of these tests: built once, and given to processes of their own, never to pytest's,
where every other test would find it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.accelerator.device_build import NotBuilt, build_device, name_environment

collect_ignore = ["package"]  # on pytest's own path torch would load it

ROOT = Path(__file__).parent.parent.parent

OnDevice = Callable[..., Any]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def device_environment() -> dict[str, str]:
    pytest.importorskip("torch")
    try:
        return name_environment(build_device())
    except NotBuilt as reason:
        pytest.skip(f"the test accelerator cannot be built: {reason}")


@pytest.fixture(scope="session")
def device_host(device_environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.accelerator.device_host"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **device_environment},
    ) as host:
        yield host
        assert host.stdin is not None
        host.stdin.close()


@pytest.fixture
def on_device(device_host: subprocess.Popen[str]) -> OnDevice:
    """What a function of a test module returns in a process with the device."""

    def call(function: Callable[..., Any], *arguments: Any, **environment: Any) -> Any:
        request = {
            "module": function.__module__,
            "function": function.__name__,
            "arguments": arguments,
            "environment": {name: str(value) for name, value in environment.items()},
        }
        assert device_host.stdin is not None
        assert device_host.stdout is not None
        device_host.stdin.write(json.dumps(request) + "\n")
        device_host.stdin.flush()
        answer = json.loads(device_host.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["value"]

    return call


@pytest.fixture
def flopwatch(device_environment: dict[str, str], tmp_path: Path) -> Command:
    """The command line, where torch has the device."""

    def run(*arguments: str, **environment: Any) -> subprocess.CompletedProcess[str]:
        settings = {name: str(value) for name, value in environment.items()}
        return subprocess.run(
            [sys.executable, "-m", "flopwatch", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **device_environment, **settings},
            timeout=300,
            check=False,
        )

    return run


def read_records(folder: Path, suite: str) -> list[Mapping[str, Any]]:
    lines = (folder / "results" / f"{suite}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
