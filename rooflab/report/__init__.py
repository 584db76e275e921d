"""Runs as text: in the terminal and for export. Reads runs only, not devices."""
