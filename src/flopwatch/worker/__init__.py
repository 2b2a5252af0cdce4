"""The child side of a run: build, check, warm up, sample."""
