"""Programs: recording, counting and grouping of what a process launches."""
