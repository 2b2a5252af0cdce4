"""The cost model: predictions, plans, calibration and scores. No torch."""
