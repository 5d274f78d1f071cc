"""One script a throughput figure, against a named peer in the same run."""
