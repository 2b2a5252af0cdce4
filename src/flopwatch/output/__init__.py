"""How results look: tables, plots, the page, progress."""
