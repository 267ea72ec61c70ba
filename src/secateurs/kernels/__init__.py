"""Compiled code, each piece with its plain twin in the tests."""
