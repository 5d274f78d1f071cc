"""The two questions that the paper leaves open, answered with numbers: see `__main__`."""
