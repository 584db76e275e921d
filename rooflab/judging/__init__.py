"""Judging code that nobody trusts: it runs in a process of its own."""
