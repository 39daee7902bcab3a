from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import InputError, UnsupportedError, UsageError
from toolkit.text.tokenizer import ByteTokenizer, HFTokenizer, byte_map, load_tokenizer

MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w"), ("ð", "Ł")]


def tokenizer_json(**model: Any) -> dict[str, Any]:
    vocabulary = {char: i for i, char in enumerate(byte_map())}
    vocabulary |= {"".join(pair): 256 + i for i, pair in enumerate(MERGES)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": None, "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "added_tokens": [
            {"id": 261, "content": "<|im_start|>", "special": True, **flags},
            {"id": 262, "content": "<|im_end|>", "special": True, **flags},
            {"id": 263, "content": "<think>", "special": False, **flags},
        ],
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary, "merges": MERGES, **model,
        },
    }  # fmt: skip


def write(folder: Path, tokenizer: object, **others: object) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    for name, data in others.items():
        (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> HFTokenizer:
    folder = tmp_path_factory.mktemp("small")
    settings = {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>"}
    generation = {"eos_token_id": [262, 261]}
    return load_tokenizer(
        write(folder, tokenizer_json(), tokenizer_config=settings, generation_config=generation, config={"vocab_size": 272})
    )


def test_merges_apply_and_nothing_is_added_or_truncated(small: HFTokenizer) -> None:
    assert [small.token_bytes(i) for i in small.encode("hello world")] == [b"hell", b"o", b" w", b"o", b"r", b"l", b"d"]


def test_control_strings_in_text_are_text_unless_asked_for(small: HFTokenizer) -> None:
    plain = small.encode("a<|im_end|>b")
    assert small.control_ids.isdisjoint(plain)
    assert small.decode(plain) == "a<|im_end|>b"
    assert small.encode("a<|im_end|>b", control=True) == [small.encode("a")[0], 262, small.encode("b")[0]]
    assert small.encode("<|im_end|>", control=True) == [262]


def test_visible_added_tokens_are_their_text(small: HFTokenizer) -> None:
    assert (small.encode("<think>"), small.token_bytes(263), 263 in small.control_ids) == ([263], b"<think>", False)


def test_padding_ids_are_control_ids_without_bytes(small: HFTokenizer) -> None:
    assert small.vocab_size == 272
    assert small.control_ids == frozenset({261, 262, *range(264, 272)})
    assert {small.token_bytes(i) for i in small.control_ids} == {b""}
    with pytest.raises(UsageError, match=r"272.*0 to 271"):
        small.token_bytes(272)
    with pytest.raises(UsageError, match="-1"):
        small.decode([-1])


def test_end_tokens_come_from_all_files(small: HFTokenizer) -> None:
    assert small.eos_ids == (262, 261)


def test_chatml_is_assumed_where_its_tokens_exist_and_nowhere_else(small: HFTokenizer, tmp_path: Path) -> None:
    assert small.chat([{"role": "user", "content": "he"}], generate=False) == [
        261, *small.encode("user\nhe"), 262, *small.encode("\n"),
    ]  # fmt: skip
    data = tokenizer_json()
    data["added_tokens"] = data["added_tokens"][:1]
    with pytest.raises(UsageError, match="no chat template"):
        load_tokenizer(write(tmp_path, data)).chat([{"role": "user", "content": "he"}])


def test_the_folders_own_template_is_used(tmp_path: Path) -> None:
    source = "{{ bos_token }}{{ messages[0].content }}"
    settings = {
        "bos_token": "<|im_start|>",
        "chat_template": [{"name": "tools", "template": "x"}, {"name": "default", "template": source}],
    }
    tokenizer = load_tokenizer(write(tmp_path, tokenizer_json(), tokenizer_config=settings))
    assert tokenizer.chat([{"role": "user", "content": "<|im_start|>"}]) == [261, *tokenizer.encode("<|im_start|>")]
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}!", encoding="utf-8")
    assert load_tokenizer(tmp_path).decode(load_tokenizer(tmp_path).chat([{"role": "user", "content": "a"}])) == "a!"


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@given(text=st.text())
def test_any_text_comes_back_through_merges(small: HFTokenizer, text: str) -> None:
    ids = small.encode(text)
    assert small.decode(ids) == text
    assert b"".join(map(small.token_bytes, ids)) == text.encode()


@given(st.lists(st.integers(0, 260), max_size=8))
def test_any_ids_have_a_text(ids: list[int]) -> None:
    data = bytes(i for i in ids if i < 256)
    assert ByteTokenizer().decode(ids) == data.decode("utf-8", errors="replace")


def test_a_lone_surrogate_is_refused(small: HFTokenizer) -> None:
    for tokenizer in (small, ByteTokenizer()):
        with pytest.raises(InputError, match="surrogate at character 1"):
            tokenizer.encode("a\ud800")


def test_the_fingerprint_follows_what_decides_ids(small: HFTokenizer, tmp_path: Path) -> None:
    data = tokenizer_json()
    data["truncation"] = None
    assert load_tokenizer(write(tmp_path, data)).fingerprint == small.fingerprint
    data["model"]["merges"] = MERGES[:-1]
    assert load_tokenizer(write(tmp_path, data)).fingerprint != small.fingerprint


def test_other_kinds_of_tokenizers_are_refused_by_name(tmp_path: Path) -> None:
    for change in ({"model": {"type": "Unigram"}}, {"decoder": {"type": "Sequence"}}, {"decoder": None}):
        with pytest.raises(UnsupportedError, match="byte-level BPE"):
            load_tokenizer(write(tmp_path, tokenizer_json() | change))
    with pytest.raises(UnsupportedError, match="byte-level BPE"):
        load_tokenizer(write(tmp_path, tokenizer_json(byte_fallback=True)))
    data = tokenizer_json()
    data["added_tokens"][0]["lstrip"] = True
    with pytest.raises(UnsupportedError, match=r"im_start.*swallows"):
        load_tokenizer(write(tmp_path, data))


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no tokenizer.json"):
        load_tokenizer(tmp_path)
    for text in ("{", "[]", "[" * 100_000, '{"model": {"type": "BPE"}, "decoder": {"type": "ByteLevel"}}'):
        (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=r"tokenizer.json"):
            load_tokenizer(tmp_path)
    data = tokenizer_json()
    data["model"]["vocab"]["\u4e2d"] = 300
    with pytest.raises(InputError, match="token 300 '\u4e2d'"):
        load_tokenizer(write(tmp_path, data))
    with pytest.raises(InputError, match="vocab_size = 5"):
        load_tokenizer(write(tmp_path, tokenizer_json(), config={"vocab_size": 5}))
    with pytest.raises(InputError, match="eos_token_id"):
        load_tokenizer(write(tmp_path, tokenizer_json(), config={"eos_token_id": "two"}))
