"""Laws of speculation for every drafter of the table, in the engine: a new row gets them without new test code.

The tiny model in both formats x every row and its options x a chain and a tree x no grammar, a schema, a regex x one request
alone and four together, 200 requests a row at least: what comes is what plain decoding gives, and every block is free again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

import pytest

from tests.draft.sources import build, options_of
from tests.draft.test_laws import pools
from tests.engine.test_speculative import balanced, same
from toolkit.contracts import Completion, Done, Event, Failed, Grammar, Request, SamplingParams
from toolkit.draft.contract import DRAFTERS, Budget, Commit, Drafter, Source, Target
from toolkit.draft.tree import DraftTree
from toolkit.engine.embedded import EmbeddedEngine
from toolkit.engine.load import load
from toolkit.engine.pace import Pace
from toolkit.engine.pass_costs import PassCosts
from toolkit.errors import EngineError
from toolkit.kv.blocks import BlockPool
from toolkit.validate.check import Validator

PROMPTS = 200  # a row, at least
FORMATS = ("int8", "float32")
SHAPES: Mapping[str, Mapping[str, int]] = {"chain": {"tokens": 4}, "tree": {"tokens": 3, "nodes": 9}}
GRAMMARS = {
    "free": None,
    "schema": Grammar(
        "json_schema",
        '{"type":"object","properties":{"a":{"enum":["xy","xz"]},"b":{"type":"array","items":{"type":"integer"},"maxItems":3}},'
        '"required":["a","b"],"additionalProperties":false}',
    ),
    "regex": Grammar("regex", "[abc]{2,4}(-[abc]{1,3}){1,4}"),
}
BATCHES = (1, 4)
CELLS = list(product(SHAPES, GRAMMARS, BATCHES))
ABSENT = {name for name in DRAFTERS if find_spec(DRAFTERS[name].partition(":")[0]) is None}  # rows without a module yet
ABSENT |= {name for name in DRAFTERS if set(name.split("+")) & ABSENT}


def rows() -> Iterator[Any]:
    for name in DRAFTERS:
        for options in options_of(name):
            shown = "-".join([name, *(f"{key}={value}" for key, value in options.items())])
            yield pytest.param((name, options), id=shown, marks=[pytest.mark.skipif(name in ABSENT, reason="no module yet")])


class Home(NamedTuple):
    """An engine, its target, and what plain decoding has given so far."""

    engine: EmbeddedEngine
    target: Target
    plain: dict[tuple[str, int], list[Completion]]


@pytest.fixture(scope="module", params=FORMATS)
def home(request: pytest.FixtureRequest) -> Iterator[Home]:
    """Prefix cache off: what a request finds there must not decide whether its rows are computed as before."""
    loaded = load("tiny", device="cpu", dtype="float32", format=request.param)
    target = Target(
        loaded.decoder, loaded.torch, loaded.tokenizer, loaded.mark, f"tiny-{request.param}", loaded.tokenizer.vocab_size
    )
    with EmbeddedEngine("tiny", format=request.param, kv_blocks=512, block_size=4, prefix_cache=False) as engine:
        yield Home(engine, target, {})


class Row(NamedTuple):
    name: str
    options: Mapping[str, Any]
    home: Home
    source: Source


@pytest.fixture(scope="module", params=rows())
def row(request: pytest.FixtureRequest, home: Home) -> Row:
    name, options = request.param
    return Row(name, options, home, build(name, home.target, options))


@pytest.fixture(autouse=True)
def every_block_is_free(request: pytest.FixtureRequest) -> Iterator[None]:
    """The engine's, and those of pools that a drafter keeps for itself."""
    yield
    if "row" in request.fixturenames:
        row: Row = request.getfixturevalue("row")
        assert row.home.engine.kv_blocks_in_use == 0
        for pool in [row.home.engine._forward.pool, *pools(row.source)]:
            assert pool.in_use == 0
            pool.check()


class Watched:
    """A source that notes who was opened and closed, and whether drafts were drawn."""

    def __init__(self, source: Source) -> None:
        self.name, self.needs_hidden, self.lossy, self.cost = source.name, source.needs_hidden, source.lossy, source.cost
        self.source, self.draw, self.chances = source, source.draw, source.chances
        self.opened: list[WatchedDrafter] = []

    def open(self, seed: int) -> Drafter:
        self.opened.append(WatchedDrafter(self.source.open(seed)))
        return self.opened[-1]

    @property
    def has_drawn(self) -> bool:
        return any(drafter.has_drawn for drafter in self.opened)


class WatchedDrafter:
    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.has_drawn = False
        self.closed = 0

    def observe(self, commit: Commit) -> None:
        self.drafter.observe(commit)

    def propose(self, budget: Budget) -> DraftTree:
        tree = self.drafter.propose(budget)
        self.has_drawn |= tree.q is not None
        return tree

    def close(self) -> None:
        self.drafter.close()
        self.closed += 1


