"""Problems, precisions, ceilings and measurements. Pure: plain values in, plain values out."""
