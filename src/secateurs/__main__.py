"""`python -m secateurs` is the command line."""

from .cli import main

main()
