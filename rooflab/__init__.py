"""rooflab: how close is a matrix-multiply kernel to what this machine can do?"""

__version__ = "0.1.0"
