"""One script a question beyond the paper."""
