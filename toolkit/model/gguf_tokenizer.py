"""GGUF tokenizer: vocabulary, merges and token types of a GGUF file -> tokenizer.json, tokenizer_config.json.

In: the file's metadata fields.   Out: two JSON texts.
Knows nothing about: weights, folders, how text is encoded later.
Invariants: ids are the file's own; only pre-tokenizers known exactly are written, all others are refused by name.
Source: the tokenizer.json files of SmolLM, Llama 3 and Qwen2 (split patterns, digit handling, normalisation).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolkit.errors import InputError, UnsupportedError

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SHARED = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
# name -> (digit run pattern of the split expression or None for GPT-2's expression, NFC, whole words skip the merges)
_PRE: dict[str, tuple[str | None, bool, bool]] = {
    "smollm": (None, False, False),
    "llama-bpe": (r"|\p{N}{1,3}", False, True),
    "qwen2": (r"|\p{N}", True, False),
}
_NAMES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}


def tokenizer_files(fields: Mapping[str, Any], where: str) -> dict[str, str]:
    """File name -> content. `where` names the source in errors."""
    tokens, types, merges = (_list(fields, f"tokenizer.ggml.{key}", where) for key in ("tokens", "token_type", "merges"))
    model, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in _PRE:
        raise UnsupportedError(
            f"{where}: tokenizer {str(model)[:40]!r} with pre-tokenizer {str(pre)[:40]!r} is not implemented: "
            f"known is 'gpt2' with {', '.join(_PRE)}"
        )
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens) or not all(isinstance(t, str) and t for t in tokens):
        raise InputError(f"{where}: tokenizer.ggml.tokens repeats or lacks entries ({len(tokens)} tokens, {len(types)} types)")
    if _BYTE in types:
        raise UnsupportedError(f"{where}: byte-fallback tokens in a byte-level vocabulary are not implemented")
    named = _named(fields, tokens, where)
    return {
        "tokenizer.json": _tokenizer(
            tokens, types, merges, str(pre), named if fields.get("tokenizer.ggml.add_bos_token") else {}, where
        ),
        "tokenizer_config.json": json.dumps(_config(fields, named, where), ensure_ascii=False, indent=2),
    }


def special_ids(fields: Mapping[str, Any], where: str) -> dict[str, int]:
    """bos, eos, unk, pad token ids where the file names them."""
    tokens = _list(fields, "tokenizer.ggml.tokens", where)
    found = {}
    for theirs, ours in _NAMES.items():
        value = fields.get(f"tokenizer.ggml.{theirs}_token_id")
        if value is None:
            continue
        if not isinstance(value, int) or not 0 <= value < len(tokens):
            raise InputError(f"{where}: tokenizer.ggml.{theirs}_token_id = {value} is not one of {len(tokens)} tokens")
        found[ours] = value
    return found


def _named(fields: Mapping[str, Any], tokens: list[Any], where: str) -> dict[str, str]:
    return {name: tokens[number] for name, number in special_ids(fields, where).items()}


def _config(fields: Mapping[str, Any], named: Mapping[str, str], where: str) -> dict[str, Any]:
    config: dict[str, Any] = {f"{name}_token": token for name, token in named.items()}
    # This class takes tokenizer.json as it is; the model's own class would rebuild it and lose the digit split.
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    template = fields.get("tokenizer.chat_template")
    if template is not None:
        if not isinstance(template, str):
            raise InputError(f"{where}: tokenizer.chat_template must be text")
        config["chat_template"] = template
    return config


def _tokenizer(tokens: list[str], types: list[int], merges: list[str], pre: str, bos: Mapping[str, str], where: str) -> str:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    digits, nfc, ignore_merges = _PRE[pre]
    pairs = _pairs(merges, where)
    last = max((i for i, kind in enumerate(types) if kind != _UNUSED), default=-1)  # unused ids at the end are padding
    body = max((i for i, kind in enumerate(types) if kind == _NORMAL), default=-1)  # merges cannot reach added tokens after it
    try:
        bpe = models.BPE({tokens[i]: i for i in range(body + 1)}, pairs, ignore_merges=ignore_merges)
    except Exception as error:  # the library raises plain Exception for a merge outside the vocabulary
        raise InputError(f"{where}: vocabulary and merges do not fit together: {error}") from error
    tokenizer = Tokenizer(bpe)
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    if digits is None:
        parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        split = pre_tokenizers.Split(Regex(_WORDS + digits + _SHARED), behavior="isolated")
        parts = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    for i in range(last + 1):
        if types[i] != _NORMAL:
            added = AddedToken(tokens[i], special=types[i] != _USER, normalized=False)
            (tokenizer.add_tokens if types[i] == _USER else tokenizer.add_special_tokens)([added])
            if tokenizer.token_to_id(tokens[i]) != i:
                raise InputError(f"{where}: token {tokens[i]!r} cannot keep its id {i}")
    if "bos" in bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos['bos']} $A",
            pair=f"{bos['bos']} $A {bos['bos']} $B",
            special_tokens=[(bos["bos"], tokens.index(bos["bos"]))],
        )
    return str(tokenizer.to_str())


def _pairs(merges: list[Any], where: str) -> list[tuple[str, str]]:
    pairs = []
    for merge in merges:
        left, space, right = merge.partition(" ") if isinstance(merge, str) else ("", "", "")
        if not (left and right and space) or " " in right:
            raise InputError(f"{where}: tokenizer.ggml.merges holds {str(merge)[:80]!r}, which is no pair of tokens")
        pairs.append((left, right))
    return pairs


def _list(fields: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = fields.get(key)
    if not isinstance(value, list):
        raise InputError(f"{where}: {key} is missing or no list")
    return value
