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


def build(folder: Path, **variables: str) -> Path:
    """The wheel of a copy of the tree: a build leaves nothing behind here."""
    copy = folder / "tree"
    keep_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "*.so", "build", "dist", "out")
    shutil.copytree(ROOT, copy, ignore=keep_out)
    command = [sys.executable, "-m", "build", "-w", "-o", str(copy / "dist"), str(copy)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | variables)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("source"))


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
    assert tops == {"toolkit", "-".join(wheel.name.split("-")[:2]) + ".dist-info"}
    assert {"toolkit/py.typed", "toolkit/lang/cpu/packages/sgl_toolkit_cpu-1.0.dist-info/entry_points.txt"} <= set(names)
    shipped = {name for name in names if name.startswith("toolkit/") and name.endswith(".py")}
    assert shipped == {path.relative_to(ROOT).as_posix() for path in (ROOT / "toolkit").rglob("*.py")}


@slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on this machine")
def test_the_wheel_carries_the_native_path_where_there_is_a_compiler_and_is_built_without_it_where_there_is_none(
    wheel: Path, tmp_path: Path
) -> None:
    def compiled(path: Path) -> list[str]:
        return [name for name in zipfile.ZipFile(path).namelist() if name.startswith("toolkit/model/native/_native.")]

    assert len(compiled(wheel)) == 1
    assert compiled(build(tmp_path, CC="false")) == []


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
