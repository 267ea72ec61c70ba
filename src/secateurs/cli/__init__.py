"""The command line: parse, call the library, print."""

from .app import main

__all__ = ["main"]
