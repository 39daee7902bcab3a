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
    longer = [tokens for tokens in continuations if len(tokens) > 1]
    asks = []
    for tokens in longer:
        line = job.fork(root)
        line.advance(tokens[:-1])
        asks.append(Ask(line, len(tokens) - 1))
    answers = iter((yield asks) if asks else [])
    scores: Scores = []
    for tokens in continuations:
        rows = torch.cat([first, next(answers)]) if len(tokens) > 1 else first
        logprobs = torch.log_softmax(rows.float(), dim=-1)
        scores.append([float(logprobs[i, token]) for i, token in enumerate(tokens)])
    job.tell(scores)
