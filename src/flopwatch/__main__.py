"""``python -m flopwatch``."""

from flopwatch.cli.main import main

main()
