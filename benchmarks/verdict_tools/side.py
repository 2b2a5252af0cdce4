"""One side of a pair: for hyperfine, with --calls, as a command that makes so many calls; without,
as a script of pyperf."""

from __future__ import annotations

import argparse
import sys

from verdict_tools.operations import OPERATIONS, Function, Pair, build_pair

FIELDS = {"operation": str, "percent": int, "rows": int, "seed": int}


def main() -> None:
    if "--calls" in sys.argv:
        call_often()
    else:
        measure_by_pyperf()


def call_often() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, required=True)
    add_arguments(parser)
    given = parser.parse_args()
    function = build_side(given)
    for _ in range(given.calls):
        function()


def measure_by_pyperf() -> None:
    import pyperf

    program = ("-m", "verdict_tools.side")
    runner = pyperf.Runner(program_args=program, add_cmdline_args=pass_on)
    add_arguments(runner.argparser)
    given = runner.parse_args()
    # Only the workers call it; the process that starts them needs no torch.
    function = build_side(given) if given.worker else (lambda: None)
    runner.bench_func("pair", function)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--side", choices=["a", "b"], required=True)
    for name, kind in FIELDS.items():
        choices = sorted(OPERATIONS) if name == "operation" else None
        parser.add_argument(f"--{name}", type=kind, choices=choices, required=True)


def build_side(given: argparse.Namespace) -> Function:
    pair = Pair(**{name: getattr(given, name) for name in FIELDS})
    return build_pair(pair)[given.side]


def pass_on(words: list[str], given: argparse.Namespace) -> None:
    """To pyperf's workers."""
    for name in ("side", *FIELDS):
        words += [f"--{name}", str(getattr(given, name))]


if __name__ == "__main__":
    main()
