"""Triton kernels, one module for each layer. Importing one needs Triton."""
