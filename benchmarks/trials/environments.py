"""Odd environments: no HOME, another locale, closed descriptors, low limits, full disks.

Each is a line of shell around one of a few ordinary commands. Whatever the surroundings, a command
ends in time, with a documented exit code, without a traceback, and where it refuses (exit code 2)
with a sentence of its own.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trials.trial import CODES, FLOPWATCH, Done, Outcome, run

SUITE = """
import flopwatch

suite = flopwatch.Suite("tiny", axes={"n": [1]}, variants=["a", "b"])


@suite.build
def build(case):
    return lambda: sum(range(100))
"""
RUN = "run tiny.py --out out.jsonl --case-budget 20ms --timeout 20s --memory-limit 2G"
SHOW = "show published:dyad"
PREDICT = "predict --model 7b --seq-len 2048 --micro-batch 4 --hardware 8xA100-80GB"
QUERY = 'query "SELECT 1" tiny.jsonl'
LAYERS = (
    "run switchback --filter level=layer --filter shape=768x3072 --filter tokens=64 --quick "
    "--out out.jsonl --case-budget 20ms"
)
REPORT = "report published:dyad -o page.html"


@dataclass(frozen=True, kw_only=True, slots=True)
class Odd:
    command: str
    before: str = ""
    """Shell, in front of the command."""
    after: str = ""
    """Shell, behind it: redirections."""
    codes: tuple[int, ...] = CODES
    is_mute: bool = False
    """Whether there is nowhere to say anything."""


ODD: dict[str, Odd] = {
    # Where things are
    "no HOME": Odd(command=RUN, before="unset HOME;", codes=(0,)),
    "HOME is empty": Odd(command=RUN, before="export HOME=;", codes=(0,)),
    "HOME is a file": Odd(command=RUN, before="export HOME=/dev/null;", codes=(0,)),
    "HOME is not there": Odd(command=LAYERS, before="export HOME=/no/such/home;", codes=(0,)),
    "no HOME, kernels": Odd(command=LAYERS, before="unset HOME;", codes=(0,)),
    "cache is relative": Odd(command=LAYERS, before="export XDG_CACHE_HOME=here;", codes=(0,)),
    "cache is a file": Odd(command=LAYERS, before="export XDG_CACHE_HOME=/dev/null;", codes=(0,)),
    "cache is open to all": Odd(
        command=LAYERS,
        before="mkdir -m 777 cache; chmod 777 cache; export XDG_CACHE_HOME=$PWD/cache;",
        codes=(0,),
    ),
    "TMPDIR is not there": Odd(command=RUN, before="export TMPDIR=/no/such/folder;"),
    "folder was removed": Odd(
        command=SHOW, before="mkdir gone; cd gone; rmdir ../gone;", codes=(0, 2)
    ),
    "folder was removed, run": Odd(
        command="run activations --quick", before="mkdir gone; cd gone; rmdir ../gone;"
    ),
    # As the installed `flopwatch` is started: `python -m` looks for modules in this folder first.
    "modules of the same names": Odd(
        command=RUN,
        before="for name in queue random json types; do echo 'raise 1' > $name.py; done; "
        "export PYTHONSAFEPATH=1;",
        codes=(0,),
    ),
    # Languages
    "C locale": Odd(command=SHOW, before="export LC_ALL=C PYTHONUTF8=0;", codes=(0,)),
    "POSIX locale, run": Odd(command=RUN, before="export LC_ALL=POSIX PYTHONUTF8=0;", codes=(0,)),
    "ASCII output": Odd(command=SHOW, before="export PYTHONIOENCODING=ascii;", codes=(0,)),
    "ASCII output, run": Odd(command=RUN, before="export PYTHONIOENCODING=ascii;", codes=(0,)),
    "ASCII output, predict": Odd(command=PREDICT, before="export PYTHONIOENCODING=ascii;"),
    "unknown locale": Odd(command=SHOW, before="export LC_ALL=xx_YY.nothing;", codes=(0,)),
    "unknown encoding": Odd(command=REPORT, before="export LC_ALL=C PYTHONUTF8=0;", codes=(0,)),
    # Python
    "PYTHONOPTIMIZE=2": Odd(command=RUN, before="export PYTHONOPTIMIZE=2;", codes=(0,)),
    "PYTHONOPTIMIZE=2, help": Odd(
        command="run --help", before="export PYTHONOPTIMIZE=2;", codes=(0,)
    ),
    "warnings are errors": Odd(command=SHOW, before="export PYTHONWARNINGS=error;", codes=(0,)),
    "PYTHONSAFEPATH": Odd(command=RUN, before="export PYTHONSAFEPATH=1;", codes=(0,)),
    "PYTHONHASHSEED": Odd(command=RUN, before="export PYTHONHASHSEED=1;", codes=(0,)),
    # Terminals
    "dumb terminal": Odd(command=RUN, before="export TERM=dumb;", codes=(0,)),
    "no terminal": Odd(command=SHOW, before="unset TERM;", codes=(0,)),
    "one column": Odd(command=SHOW, before="export COLUMNS=1;", codes=(0,)),
    "columns of no number": Odd(command=SHOW, before="export COLUMNS=wide;", codes=(0,)),
    "columns of many digits": Odd(command=SHOW, before="export COLUMNS=99999999999;", codes=(0,)),
    "columns below zero": Odd(command=SHOW, before="export COLUMNS=-5;", codes=(0,)),
    # Descriptors and disks
    "stdout is closed": Odd(command=SHOW, after=">&-"),
    "stdout is closed, run": Odd(command=RUN, after=">&-", codes=(0,)),
    "stdin is closed": Odd(command=RUN, after="<&-", codes=(0,)),
    "stderr is closed": Odd(command=RUN, after="2>&-", is_mute=True, codes=(0,)),
    "all are closed": Odd(command=RUN, after="<&- >&- 2>&-", is_mute=True),
    "stdout is full": Odd(command=SHOW, after="> /dev/full", codes=(1, 2)),
    "stdout is full, JSON": Odd(command=f"{SHOW} --json", after="> /dev/full", codes=(1, 2)),
    "stdout is full, run": Odd(command=RUN, after="> /dev/full", codes=(0, 1, 2)),
    "stderr is full": Odd(command=RUN, after="2> /dev/full", is_mute=True, codes=(0, 1, 2)),
    "stdout is a broken pipe": Odd(command=SHOW, after="| true", codes=(0,)),
    "results on a full disk": Odd(
        command="run tiny.py --out /dev/full --case-budget 20ms", codes=(2,)
    ),
    "page on a full disk": Odd(command="report published:dyad -o /dev/full", codes=(2,)),
    "plot on a full disk": Odd(command="plot published:dyad -o /dev/full", codes=(2,)),
    # Limits
    "few open files": Odd(command=RUN, before="ulimit -n 24;"),
    "no open files": Odd(command=SHOW, before="ulimit -n 8;"),
    "small files": Odd(command=RUN, before="ulimit -f 1;"),
    "small address space": Odd(command=RUN, before="ulimit -v 2000000;"),
    "small stack": Odd(command=RUN, before="ulimit -s 512;", codes=(0, 1, 2)),
    "no core": Odd(command=RUN, before="ulimit -c 0;", codes=(0,)),
    # Compilers and threads
    "CXX is not there": Odd(command=LAYERS, before="export CXX=/no/such/compiler;", codes=(0,)),
    "CXX fails": Odd(command=LAYERS, before="export CXX=false XDG_CACHE_HOME=$PWD;", codes=(0,)),
    "CXX makes nothing": Odd(
        command=LAYERS, before="export CXX=true XDG_CACHE_HOME=$PWD;", codes=(0,)
    ),
    "CXX has an open quote": Odd(
        command=LAYERS, before='export CXX="g++ \'x" XDG_CACHE_HOME=$PWD;', codes=(0,)
    ),
    "CXX is blank": Odd(command=LAYERS, before="export CXX='  ';", codes=(0,)),
    "CXX is a folder": Odd(command=LAYERS, before="export CXX=/tmp;", codes=(0,)),
    "no threads": Odd(command=RUN, before="export OMP_NUM_THREADS=0;", codes=(0,)),
    "threads of no number": Odd(command=RUN, before="export OMP_NUM_THREADS=many;", codes=(0,)),
    # Ranks
    "WORLD_SIZE=0": Odd(command=RUN, before="export RANK=0 WORLD_SIZE=0;"),
    "WORLD_SIZE of no number": Odd(command=RUN, before="export RANK=0 WORLD_SIZE=two;"),
    "RANK below zero": Odd(command=RUN, before="export RANK=-1 WORLD_SIZE=2;"),
    "RANK beyond WORLD_SIZE": Odd(
        command=RUN,
        before="export RANK=5 WORLD_SIZE=2 LOCAL_RANK=5 LOCAL_WORLD_SIZE=2 "
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=29555 TORCHELASTIC_RUN_ID=x;",
        codes=(2,),
    ),
    "MASTER_PORT=65535": Odd(
        command=RUN,
        before="export RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=65535 TORCHELASTIC_RUN_ID=x;",
    ),
    "port of no number": Odd(
        command=RUN,
        before="export RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=29555 FLOPWATCH_PORT=door TORCHELASTIC_RUN_ID=x;",
    ),
    # Files of flopwatch's own
    "peaks are a device": Odd(command=RUN, before="export FLOPWATCH_PEAKS=/dev/zero;"),
    "peaks are a folder": Odd(command=RUN, before="export FLOPWATCH_PEAKS=/tmp;"),
    "peaks are garbage": Odd(
        command=RUN, before="echo '{]' > peaks; export FLOPWATCH_PEAKS=$PWD/peaks;"
    ),
    "calibration is a device": Odd(
        command=PREDICT, before="export FLOPWATCH_CALIBRATION=/dev/zero;"
    ),
    # Arguments
    "rows without an end": Odd(command="predict --rows /dev/zero", codes=(2,)),
    "results without an end": Odd(command="show /dev/zero", codes=(2,)),
    "results are a folder": Odd(command="show /tmp", codes=(2,)),
    "results may not be read": Odd(command="show /proc/self/mem", codes=(2,)),
    "seed beyond 64 bits": Odd(command=f"{RUN} --seed {2**70}", codes=(2,)),
    "seed of many digits": Odd(command=f"{RUN} --seed {'9' * 5000}", codes=(2,)),
    "suite is a device": Odd(command="run /dev/zero", codes=(2,)),
    "suite is a folder": Odd(command="run /tmp", codes=(2,)),
    "suite has no read permission": Odd(command="run /proc/self/mem", codes=(2,)),
}


def try_environment(name: str) -> Outcome:
    odd = ODD[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "tiny.py").write_text(SUITE)
        (folder / "tiny.jsonl").write_text("")
        line = f"{odd.before} {shlex.join(FLOPWATCH)} {odd.command} {odd.after}"
        done = run(["bash", "-c", line], folder)
    return Outcome(part="environments", name=name, failures=tuple(judge(done, odd)))


def judge(done: Done, odd: Odd) -> Iterator[str]:
    yield from done.list_failures(odd.codes)
    if done.code == 2 and not odd.is_mute and not says_why(done.err):
        yield f"no sentence: {done.err[-200:]!r}"


def says_why(err: str) -> bool:
    return any(line.startswith(("flopwatch: ", "Error: ")) for line in err.splitlines())
