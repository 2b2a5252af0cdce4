#!/usr/bin/env bash
# What `make bench` runs: a short tour of flopwatch at a size that suits a laptop, or the accelerators
# if there are any. Each stop is a command that you can repeat, its answer in a few lines, and what to
# try next. A stop that fails does not end the tour: the page has what the others found. Options are
# passed on to every `flopwatch run`: `bash benchmarks/tour.sh --threads 1`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
flopwatch=.venv/bin/flopwatch
results=results/tour
mkdir -p $results
export FLOPWATCH_PEAKS=$results/machine.peaks  # what the suites are compared with

# As wide as the terminal, and no wider than reads well.
columns=100
if [ -t 1 ]; then columns=$(tput cols 2>/dev/null || echo 100); fi
export COLUMNS=$((columns < 100 ? columns : 100))
bold= plain=
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$(tput bold || true) plain=$(tput sgr0 || true); fi

stop() {  # a heading, and the command that is run
    printf '\n%s%s%s\n$ flopwatch %s\n' "$bold" "$1" "$plain" "$2"
}

next() {
    printf 'next: flopwatch %s\n' "$1"
}

failed=()
attempt() {  # a command, whose failure is remembered for the end; an interrupt is the end
    $flopwatch "$@"
    local code=$?
    if [ $code -eq 130 ]; then exit 130; fi
    if [ $code -ne 0 ]; then failed+=("flopwatch $*"); fi
    return $code
}

echo "A tour in a few minutes: what this machine can do, what the suites find, and a page of it all."

stop "Is this machine fit for measuring?" "doctor"
attempt doctor && next "doctor -v"

stop "What can it do at best?" "peaks --quick -q"
attempt peaks --quick -q && next "peaks H100-SXM"

# Into a folder of its own, so that these quick results do not mix with careful ones; and with
# --rerun, since repeating the tour should measure again, where `flopwatch run` resumes.
while IFS=$'\t' read -r suite summary; do
    stop "$summary" "run $suite --quick -q"
    attempt run "$suite" --quick -q --rerun --out "$results/$suite.jsonl" "$@" </dev/null &&
        next "show $results/$suite.jsonl"
done < <($flopwatch run --list --json | .venv/bin/python -c \
    'import json, sys; [print(s["name"], s["summary"], sep="\t") for s in json.load(sys.stdin)]')

stop "Where does the time of a training step go?" "explain $results/steps.jsonl -q"
attempt explain $results/steps.jsonl -q &&
    next "explain $results/steps.jsonl --most 1"

hardware=8xA100-80GB,8xH100-SXM
job="--model 7b --seq-len 2048 --micro-batch 4 --hardware $hardware"
stop "How fast would a model of 7B parameters train on hardware that you don't have?" "predict $job"
attempt predict $job &&
    next "plan --model 7b --seq-len 2048 --hardware 64xH100-SXM"

stop "All of it as a page" "report $results/*.jsonl -o report.html"
attempt report $results/*.jsonl -o report.html &&
    next "check $results/*.jsonl"
echo
if [ ${#failed[@]} -gt 0 ]; then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
echo "Open report.html. For a function of your own: flopwatch run --new my_suite.py"
