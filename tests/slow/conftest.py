"""What every test of the command line uses."""

from commands import pictures, plain_terminal, rooflab  # noqa: F401  fixtures
