"""Traces of torch.profiler, of whatever program: read, attributed, broken down and compared."""
