"""The C sources under AddressSanitizer and UndefinedBehaviorSanitizer, in a program of their own with exact memory sizes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "toolkit" / "model" / "native"
STRICT = [
    "-std=c11",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-psabi",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fopenmp",
]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


def test_no_kernel_set_reads_or_writes_outside_its_memory_or_does_what_c_leaves_undefined(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc on this machine")
    probe = subprocess.run(
        [compiler, *SANITIZERS, "-x", "c", "-", "-o", tmp_path / "probe"], input=b"int main(void){return 0;}"
    )
    if probe.returncode or subprocess.run([tmp_path / "probe"]).returncode:
        pytest.skip("this gcc has no sanitizers")
    program = tmp_path / "native"
    builds = {tmp_path / f"{file.stem}.o": file for file in (HERE / "native_main.c", *sorted(SOURCES.glob("*.c")))}
    options = [*STRICT, *SANITIZERS, f"-I{SOURCES}"]
    running = [subprocess.Popen([compiler, *options, "-c", file, "-o", to]) for to, file in builds.items()]  # side by side
    assert [each.wait() for each in running] == [0] * len(running)
    subprocess.run([compiler, *options, *builds, "-o", program, "-lm"], check=True)
    clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    run = subprocess.run([program], capture_output=True, text=True, env=clean | {"OMP_NUM_THREADS": "3"})
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count(": equal") == 16
