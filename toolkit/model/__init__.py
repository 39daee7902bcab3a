"""A decoder-only transformer in plain torch, its weights and where they come from."""
