#!/usr/bin/env bash
# What `make bench` runs: a short tour of all suites at a size that suits a laptop.
set -euo pipefail
cd "$(dirname "$0")/.."
flopwatch=.venv/bin/flopwatch

echo "== flopwatch doctor"
$flopwatch doctor

mkdir -p results/tour
export FLOPWATCH_PEAKS=results/tour/machine.peaks  # what the suites are compared with

echo "== flopwatch peaks --quick"
$flopwatch peaks --quick

# Into a folder of its own, so that these quick results do not mix with careful ones; and with
# --rerun, since repeating the tour should measure again, where `flopwatch run` resumes.
for suite in $($flopwatch run --list --json | .venv/bin/python -c \
    'import json, sys; print(*(suite["name"] for suite in json.load(sys.stdin)))'); do
    echo "== flopwatch run $suite --quick"
    $flopwatch run "$suite" --quick --rerun --out "results/tour/$suite.jsonl"
done

echo "== flopwatch explain results/tour/steps.jsonl --most 1"
$flopwatch explain results/tour/steps.jsonl --most 1

echo "== flopwatch predict --model 7b --seq-len 2048 --hardware 8xA100-80GB,8xH100-SXM --micro-batch 4"
$flopwatch predict --model 7b --seq-len 2048 --hardware 8xA100-80GB,8xH100-SXM --micro-batch 4

$flopwatch report results/tour/*.jsonl -o report.html
