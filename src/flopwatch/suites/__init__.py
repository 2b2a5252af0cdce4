"""Suites: what to measure, declared in plain Python."""
