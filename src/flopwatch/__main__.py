"""``python -m flopwatch``."""

from flopwatch.cli import main

main()
