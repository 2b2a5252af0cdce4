"""Records: what was measured, how it is stored, and how it is read back."""
