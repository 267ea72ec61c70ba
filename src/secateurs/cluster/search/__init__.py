"""A collection in shards, searched and changed as one index."""
