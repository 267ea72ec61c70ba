"""Secateurs as a part of other systems: a short file for each, and an extra of the same name."""
