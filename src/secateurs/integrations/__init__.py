"""Secateurs inside other people's systems: one short file each, and an extra of the same name."""
