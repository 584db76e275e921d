"""What each of PyTorch's operations must do at least, by its definition."""
