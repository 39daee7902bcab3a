"""TransformersPeer: Hugging Face `generate` under the same grammar, as a peer to compare with.

In: prompt ids, a grammar, a width.   Out: generated token ids, an end token included where one was written.
Knows nothing about: timing, data sets, this project's engine.
Invariants: the same matcher, the same weights in float32, raw log-softmax scores (transformers masks after log_softmax), and
where the grammar forces a text the same tokens for it (its canonical tokenisation), or the two sides would not be comparable.
Departures from naive use, all in the peer's favour: matcher states are kept by prefix (one fork and one token a call, not a
replay), and the allowed ids come as a tensor (a list of 49,000 ints would cost more than the mask).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from toolkit.contracts import CompiledGrammar, Grammar, Matcher, Tokenizer
from toolkit.errors import InputError, MissingExtraError


class TransformersPeer:
    """A causal model of a local folder; `decode` runs greedy (width 1) or transformers' beam search with its own defaults."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        import torch

        transformers = load_transformers()
        if not (folder / "config.json").is_file():
            raise InputError(f"{folder} is not a model folder: config.json is absent", hint="toolkit model pull smollm2")
        transformers.utils.logging.disable_progress_bar()  # this package draws its own
        loaded = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, local_files_only=True)
        self.model: Any = loaded.eval()
        self.tokenizer = tokenizer

    def decode(self, prompt: Sequence[int], grammar: Grammar, width: int, alpha: float, max_tokens: int) -> tuple[int, ...]:
        """Token ids after the prompt. `alpha` is transformers' length_penalty; early_stopping stays at its default."""
        import torch

        from toolkit.grammar.compile import compile_grammar

        ids = torch.tensor([list(prompt)], device=self.model.device)
        beam = {"num_beams": width, "length_penalty": alpha} if width > 1 else {"num_beams": 1}
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_tokens,
                eos_token_id=list(self.tokenizer.eos_ids),
                pad_token_id=self.tokenizer.eos_ids[0],
                prefix_allowed_tokens_fn=allowed_tokens_fn(
                    compile_grammar(grammar, self.tokenizer), self.tokenizer, len(prompt)
                ),
                **beam,
            )
        return trim(out[0, len(prompt) :].tolist(), self.tokenizer.eos_ids)


def load_transformers() -> Any:
    """Import transformers; MissingExtraError where it is absent.

    A torchvision that was built for another torch (PyPI's beside a CPU torch) fails while it is imported, and every model
    class with it: transformers is then told that there is none, which text needs not. Who imported transformers before does
    not matter: the answer is asked for anew by every module that needs it.
    """
    if find_spec("transformers") is None:
        raise MissingExtraError("transformers", "cpu")
    transformers = import_module("transformers")
    if find_spec("torchvision") is not None:
        try:
            import_module("torchvision")
        except (RuntimeError, ImportError):
            for name in ("transformers.utils", "transformers.utils.import_utils"):
                import_module(name).is_torchvision_available = lambda: False  # type: ignore[attr-defined]
    return transformers


def allowed_tokens_fn(compiled: CompiledGrammar, tokenizer: Tokenizer, prompt_len: int) -> Callable[[int, Any], Any]:
    """A prefix_allowed_tokens_fn. States are kept by generated prefix; beams that left the grammar (transformers fills its
    beams with impossible candidates when fewer are legal) may only end."""
    import numpy as np
    import torch

    states: dict[tuple[int, ...], Matcher | None] = {(): compiled.matcher()}
    masks: dict[tuple[int, ...], Any] = {}
    dead = torch.tensor(list(tokenizer.eos_ids))
    row = np.zeros((1, (tokenizer.vocab_size + 31) // 32), dtype=np.int32)

    def state(prefix: tuple[int, ...]) -> Matcher | None:
        if prefix not in states:
            parent = state(prefix[:-1])
            states[prefix] = None
            if parent is not None and prefix[-1] not in tokenizer.eos_ids and parent.accepts(prefix[-1:]) == 1:
                child = parent.fork()
                child.advance(prefix[-1:])
                states[prefix] = child
        return states[prefix]

    def choices(matcher: Matcher) -> Any:
        if forced := matcher.forced():
            return np.array(forced[:1])
        matcher.fill(row, 0)
        return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[: tokenizer.vocab_size])

    def allowed(_: int, sequence: Any) -> Any:
        prefix = tuple(sequence[prompt_len:].tolist())
        if prefix not in masks:
            matcher = state(prefix)
            if matcher is None:
                return dead
            masks[prefix] = torch.from_numpy(choices(matcher))
        return masks[prefix]

    return allowed


def trim(ids: Sequence[int], eos: Sequence[int]) -> tuple[int, ...]:
    """Ids up to and with the first end token; what follows is padding."""
    for place, token in enumerate(ids):
        if token in eos:
            return tuple(ids[: place + 1])
    return tuple(ids)
