"""Search: the beam loop over servers, with a harvest of its own and the costs of its requests.

Knows nothing about: servers, other requests.
"""

from __future__ import annotations

from dataclasses import replace

from toolkit.contracts import Done
from toolkit.engine.harvest import Harvest
from toolkit.engine.job import Job, Loop
from toolkit.engine.loops.beam import beam
from toolkit.engine.remote.rounds import Cost
from toolkit.engine.sequence import Sequence


def search(cost: Cost, notes: tuple[str, ...], job: Job, root: Sequence) -> Loop:
    """The beam loop with a harvest of its own, its result told when the search ends."""
    params = job.request.beam
    assert params is not None
    partly = job.grammar.partial if job.grammar else ()
    harvest = Harvest(params, job.tokenizer, job.request.grammar, room=job.max_tokens, partial=partly)
    yield from beam(job, root, harvest)
    tokens = harvest.answer_tokens
    found = harvest.result(cost.usage(job.usage(tokens)), job.timing(tokens))
    job.tell(Done(job.id, 0, replace(found, notes=(*found.notes, *notes))))
