"""Model: decoders in plain torch, their files, and the folder that keeps converted ones.

In: a checkpoint (GGUF file, safetensors folder).   Out: hidden rows and logits.
Knows nothing about: tokens as text, sequences, sampling. Import the modules; this package imports none, so that the cheap
ones (store, fingerprint) load without torch.
"""
