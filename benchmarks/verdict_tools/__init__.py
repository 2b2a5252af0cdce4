"""Parts of benchmarks/verdicts.py and benchmarks/coverage.py."""
