"""Devices: specifications with sources, clocks, memory, measured peaks, environment."""
