"""The command line: parse, call the library, print."""

import os
import sys


def main() -> None:
    """Run a command. The commands are imported here, so that Ctrl-C while they are imported prints no stack trace."""
    try:
        from .app import main as run
    except KeyboardInterrupt:
        print("secateurs: interrupted", file=sys.stderr, flush=True)
        os._exit(130)
    run()
