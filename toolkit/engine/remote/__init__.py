"""Running SGLang servers as an engine, over HTTP alone: nothing of sglang is imported.

In one direction: engine -> rounds (HttpForward) and texts -> fleet -> connection. Beam searches are the embedded engine's own loop,
whose forward pass is one request to `/generate`.
"""
