"""What is measured and what limits it. Pure: plain values in, plain values out."""
