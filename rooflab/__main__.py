"""``python -m rooflab``."""

from rooflab.cli import main

main()
