from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.contracts import Tokenizer
from toolkit.errors import InputError, UsageError
from toolkit.text.template import CHATML, ChatTemplate
from toolkit.text.tokenizer import ByteTokenizer

CONTROL = {"<|im_start|>": 1001, "<|im_end|>": 1002}
TEMPLATE = ChatTemplate(CHATML, CONTROL, {})


def encode(text: str) -> list[int]:
    return list(text.encode())


def whole(messages: list[dict[str, str]]) -> list[int]:
    """ChatML written out and cut at control strings: what contents without control strings must become."""
    text = "".join("<|im_start|>{role}\n{content}<|im_end|>\n".format(**each) for each in messages) + "<|im_start|>assistant\n"
    ids: list[int] = []
    while text:
        word = next((word for word in CONTROL if text.startswith(word)), None)
        ids += [CONTROL[word]] if word else encode(text[0])
        text = text[len(word) if word else 1 :]
    return ids


def test_a_chat_becomes_the_ids_of_its_rendered_string() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "é 😀\n 12"}]
    ids = TEMPLATE.ids(messages, encode, generate=True)
    assert ids == whole(messages)
    assert ids[-11:] == [1001, *b"assistant\n"]
    assert TEMPLATE.ids(messages, encode, generate=False) == ids[:-11]


PIECES = ["<|im_end|>", "<|im_start|>", "<", "|", ">", "im_end", "<|im_", "end|>", "|>", "x", " ", "\n", "\ue000", "system\n"]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), min_size=1, max_size=3))
def test_no_content_can_forge_a_control_token_or_is_changed(contents: list[str]) -> None:
    messages = [{"role": "user", "content": content} for content in contents]
    expected = [i for text in contents for i in (1001, *encode("user\n" + text), 1002, *encode("\n"))]
    assert TEMPLATE.ids(messages, encode, generate=False) == expected


@pytest.mark.parametrize("frame", ["<|{}|>", "<|im_{}", "{}|>", "<{}", "<|im_e{}d|>"])
def test_a_content_cannot_complete_a_control_string_with_the_template_around_it(frame: str) -> None:
    before, after = frame.split("{}")
    template = ChatTemplate("{{ '" + before + "' + (messages[0].content | trim) + '" + after + "' }}", CONTROL, {})
    for content in ("im_end", "end|>", "<|im_end", "|im_end|>", "n", " im_end ", "  >", "m_start"):
        ids = template.ids([{"role": "user", "content": content}], encode, generate=False)
        assert bytes(ids).decode() == before + content.strip() + after


def test_a_control_string_in_a_tool_call_is_text_as_well() -> None:
    template = ChatTemplate("{{ messages[0].tool_calls[0].name }}{{ messages[0].content }}", CONTROL, {})
    message = {"role": "assistant", "content": "", "tool_calls": [{"name": "<|im_end|>"}]}
    assert template.ids([message], encode, generate=False) == encode("<|im_end|>")


@pytest.mark.parametrize(
    ("messages", "error", "words"),
    [
        ([], UsageError, "at least one"),
        ([{"role": "robot", "content": "x"}], UsageError, "robot.*system, user, assistant, tool"),
        ([{"content": "x"}], UsageError, "role"),
        ([{"role": "user"}], InputError, "content"),
        ([{"role": "user", "content": 3}], InputError, "int"),
        (["hello"], InputError, "str"),
        ([{"role": "user", "content": "x", "extra": object()}], InputError, "extra.*object"),
    ],
)
def test_a_malformed_chat_is_refused_by_name(messages: list[object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        TEMPLATE.ids(messages, encode, generate=True)  # type: ignore[arg-type]


def test_a_long_chat_stays_within_the_budget() -> None:
    messages = [{"role": "user", "content": "word " * 200} for _ in range(1000)]
    assert len(TEMPLATE.ids(messages, encode, generate=True)) > 1_000_000


def test_the_byte_tokenizer_has_a_template_of_its_own_and_is_a_tokenizer() -> None:
    tokenizer = ByteTokenizer()
    assert isinstance(tokenizer, Tokenizer)
    ids = tokenizer.chat([{"role": "system", "content": "a<|end|>"}, {"role": "user", "content": "é"}])
    assert ids == [257, *b"a<|end|>", 256, 258, *"é".encode(), 256, 259]
    assert tokenizer.decode(ids) == "a<|end|>é"
