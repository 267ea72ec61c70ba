"""How an embedding is kept: one file per store."""
