"""Requests to completions."""

import os

# Threads of libgomp (torch's and the native path's) that have nothing to do spin, by default for some ten milliseconds, before
# they sleep: on a busy machine that takes the processor from whoever needs it. It reads this once, when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
