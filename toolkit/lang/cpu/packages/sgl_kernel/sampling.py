"""Probabilities [B, V] cut to their likeliest tokens and made to add up to one again.

Knows nothing about: temperature, draws.
"""

import torch


def top_k_renorm_prob(probs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """The top_k[b] likeliest tokens of each row; of equal ones at the edge all stay."""
    ranked = probs.sort(-1, descending=True).values
    edge = ranked.gather(1, (top_k.view(-1, 1).long() - 1).clamp(0, probs.shape[-1] - 1))
    return _normalised(probs.where(probs >= edge, 0))


def top_p_renorm_prob(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The likeliest tokens of each row that together reach top_p[b], the one that gets there included."""
    ranked, order = probs.sort(-1, descending=True)
    before = ranked.cumsum(-1) - ranked  # mass of what is likelier
    kept = torch.zeros_like(probs, dtype=torch.bool).scatter_(1, order, before < top_p.view(-1, 1))
    return _normalised(probs.where(kept, 0))


def _normalised(probs: torch.Tensor) -> torch.Tensor:
    return probs / probs.sum(-1, keepdim=True)
