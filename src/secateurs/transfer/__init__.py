"""Data out of and into an index: exports, and embeddings that were made elsewhere."""
