"""Pure functions on logits: filters, draws, beam scores."""
