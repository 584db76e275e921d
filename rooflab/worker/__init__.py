"""The process that measures: its client, its server, and their messages."""
