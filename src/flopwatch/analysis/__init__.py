"""What samples say: statistics, comparisons and verdicts."""
