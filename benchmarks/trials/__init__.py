"""The parts of the hostile trial: `python benchmarks/hostile.py`."""
