"""The public names, and what importing them costs."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

import pytest

import toolkit

HEAVY = ("torch", "sglang", "transformers", "llguidance", "outlines", "jsonschema")


def loaded_by(code: str) -> list[str]:
    """Which heavy packages a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport json, sys\nprint(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return list(json.loads(run.stdout.splitlines()[-1]))


def test_all_is_sorted_and_every_name_is_there() -> None:
    assert toolkit.__all__ == sorted(toolkit.__all__)
    assert [name for name in toolkit.__all__ if not hasattr(toolkit, name)] == []


def test_every_visible_name_is_public() -> None:
    helpers = {"version", "Table", "TYPE_CHECKING", "Any"}
    visible = {name for name, value in vars(toolkit).items() if not name.startswith("_") and not isinstance(value, ModuleType)}
    assert visible - helpers <= set(toolkit.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = toolkit.nope


@pytest.mark.parametrize(
    "code",
    [
        "import toolkit",
        "import toolkit.cli",
        "from toolkit.cli import main\nassert main(['--help']) == 0",
        "from toolkit.cli import main\nassert main(['extract', '--help']) == 0",
    ],
)
def test_importing_the_package_and_asking_for_help_load_nothing_heavy(code: str) -> None:
    assert loaded_by(code) == []


def test_the_probe_itself_sees_a_heavy_import() -> None:
    assert loaded_by("import llguidance") == ["llguidance"]
