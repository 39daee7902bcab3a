"""Native: the decoder as one C call a pass, int8 weights and 14-bit activations with exact integer sums.

In: a torch Decoder (packed once), ragged rows with lists of cache slots.   Out: hidden rows and logits, float32.
Knows nothing about: tokens as text, blocks, sequences. What is computed, and the layout of weights, is told in native.h.
Invariants: for one sequence every bit of its rows is the same whatever else is in the pass, however its prompt was cut, for
any number of threads and every kernel set. The package works without the compiled part: `library.missing()` says why it is
not there. Import the modules; this package imports none.
"""
