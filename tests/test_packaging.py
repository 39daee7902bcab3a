"""The wheel: what it ships, and that it works in an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from toolkit.errors import CPU_PINS, MissingExtraError

ROOT = Path(__file__).parent.parent

slow = pytest.mark.slow  # builds and installs


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the tree: a build leaves nothing behind here."""
    copy = tmp_path_factory.mktemp("source") / "tree"
    keep_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "out")
    shutil.copytree(ROOT, copy, ignore=keep_out)
    subprocess.run([sys.executable, "-m", "build", "-w", "-o", str(copy / "dist"), str(copy)], check=True, capture_output=True)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin folder of a new environment that holds the wheel and its plain dependencies."""
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", str(wheel)], check=True, capture_output=True)
    return folder / "bin"


def toolkit(bin_folder: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([bin_folder / "toolkit", *arguments], capture_output=True, text=True, cwd=folder, env=clean)


@slow
def test_the_wheel_ships_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"toolkit", wheel.name.split("-py3")[0] + ".dist-info"}
    assert "toolkit/py.typed" in names
    shipped = {name for name in names if name.startswith("toolkit/") and name.endswith(".py")}
    assert shipped == {path.relative_to(ROOT).as_posix() for path in (ROOT / "toolkit").rglob("*.py")}


@slow
def test_help_and_version_work_without_torch(installed: Path, tmp_path: Path) -> None:
    torch = subprocess.run([installed / "python", "-c", "import torch"], capture_output=True, cwd=tmp_path)
    assert torch.returncode != 0
    assert "extract" in toolkit(installed, tmp_path, "--help").stdout
    assert toolkit(installed, tmp_path, "--version").stdout.startswith("toolkit, version")


@slow
def test_validate_works_without_torch(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "integer"}')
    (tmp_path / "v.json").write_text("1.5")
    assert toolkit(installed, tmp_path, "validate", "v.json", "--schema", "s.json").returncode == 1


@slow
def test_what_needs_torch_names_the_command_that_installs_it(installed: Path, tmp_path: Path) -> None:
    run = toolkit(installed, tmp_path, "generate", "hello")
    assert run.returncode == 3
    assert "pip install 'sgl-toolkit[embedded]' torch==2.13.0" in run.stderr
    assert run.stdout == ""


@slow
def test_what_needs_sglang_names_the_command_that_installs_it(installed: Path, tmp_path: Path) -> None:
    run = subprocess.run([installed / "python", "-c", "import toolkit.lang"], capture_output=True, text=True, cwd=tmp_path)
    assert "pip install 'sgl-toolkit[sglang]'" in run.stderr


def test_every_dependency_is_bounded_above() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *(item for extra in project["optional-dependencies"].values() for item in extra)]
    assert [item for item in listed if not re.search(r"==|<", item)] == []


def test_what_a_hint_pins_is_what_the_extra_for_machines_without_a_gpu_pins() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert CPU_PINS.keys() <= extras.keys()
    assert all(pin.strip() in extras["cpu"] for pin in CPU_PINS.values())
    assert MissingExtraError("torch", "embedded").hint == "pip install 'sgl-toolkit[embedded]' torch==2.13.0"
    assert MissingExtraError("sglang", "sglang").hint == "pip install 'sgl-toolkit[sglang]'"


def test_plain_dependencies_hold_no_engine() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=\[]", item)[0] for item in project["dependencies"]}
    assert names.isdisjoint({"torch", "sglang", "transformers", "vllm"})


def test_continuous_integration_calls_make_test_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert commands == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "exec make test"]
