"""Runs as text: in the terminal and for export. Reads runs, knows no devices."""
