"""Runs on disk: what they hold, how they are written and read, how two of them compare."""
