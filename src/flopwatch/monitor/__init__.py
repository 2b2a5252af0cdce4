"""A monitor for any training loop: `flopwatch.Monitor`."""
