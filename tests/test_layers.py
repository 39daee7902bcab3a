"""The layer table of the README, as a test: imports point down only, type-only imports too; siblings never meet."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent / "toolkit"
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "contracts", "schema", "plugins", "results"),
    ("text", "model", "kv", "sample", "grammar", "validate"),
    ("draft",),
    ("engine",),
    ("train", "lang"),
    ("jobs",),
    ("gate", "bench"),
    ("cli", "__init__", "__main__"),
)
FLOOR = {name: depth for depth, names in enumerate(LAYERS) for name in names}
# Modules of the floor and the roof may see each other; packages of one layer may not.
SOCIAL = {0, len(LAYERS) - 1}
HOMES = {
    "sglang": {"lang"},
    "torch": {"model", "kv", "sample", "draft", "engine", "train", "gate", "bench", "lang"},
    "llguidance": {"grammar"},
    "outlines": {"grammar"},
    "transformers": {"bench"},
    "ray": {"jobs"},
    "genson": {"jobs"},
}


def unit_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(source: str) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def complaints(unit: str, source: str) -> list[str]:
    found = []
    for name in imports_of(source):
        top, *rest = name.split(".")
        if top == "toolkit":
            target = rest[0] if rest and rest[0] in FLOOR else "__init__"
            social = FLOOR[target] == FLOOR[unit] and FLOOR[unit] in SOCIAL
            if not (target == unit or FLOOR[target] < FLOOR[unit] or social):
                found.append(f"{unit} (layer {FLOOR[unit]}) imports {name} (layer {FLOOR[target]})")
        if top in ("programs", "schemas", "tests"):
            found.append(f"{unit} imports {name}; the toolkit loads programs and schemas by path")
        if top in HOMES and unit not in HOMES[top]:
            found.append(f"{unit} imports {top}, which may only be imported in {sorted(HOMES[top])}")
    return found


def test_imports_point_down() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 10
    assert [str(path) for path in files if unit_of(path) not in FLOOR] == []
    assert [
        f"{path.name}: {line}" for path in files for line in complaints(unit_of(path), path.read_text(encoding="utf-8"))
    ] == []


def test_an_upward_a_sideways_and_a_foreign_import_are_seen() -> None:
    source = "if TYPE_CHECKING:\n    from toolkit.engine import embedded\nimport toolkit.text\nimport sglang\nfrom toolkit import beam\n"
    assert len(complaints("kv", source)) == 4
