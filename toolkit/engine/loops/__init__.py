"""Decode loops: plain, beam, score. Generators over a Job that know only the verbs of Sequence."""
