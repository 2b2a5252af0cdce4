"""The command line in this process: what `python -m flopwatch` does, without an interpreter that
imports everything anew, and with workers from servers that are warm (`warm_servers`)."""

from __future__ import annotations

import sys
from contextlib import chdir
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from click.testing import CliRunner

from flopwatch.cli.main import main


def run_command_line(*arguments: str, cwd: Path) -> CompletedProcess[str]:
    with (
        chdir(cwd),
        pytest.MonkeyPatch.context() as patch,
        CliRunner().isolation() as (out, err, _),
    ):
        patch.setattr(sys, "argv", ["flopwatch", *arguments])
        code: object = None
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
        assert isinstance(code, int)
        printed, said = out.getvalue().decode(), err.getvalue().decode()
    return CompletedProcess(arguments, code, printed, said)
