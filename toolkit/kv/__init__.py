"""Paged key/value memory: blocks, tables, tensors, prefix cache."""
