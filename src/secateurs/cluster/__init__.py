"""A collection over many machines: shards that are ordinary indexes, searched as one. docs/cluster.md."""
