"""The folder that `toolkit serve` puts on the PYTHONPATH of the server process, and of no other: each package in it is found by its own
name there (`sgl_kernel`, `triton`, `torchaudio`, `torchvision`), before the installed one.
"""
