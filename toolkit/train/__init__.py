"""Train: drafting heads for a base model, from its own replies; data, training, cards, export.

In: a base model folder.   Out: folders of safetensors that toolkit.draft loads.
Knows nothing about: sglang, the command line. Import the modules; this package imports none.
"""
