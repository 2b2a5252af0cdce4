"""Results laid out as others have published theirs."""
