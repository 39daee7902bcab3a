"""Score loop: log-probabilities of given continuations after one prompt, the prompt computed once.

Knows nothing about: other requests. Result: a list for each continuation, one natural log a token, unmasked, temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from toolkit.engine.job import Ask, Job, Loop
from toolkit.engine.sequence import Sequence as Line

Scores = list[list[float]]


def score(job: Job, root: Line, continuations: Sequence[Sequence[int]]) -> Loop:
    """Feed every continuation less its last token on a fork of the prompt; the result is told."""
    (first,) = yield [Ask(root)]
    asks = []
    for tokens in continuations:
        if len(tokens) > 1:
            line = job.fork(root)
            line.advance(tokens[:-1])
            asks.append(Ask(line, len(tokens) - 1, tuple(tokens[1:])))
    later = iter((yield asks) if asks else [])
    begin = torch.log_softmax(first[0].float(), dim=-1)
    scores: Scores = [[float(begin[tokens[0]]), *(next(later).tolist() if len(tokens) > 1 else [])] for tokens in continuations]
    job.tell(scores)
