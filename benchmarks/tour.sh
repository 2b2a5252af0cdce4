#!/usr/bin/env bash
# What `make bench` runs: a short tour of all suites at a size that suits a laptop.
set -euo pipefail
cd "$(dirname "$0")/.."
flopwatch=.venv/bin/flopwatch

echo "== flopwatch doctor"
$flopwatch doctor

# Repeating the tour measures again: --rerun, where plain `flopwatch run` would resume.
for suite in $($flopwatch list --json | .venv/bin/python -c \
    'import json, sys; print(*(suite["name"] for suite in json.load(sys.stdin)))'); do
    echo "== flopwatch run $suite --quick"
    $flopwatch run "$suite" --quick --rerun
done

$flopwatch report results/*.jsonl -o report.html
