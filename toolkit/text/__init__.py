"""Strings to token ids and back, chat templates."""
