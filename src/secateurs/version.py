"""The version of the package, also written into every index."""

__version__ = "0.1.0"
