"""Card: what a folder with a trained head says about itself, card.json; and where heads are.

In: a folder, or a kind of head and the fingerprint of a base model.   Out: the checked card.
Knows nothing about: tensors.
Invariants: a head belongs to one base, named by its fingerprint; another base refuses it and says how to train one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from toolkit.contracts import Json
from toolkit.errors import InputError, UnsupportedError

CARD, WEIGHTS = "card.json", "head.safetensors"
HEADS = Path(__file__).parent / "heads"  # those that come with the package
_MOST = 1 << 20  # bytes of a card


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """kind "mtp" or "medusa"; base: name and fingerprint of the model it was trained on; the rest tells how, for readers."""

    kind: str
    base: str
    fingerprint: str
    data: dict[str, Json] = field(default_factory=dict)
    training: dict[str, Json] = field(default_factory=dict)
    acceptance: dict[str, Json] = field(default_factory=dict)
    version: int = 1

    def write(self, folder: Path) -> None:
        """card.json, whole or not at all."""
        spare = folder / f"{CARD}.partial"
        spare.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        spare.replace(folder / CARD)


def read_card(folder: Path) -> Card:
    """InputError for a folder without a card or with a malformed one."""
    path = folder / CARD
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is not a file")  # a pipe, say, which would be waited for
        if path.stat().st_size > _MOST:
            raise ValueError(f"it has more than {_MOST} bytes")
        data = json.loads(path.read_text(encoding="utf-8"))
        card = Card(**data)
        if not all(isinstance(text, str) for text in (card.kind, card.base, card.fingerprint)) or card.version != 1:
            raise ValueError("kind, base and fingerprint must be text, version 1")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} is no card of a head: {str(error)[:200]}", hint="toolkit train writes such folders"
        ) from error
    return card


def is_published(folder: Path) -> bool:
    """Whether a folder holds a head, or a checkpoint with one, of another project."""
    try:
        return not (folder / CARD).exists() and (folder / "config.json").is_file()
    except OSError:  # a name that no folder can have
        return False


def find_head(kind: str, name: str, base: str, fingerprint: str) -> Path:
    """The folder of a head for that base: `name` is a folder, "" the one that comes with the package.

    UnsupportedError where there is none, or where it belongs to another base. A folder without a card but with a config.json is a
    published one: it names no base, its reader checks that it fits.
    """
    hint = (
        f"toolkit train data --base {base} --out DATA; toolkit train {kind} --base {base} --data DATA --out DIR; then head=DIR"
    )
    if name:
        folder = Path(name).expanduser()
        if is_published(folder):
            return folder
        card = read_card(folder)
        if card.kind != kind:
            raise UnsupportedError(f"{folder} holds a {card.kind[:40]!r} head, not a {kind!r} head")
        if card.fingerprint != fingerprint:
            raise UnsupportedError(
                f"the head in {folder} was trained for {card.base[:80]!r} ({card.fingerprint[:12]!r}), not for {base} ({fingerprint[:12]})",
                hint=hint,
            )
        return folder
    for path in sorted(HEADS.glob(f"*/{CARD}")):
        card = read_card(path.parent)
        if (card.kind, card.fingerprint) == (kind, fingerprint):
            return path.parent
    raise UnsupportedError(f"no {kind!r} head for {base} ({fingerprint[:12]}) comes with this package", hint=hint)
