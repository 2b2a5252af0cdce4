"""How results look: tables and progress."""
