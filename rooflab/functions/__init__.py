"""Functions: any callable with the arguments that it was given, timed in the caller's process."""
