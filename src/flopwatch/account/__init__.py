"""What a training step computes, and how much of what the hardware could do that is."""
