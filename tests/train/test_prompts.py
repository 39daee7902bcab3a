"""Prompts: many, varied, the same for the same seed, and never about what the evaluation prompts are about."""

from __future__ import annotations

import random
import re
from collections import Counter

from toolkit.bench.promptsets import load
from toolkit.text.tokenizer import ByteTokenizer
from toolkit.train.prompts import DRAWN, STARTED, Prompts, expand, grammar, held_out, loops, starts_of_turns

SYMBOL = re.compile(r"\{([a-z_]+)\}")


def test_every_symbol_has_a_rule_and_every_rule_is_used() -> None:
    rules = grammar()
    used = {name for lines in rules.values() for line in lines for name in SYMBOL.findall(line)}
    assert used | {line.split()[1] for line in rules["prompt"]} | {"prompt"} == set(rules)


def test_the_grammar_has_more_prompts_than_training_asks_for() -> None:
    dice = random.Random(0)
    assert len({expand(grammar(), dice) for _ in range(12_000)}) > 9_000


def test_no_line_of_the_grammar_mentions_what_the_evaluation_is_about() -> None:
    assert [line for lines in grammar().values() for line in lines if held_out().search(line)] == []


def test_four_of_five_evaluation_prompts_are_about_held_out_topics() -> None:
    """Those of the other languages name them in their own words, the rest are kinds of work that training does not ask for."""
    texts = [text for kind, lines in load().items() for text in lines if kind != "languages"]
    assert sum(held_out().search(text) is not None for text in texts) >= 0.8 * len(texts)


def test_a_task_depends_on_seed_and_number_alone() -> None:
    prompts, again, other = (Prompts(ByteTokenizer(), seed) for seed in (3, 3, 4))
    assert [prompts.task(i) for i in (5, 1, 9)] == [again.task(i) for i in (5, 1, 9)]
    assert [prompts.task(i) for i in range(20)] != [other.task(i) for i in range(20)]


def test_the_model_writes_most_turns_and_most_replies_are_greedy() -> None:
    prompts = Prompts(ByteTokenizer(), 0)
    tasks = [prompts.task(i) for i in range(1000)]
    counts = Counter((task.turn_end >= 0, task.temperature == 0.0) for task in tasks)
    assert abs((counts[True, True] + counts[True, False]) / 1000 - DRAWN) < 0.05
    assert 0.5 < DRAWN < 1
    assert 0.65 < (counts[True, True] + counts[False, True]) / 1000 < 0.75


def test_a_drawn_turn_is_opened_and_closed_as_the_template_does() -> None:
    tokenizer = ByteTokenizer()
    task = next(task for task in map(Prompts(tokenizer, 0).task, range(100)) if task.turn_end >= 0 and len(task.ids) == 1)
    turn = tokenizer.encode("Hello")
    assert [*task.ids, *turn, task.turn_end, *task.opening] == tokenizer.chat([{"role": "user", "content": "Hello"}])


def test_most_drawn_turns_are_begun_as_people_begin() -> None:
    tokenizer = ByteTokenizer()
    tasks = [task for task in map(Prompts(tokenizer, 0).task, range(1000)) if task.turn_end >= 0]
    begun = [task for task in tasks if len(task.ids) > task.turn]
    assert abs(len(begun) / len(tasks) - STARTED) < 0.06
    plain = next(task for task in tasks if len(task.ids) == task.turn == 1)
    assert all(task.ids[: task.turn] == plain.ids for task in begun)
    assert len({task.ids[task.turn :] for task in begun}) > 80


def test_no_beginning_is_about_what_the_evaluation_prompts_are_about() -> None:
    starts = starts_of_turns()
    assert len(starts) > 100 and len(set(starts)) == len(starts)
    assert not [start for start in starts if held_out().search(start)]


def test_turns_that_are_short_broken_repetitive_or_held_out_are_refused() -> None:
    tokenizer = ByteTokenizer()
    prompts = Prompts(tokenizer, 0)
    good = "What is a good book about trains?"
    assert prompts.accept(tokenizer.encode(good))
    for bad in (
        "a?",
        "12 + 34 = 46; 1 + 2 = 3",
        "Why do volcanoes erupt in spring?",
        "word by word by word by word",
        "x" * 400,
    ):
        assert not prompts.accept(tokenizer.encode(bad)), bad
    assert not prompts.accept([*tokenizer.encode(good), 0xFF])


def test_a_loop_is_seen_when_its_tail_stood_there_before() -> None:
    assert loops([1, 2, 3, 4, 1, 2, 3, 4], 4)
    assert loops([9, 1, 2, 3, 7, 7, 7, 7, 7, 1, 2, 3], 3)
    assert not loops([1, 2, 3, 4, 1, 2, 3, 5], 4)
    assert not loops([1, 1, 1], 2)
