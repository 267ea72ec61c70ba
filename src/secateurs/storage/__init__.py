"""What is on disk: how it is laid out, written, read, checked and repaired."""
