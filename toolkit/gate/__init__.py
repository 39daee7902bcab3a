"""Is it right? Faults planted on purpose, and what must catch them."""
