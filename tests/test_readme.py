"""README: its quickstart runs, its commands exist, and the tables between `generated` marks are what the code says today.

`UPDATE_README=1 pytest tests/test_readme.py` rewrites the tables.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from tests.test_layers import LAYERS, ROOT

README = ROOT.parent / "README.md"
FILES = ROOT.parent / "docs" / "files.md"
BLOCK = re.compile(r"<!-- generated: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


def first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.strip().splitlines()[0].rstrip(".") if text else ""


def layers() -> str:
    present = {path.name.removesuffix(".py") for path in ROOT.iterdir()}
    rows = []
    for depth, names in enumerate(LAYERS):
        here = [name for name in names if name in present]
        if here:
            rows.append(f"{depth}  {' | '.join(here) if depth == 1 else '  '.join(here)}")
    return "```\n" + "\n".join(rows) + "\n```\n"


def tree() -> str:
    rows = [("toolkit/", "")]
    for path in sorted(ROOT.iterdir()):
        source = path / "__init__.py" if path.is_dir() else path
        if source.suffix == ".py" and source.exists() and path.name != "__pycache__" and path.name != "__init__.py":
            rows.append((f"  {path.name}{'/' if path.is_dir() else ''}", first_line(source)))
    rows.append(("programs/", ""))
    rows += [(f"  {path.name}", first_line(path)) for path in sorted((ROOT.parent / "programs").glob("*.py"))]
    rows += [
        ("schemas/", "a schema and its examples for every program"),
        ("tests/", "mirrors toolkit/; tests/test_tiny.py first"),
    ]
    width = max(len(name) for name, _ in rows) + 2
    return "```\n" + "".join(f"{name:<{width}}{text}".rstrip() + "\n" for name, text in rows) + "```\n"


def support() -> str:
    from toolkit.contracts import BeamParams, GrammarKind, SamplingParams
    from toolkit.draft.contract import DRAFTERS
    from toolkit.engine.embedded import KV_DTYPES
    from toolkit.engine.engine import ENGINES
    from toolkit.engine.formats import FORMATS
    from toolkit.model.config import ARCHITECTURES
    from toolkit.validate.tools.table import FORMATS as TOOL_FORMATS

    sampling = ", ".join(f"`{name}`" for name in SamplingParams.__dataclass_fields__)
    beam = ", ".join(f"`{name}`" for name in BeamParams.__dataclass_fields__)
    return (
        "| | |\n|---|---|\n"
        f"| engines | {', '.join(f'`{name}`' for name in ENGINES)}, `http://...` (SGLang servers, SGLang's router) |\n"
        f"| models | {', '.join(sorted(ARCHITECTURES))}: GGUF or safetensors; anything else is refused by name |\n"
        f"| formats of the embedded engine | {', '.join(f'`{name}`' for name in FORMATS)} |\n"
        f"| its keys and values | {', '.join(f'`{name}`' for name in KV_DTYPES)} (q4: torch only) |\n"
        f"| drafters | {', '.join(f'`{name}`' for name in DRAFTERS)} |\n"
        f"| tool formats | {', '.join(f'`{name}`' for name in TOOL_FORMATS)} |\n"
        f"| grammars | {', '.join(f'`{kind}`' for kind in get_args(GrammarKind))} |\n"
        f"| sampling | {sampling} |\n"
        f"| beam search | {beam} |\n"
    )


BLOCKS: dict[str, Callable[[], str]] = {"layers": layers, "tree": tree, "support": support}


def every_file() -> str:
    text = "# Every file\n\nGenerated from the first line of each module: `UPDATE_README=1 pytest tests/test_readme.py`.\n"
    for path in sorted(ROOT.rglob("*.py"), key=lambda p: (p.parent, p.name)):
        line = first_line(path)
        if path.name == "__init__.py":
            text += f"\n## {path.parent.relative_to(ROOT.parent).as_posix()}\n{line}\n\n"
        else:
            text += f"- `{path.name}` - {line}\n"
    return text


def test_generated_blocks_and_the_file_list_are_current() -> None:
    text = README.read_text(encoding="utf-8")
    fresh = BLOCK.sub(lambda m: f"<!-- generated: {m[1]} -->\n{BLOCKS[m[1]]()}<!-- end -->", text)
    if os.environ.get("UPDATE_README"):
        README.write_text(fresh, encoding="utf-8")
        FILES.write_text(every_file(), encoding="utf-8")
    assert {m[1] for m in BLOCK.finditer(text)} == set(BLOCKS)
    assert README.read_text(encoding="utf-8") == fresh, "run UPDATE_README=1 pytest tests/test_readme.py"
    assert FILES.read_text(encoding="utf-8") == every_file(), "run UPDATE_README=1 pytest tests/test_readme.py"


def test_every_module_says_what_it_is() -> None:
    assert [str(path) for path in ROOT.rglob("*.py") if not first_line(path)] == []


@pytest.mark.slow
def test_the_python_quickstart_runs_as_it_stands() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_every_command_in_readme_and_docs_exists() -> None:
    from toolkit.cli.app import toolkit as cli

    commands = []
    for page in [README, *sorted(FILES.parent.glob("*.md"))]:
        commands += re.findall(r"^\s*(?:\$ )?(toolkit .*?)(?:\s{2,}#.*)?$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) > 8
    for line in commands:
        words, command = shlex.split(line, comments=True)[1:], cli
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert command is not cli, line
        words = words[: words.index("--")] if "--" in words else words  # behind it are another program's flags
        options = {name for parameter in command.params for name in parameter.opts}
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= options | {"--help"}, f"{line}: {sorted(given - options)}"
