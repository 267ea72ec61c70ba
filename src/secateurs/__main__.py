"""`python -m secateurs` is the command line."""

from .cli.app import main

main()
