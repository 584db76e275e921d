"""Runs on disk: their content, writing and reading them, comparing two of them."""
