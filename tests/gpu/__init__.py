"""What only a machine with an accelerator can prove: `make test-gpu`."""
