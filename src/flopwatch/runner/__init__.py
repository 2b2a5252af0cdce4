"""The parent side of a run: schedule, budget, resume, processes, ranks, records. No torch."""
