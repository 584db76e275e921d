"""A report of runs as one HTML page, with its style and script inside."""