def request_of(number: int, grammar: str) -> Request:
    """Settings of all kinds together, drawn by the number; half of the texts keep to a few letters, so that they repeat."""
    dice = random.Random(number)
    sampling = SamplingParams(
        max_tokens=dice.choice([3, 10, 16, 20]),
        temperature=dice.choice([0.0, 0.0, 0.7, 1.0]),
        top_k=dice.choice([0, 0, 12]),
        top_p=dice.choice([1.0, 0.9]),
        min_p=dice.choice([0.0, 0.02]),
        repetition_penalty=dice.choice([1.0, 1.0, 1.3]),
        presence_penalty=dice.choice([0.0, 0.4]),
        frequency_penalty=dice.choice([0.0, 0.3]),
        logit_bias={97 + i: 9.0 for i in range(4)} if dice.random() < 0.5 else {},
        stop=dice.choice([(), (), ("ab", "\x10"), ("aab", "zz")]),
        stop_ids=tuple(range(200, 230)) if dice.random() < 0.3 else (),
        ignore_eos=dice.random() < 0.3,
        min_tokens=dice.choice([0, 0, 3]),
        seed=number,
        logprobs=dice.choice([None, None, 2]),
        n=dice.choice([1, 1, 1, 2]),
    )
    prompt = "".join(dice.choice("abcd") for _ in range(dice.randint(1, 12)))
    return Request(prompt=prompt, sampling=sampling, grammar=GRAMMARS[grammar], trace=True)


def run(home: Home, source: Any, shape: str, requests: Sequence[Request]) -> list[list[Completion]]:
    """The samples of every request."""
    home.engine._source, home.engine._pace = source, Pace(PassCosts(), **SHAPES[shape])
    found: dict[str, dict[int, Completion]] = {}
    for event in home.engine.generate(replace(each, id=f"{i:04}") for i, each in enumerate(requests)):
        assert not isinstance(event, Failed), event
        if isinstance(event, Done):
            assert isinstance(event.result, Completion)
            found.setdefault(event.request_id, {})[event.index] = event.result
    return [[samples[index] for index in sorted(samples)] for _, samples in sorted(found.items())]


def plain(home: Home, grammar: str, number: int) -> list[Completion]:
    if (grammar, number) not in home.plain:
        (home.plain[grammar, number],) = run(home, None, "chain", [request_of(number, grammar)])
    return home.plain[grammar, number]


