"""Tool calls: what a model wrote to what it asks for, checked against the tools that were offered, and back."""
