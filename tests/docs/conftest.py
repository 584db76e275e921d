"""The pages run command lines as the tests of the command line do."""

from commands import pictures, plain_terminal, rooflab  # noqa: F401  fixtures