def numbers_of(row: Row, cell: int) -> range:
    """The requests of a cell: over all formats, options and cells of a row PROMPTS at least, no two cells the same."""
    options = list(options_of(row.name))
    size = -(-PROMPTS // (len(FORMATS) * len(options) * len(CELLS)))
    form = row.home.target.model.removeprefix("tiny-")
    place = (FORMATS.index(form) * len(options) + options.index(row.options)) * len(CELLS) + cell
    return range(place * size, (place + 1) * size)


@pytest.mark.parametrize("cell", range(len(CELLS)), ids=["-".join(map(str, cell)) for cell in CELLS])
def test_it_gives_what_plain_decoding_gives(row: Row, cell: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, grammar, batch = CELLS[cell]
    numbers = numbers_of(row, cell)
    requests = [request_of(number, grammar) for number in numbers]
    monkeypatch.setattr("toolkit.engine.embedded.IN_FLIGHT", batch)
    watched = Watched(row.source)
    answers = run(row.home, watched, shape, requests)
    assert len(answers) == len(requests)
    assert [drafter.closed for drafter in watched.opened] == [1] * sum(each.sampling.n for each in requests)
    for number, request, samples in zip(numbers, requests, answers, strict=True):
        expected = plain(row.home, grammar, number)
        if request.sampling.temperature == 0 or not watched.has_drawn:
            assert all(same(a, b) for a, b in zip(samples, expected, strict=True)), request
        for sample in samples:
            keeps_its_word(request, sample)
        if request.sampling.n == 1:
            usage = samples[0].usage
            made = usage.steps + usage.accepted + usage.appended - usage.trimmed - usage.discarded
            assert usage.output_tokens == len(samples[0].token_ids) == made
            if not samples[0].incidents:  # a text that was read again has no trace of that
                balanced(samples[0])


def keeps_its_word(request: Request, sample: Completion) -> None:
    """What was asked for holds, whatever was drawn."""
    params = request.sampling
    assert sample.notes == ()
    assert len(sample.token_ids) <= params.max_tokens
    assert all(stop not in sample.text for stop in params.stop)
    ends = {*params.stop_ids, *(() if params.ignore_eos else (256,))}
    assert not ends & set(sample.token_ids[: max(params.min_tokens, len(sample.token_ids) - 1)])
    if request.grammar is not None and sample.finish_reason == "grammar" and sample.matched_stop is None:
        assert sample.valid is not False
        assert Validator(request.grammar).check(sample.text).valid


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [name for name in DRAFTERS if name not in ABSENT])
def test_guesses_are_taken_now_and_then(home: Home, name: str, shape: str) -> None:
    """Or else the laws would hold for nothing. Heads are random here: one of a row's options is enough."""
    for options in options_of(name):
        row = Row(name, options, home, build(name, home.target, options))
        own = SamplingParams(max_tokens=40, ignore_eos=True)
        kept = replace(own, logit_bias={97: 12.0, 98: 11.0})  # texts that repeat themselves, for those who copy
        accepted, liked = accepted_of(row, shape, own, kept)
        warm = replace(own, temperature=1.0, seed=1, logit_bias={token: 12.0 for token, _ in liked.most_common(6)})
        if accepted + accepted_of(row, shape, warm, warm)[0] > 0:
            return
    pytest.fail("no guess of any option was taken")


def accepted_of(row: Row, shape: str, *params: SamplingParams) -> tuple[int, Counter[int]]:
    """Tokens accepted in some texts, and how often each was proposed."""
    requests = [Request(prompt="abababbab" + "ab" * i, sampling=each, trace=True) for i in range(2) for each in params]
    samples = [sample for (sample,) in run(row.home, row.source, shape, requests)]
    proposed = Counter(token for sample in samples for each in sample.trace for token in each.tokens)
    return sum(sample.usage.accepted for sample in samples), proposed


@pytest.mark.parametrize("after", [1, 4, 9])
def test_a_cancelled_request_leaves_nothing_behind(row: Row, after: int) -> None:
    watched = Watched(row.source)
    row.home.engine._source, row.home.engine._pace = watched, Pace(PassCosts(), **SHAPES["tree"])
    sampling = SamplingParams(max_tokens=300, ignore_eos=True, n=2, temperature=1.0, seed=after)
    ended = list(cancelling(row.home.engine, Request(prompt="abab", id="gone", sampling=sampling), after))
    assert [event.result.finish_reason for event in ended if isinstance(event, Done)] == ["cancelled"] * 2  # type: ignore[union-attr]
    assert [drafter.closed for drafter in watched.opened] == [1, 1]


def cancelling(engine: EmbeddedEngine, request: Request, after: int) -> Iterator[Event]:
    for count, event in enumerate(engine.generate([request])):
        if count == after:
            engine.cancel(request.id)
        yield event


@pytest.mark.parametrize("takes", [0, 2, 7])
def test_a_drafter_without_a_free_block_is_switched_off_and_the_text_stays(
    row: Row, takes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = pools(row.source)
    if not private:
        pytest.skip("it keeps no keys and values of its own")
    number = 3
    expected = plain(row.home, "free", number)
    take, left = BlockPool.take, takes

    def failing(pool: BlockPool) -> int:
        nonlocal left
        if any(pool is each for each in private):
            left -= 1
            if left < 0:
                raise EngineError("no block is left")
        return take(pool)

    monkeypatch.setattr(BlockPool, "take", failing)
    (samples,) = run(row.home, row.source, "tree", [request_of(number, "free")])
    for a, b in zip(samples, expected, strict=True):
        assert all("switched off" in note and "no block is left" in note for note in a.notes)
        assert same(replace(a, notes=()), b)


@pytest.mark.parametrize("passes", [2, 5])
def test_a_pass_of_the_target_that_fails_ends_the_request_and_frees_everything(
    row: Row, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, left = row.home.engine._forward, passes
    hidden = forward._hidden

    def failing(*args: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("the machine is tired")
        return hidden(*args)

    monkeypatch.setattr(forward, "_hidden", failing)
    watched = Watched(row.source)
    row.home.engine._source, row.home.engine._pace = watched, Pace(PassCosts(), **SHAPES["tree"])
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    events = list(row.home.engine.generate([Request(prompt="abab", sampling=sampling)]))
    assert isinstance(events[-1], Failed)
    assert "the machine is tired" in str(events[-1].error)
    assert [drafter.closed for drafter in watched.opened] == [1]


def test_the_requests_are_of_all_kinds() -> None:
    kinds = Counter[str]()
    for number in range(PROMPTS):
        params = request_of(number, "free").sampling
        kinds.update(
            greedy=params.temperature == 0, drawn=params.temperature > 0, stopped=bool(params.stop), late=params.min_tokens > 0,
            penalised=params.repetition_penalty > 1, both=bool(params.stop) and params.min_tokens > 0, scored=bool(params.logprobs),
        )  # fmt: skip
    assert min(kinds.values()) > 15, kinds
