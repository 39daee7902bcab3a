"""The stand-ins on the path of a process, as the server has them: what imports, what is refused, and that no other process sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distributions

from toolkit.lang.launch import PACKAGES


def python(code: str, *, on_path: bool = True) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(PACKAGES) if on_path else "", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, env=env)


def test_torchvision_is_the_installed_one_and_imports_beside_a_torch_without_cuda() -> None:
    done = python(
        "import torchvision; from torchvision.transforms.v2 import functional; print(torchvision.__file__, functional.resize)"
    )
    assert done.returncode == 0, done.stderr
    assert "site-packages" in done.stdout and str(PACKAGES) not in done.stdout


def test_triton_kernels_can_be_declared_and_say_their_name_when_they_are_launched() -> None:
    done = python("""
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction
from triton.compiler import CompilationError
import triton.backends.nvidia.driver

@triton.autotune(configs=[triton.Config({"BLOCK": 8})], key=["n"])
@triton.heuristics({"EVEN": lambda given: True})
@triton.jit(do_not_specialize=["n"])
def add_one(x, n: tl.constexpr, BLOCK: tl.constexpr) -> tl.uint32:
    tl.store(x, tl.load(x) + 1)

@triton.jit
def other(x, size: tl.constexpr = tl.constexpr(4)): ...

class Mine(triton.runtime.Whatever): ...
print(triton.cdiv(7, 2), triton.next_power_of_2(5), triton.next_power_of_2(8), tl.constexpr(4).value, issubclass(CompilationError, Exception))
for launch in (lambda: add_one[(1,)](0, 1, BLOCK=8), lambda: other(3)):
    try:
        launch()
    except NotImplementedError as error:
        print(error)
""")
    assert done.stdout.splitlines() == [
        "4 8 8 4 True", "triton kernel add_one has no CPU stand-in", "triton kernel other has no CPU stand-in",
    ], done.stderr  # fmt: skip


def test_torch_compiles_nothing_and_imports_its_compiler_with_the_stand_in() -> None:
    done = python("import torch._dynamo, torch.utils._triton; print('ok')")
    assert done.stdout.strip() == "ok", done.stderr


def test_sglang_finds_its_plugin_on_that_path_and_on_no_other() -> None:
    code = "from importlib.metadata import entry_points; print([e.value for e in entry_points(group='sglang.srt.plugins')])"
    assert python(code).stdout.strip() == "['sgl_toolkit_cpu:register']"
    assert python(code, on_path=False).stdout.strip() == "[]"
    assert "sgl-toolkit-cpu" not in {found.name for found in distributions()}


def test_nothing_of_the_toolkit_puts_the_stand_ins_where_its_user_would_import_them() -> None:
    code = f"""
import sys
import toolkit, toolkit.lang.serve, toolkit.lang.launch, toolkit.cli.app
toolkit.lang.launch.launch("owner/model", device="cpu")
print([name for name in ("sgl_kernel", "triton", "torchvision", "sgl_toolkit_cpu") if name in sys.modules], {str(PACKAGES)!r} in sys.path)
"""
    done = python(code, on_path=False)
    assert done.stdout.strip() == "[] False", done.stderr
