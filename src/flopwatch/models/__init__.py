"""Causal language models to train: their shapes, what they count, how they are built."""
