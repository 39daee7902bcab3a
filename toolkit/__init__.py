"""Structured generation for SGLang programs: constrained beam search, validated JSON, an embedded engine."""
