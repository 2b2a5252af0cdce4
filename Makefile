# Two commands: `make bench` shows what flopwatch does, `make test` proves that it works.
# Both need Python 3.11 and a C compiler, and make .venv on first use.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check -q

.PHONY: bench test test-packages test-all test-gpu check docs images fix figures clean

bench: .venv/.bench
	bash benchmarks/tour.sh

NEED_PACKAGES := tests/output/test_browser.py tests/slurm

# Without coverage, which doubles the time of every child process that imports torch; what needs
# packages of the system is in test-packages. What `check` finds is printed at the end: it runs beside the tests. On two cores, three
# processes: one or another waits for a limit or a device.
test: .venv/.test
	@mkdir -p results; $(MAKE) --no-print-directory check > results/check.log 2>&1 & check=$$!; \
	$(BIN)/pytest -m "not slow and not gpu" $(NEED_PACKAGES:%=--ignore=%) --numprocesses=3 --dist=loadgroup; \
	tests=$$?; wait $$check; checked=$$?; cat results/check.log; exit $$((tests + checked))

# What needs packages of the system, a browser and a Slurm with virtual nodes: installed where that is allowed,
# else skipped. And the site.
test-packages: .venv/.test
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -y -q chromium; } \
	  || echo "no chromium: tests of pages are skipped; apt-get install chromium, as root"
	@PATH=$$PATH:/usr/sbin command -v slurmctld >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -y -q slurm-wlm munge; } \
	  || echo "no Slurm: its tests are skipped; apt-get install slurm-wlm munge, as root"
	$(BIN)/pytest -m "not gpu" tests/output/test_browser.py
	$(BIN)/pytest tests/slurm --numprocesses=2 --dist=worksteal
	$(BIN)/pytest -m slow tests/test_docs.py

# The slow tests too, with coverage, which must start before the package is imported: without its own
# pytest plug-in.
test-all: .venv/.test check test-packages
	$(BIN)/pytest -p no:flopwatch -m "not gpu" --cov --cov-report=term

# What needs an accelerator, on a machine that has one: minutes, and results/gpu/*.jsonl to send to us.
test-gpu: .venv/.test
	$(BIN)/pytest -m gpu tests/gpu

check: .venv/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The documentation as a site that opens from disk: site/index.html. A link that leads nowhere is an error.
docs: .venv/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What the documentation shows: the notebook with its outputs, printed answers, the recording, the page, plots.
images: .venv/.test
	$(BIN)/python docs/tools/outputs.py --write
	$(BIN)/python docs/tools/run_notebook.py --write
	$(BIN)/python docs/tools/images.py

fix: .venv/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Every figure that the documentation states, measured one after the other (over two hours).
# Those of the kernels need Triton; rows.py is what the others share.
figures: .venv/.test
	for script in $(filter-out benchmarks/rows.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv results site report.html .mypy_cache .pytest_cache .ruff_cache .coverage

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.bench: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e ".[torch,plots]"
	touch $@

.venv/.test: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e ".[test]"
	touch $@
