"""Training jobs: model shapes, parameters, FLOPs, memory, MFU conventions. No torch."""
