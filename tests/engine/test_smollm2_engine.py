"""The embedded engine with the real model: tokens equal transformers', records in a batch equal records alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.model.hf_reference import transformers
from tests.model.test_smollm2 import TEXTS
from toolkit.contracts import BeamParams, BeamResult, Completion, Done, Request, SamplingParams
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.grammar.types import grammar_of
from toolkit.model.store import resolve

pytestmark = pytest.mark.slow

PERSON = grammar_of(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "city": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
        },
        "required": ["name", "city", "age"],
        "additionalProperties": False,
    }
)
SHOTS = (
    'Text: Maria is 31 years old and lives in Madrid.\nJSON: {"name":"Maria","city":"Madrid","age":31}\n'
    'Text: Tom Smith is 12 years old and lives in Leeds.\nJSON: {"name":"Tom Smith","city":"Leeds","age":12}\n'
)
PEOPLE = {
    "Anna is 38 years old and lives in Rome.": ("Anna", "Rome", 38),
    "Jean is 71 years old and lives in Lyon.": ("Jean", "Lyon", 71),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine("smollm2", format="float32") as engine:
        yield engine
        assert engine.kv_blocks_in_use == 0


def test_64_greedy_tokens_of_five_prompts_decoded_together_equal_those_of_transformers(engine: EmbeddedEngine) -> None:
    """Transformers' likeliest token after the prompt and any of the engine's tokens is the engine's next: by induction, its own."""
    prompts = [engine.tokenizer.encode(text) for text in TEXTS]
    assert max(map(len, prompts)) > 1000  # and so beyond the rows of one pass
    greedy = SamplingParams(max_tokens=64, ignore_eos=True)
    requests = [Request(prompt=ids, id=str(place), sampling=greedy) for place, ids in enumerate(prompts)]
    found = {event.request_id: event.result for event in engine.generate(requests) if isinstance(event, Done)}
    reference = transformers().AutoModelForCausalLM.from_pretrained(resolve("smollm2"), dtype=torch.float32).eval()
    for place, ids in enumerate(prompts):
        result = found[str(place)]
        assert isinstance(result, Completion) and len(result.token_ids) == 64
        with torch.inference_mode():
            logits = reference(torch.tensor([[*ids, *result.token_ids[:-1]]]), logits_to_keep=64).logits[0]
        assert logits.argmax(-1).tolist() == list(result.token_ids)


def test_a_batch_of_records_extracts_what_each_text_says(engine: EmbeddedEngine) -> None:
    requests = [
        Request(prompt=f"{SHOTS}Text: {text}\nJSON: ", id=text, beam=BeamParams(width=4), grammar=PERSON) for text in PEOPLE
    ]
    found = {event.request_id: event.result for event in engine.generate(requests) if isinstance(event, Done)}
    for request in requests:
        result = found[request.id]
        assert isinstance(result, BeamResult)
        assert (result.value["name"], result.value["city"], result.value["age"]) == PEOPLE[request.id]
        (alone,) = [event.result for event in engine.generate([replace(request, id="alone")]) if isinstance(event, Done)]
        assert isinstance(alone, BeamResult)
        assert [h.token_ids for h in alone.alternatives] == [h.token_ids for h in result.alternatives]
    assert sum(result.usage.cached_tokens > 0 for result in found.values()) >= 1


def test_a_beam_never_scores_below_greedy_in_the_likelihood_it_maximises(engine: EmbeddedEngine) -> None:
    prompt = f"{SHOTS}Text: Kim, who is 29, moved to Seoul.\nJSON: "
    greedy, wide = (engine.beam(prompt, grammar=PERSON, width=width, alpha=0.0) for width in (1, 8))
    assert wide.sum_logprob >= greedy.sum_logprob - 1e-3
    assert wide.value == {"name": "Kim", "city": "Seoul", "age": 29}
