"""A corpus to a collection in shards, on a Ray cluster."""
