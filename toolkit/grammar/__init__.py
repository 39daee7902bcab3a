"""Which token may come next."""
