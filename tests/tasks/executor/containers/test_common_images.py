"""An image as people make them, Debian with PyTorch and a compiler, does what such images do without a network."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tasks.executor.containers.backend import End
from tasks.executor.containers.request import ContainerRequest
from tests.container_engine import running_engine, skip_without
from tests.tasks.executor.containers.machine import REPOSITORY, Machine, run

pytestmark = pytest.mark.nightly

TASK: Final = b"\x05" * 32
PACKAGES: Final = "python3,python3-pip,python3-setuptools,python3-wheel,python3-dev,gcc,g++"
LIMITS: Final = {"cores": 2, "memory_mib": 4_096, "disk_mib": 2_048, "time_limit_s": 900, "grace_s": 5}

LOADER: Final = """
import torch
from torch.utils.data import DataLoader, TensorDataset

rows = torch.arange(4_000_000.0).reshape(40, 100_000)
loader = DataLoader(TensorDataset(rows), batch_size=10, num_workers=2)
print("sum", int(sum(batch.double().sum() for (batch,) in loader)))
"""
COMPILE: Final = """
import torch

@torch.compile
def shrink(x):
    return torch.nn.functional.gelu(x * 2 + 1).sum(dim=1)

x = torch.linspace(-1, 1, 64).reshape(8, 8)
print("equal", torch.allclose(shrink(x), torch.nn.functional.gelu(x * 2 + 1).sum(dim=1)))
"""
RANKS: Final = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
mine = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(mine)
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()} sum {int(mine)}\\n")
dist.destroy_process_group()
"""
EXTENSION: Final = """
from setuptools import Extension, setup

setup(name="tiny", version="1", py_modules=["tiny"], ext_modules=[Extension("_tiny", ["_tiny.c"])])
"""
EXTENSION_C: Final = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0, 0, 0, 0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_tiny", "", -1, methods};
PyMODINIT_FUNC PyInit__tiny(void) { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    skip_without("dockerd", "docker", "debootstrap", "gcc")
    pytest.importorskip("torch")
    root = tmp_path_factory.mktemp("common")
    tree = root / "tree"
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(tree)],
        check=True, stdout=subprocess.DEVNULL, timeout=900,
    )  # fmt: skip
    packages = tree / "usr/local/lib/python3.11/dist-packages"
    shutil.rmtree(packages)
    here = sysconfig.get_path("purelib")
    linked = subprocess.run(["cp", "-al", here, str(packages)], capture_output=True)
    if linked.returncode:  # another file system
        subprocess.run(["cp", "-a", here, str(packages)], check=True)
    for own in [*packages.glob("__editable__*"), *packages.glob("setuptools*"), *packages.glob("pip*")]:
        shutil.rmtree(own) if own.is_dir() else own.unlink()
    for name, text in (("loader", LOADER), ("compile", COMPILE), ("ranks", RANKS)):
        (tree / "opt" / f"{name}.py").write_text(textwrap.dedent(text))
    (tree / "root/key").write_text("only for root\n")
    (tree / "root/key").chmod(0o600)
    (tree / "opt/tiny").mkdir()
    for name, text in (("setup.py", EXTENSION), ("_tiny.c", EXTENSION_C), ("tiny.py", "import _tiny\n")):
        (tree / "opt/tiny" / name).write_text(text)
    with running_engine(root / "engine") as engine:
        image = engine.import_tree(tree, f"{REPOSITORY}:common")
        shutil.rmtree(tree)
        made = Machine(engine, root / "node", image)
        try:
            yield made
        finally:
            for disk in made.folder.glob("*/*/disk"):
                subprocess.run(["umount", "-l", str(disk)], capture_output=True)


def _request(machine: Machine, script: str, **fields: Any) -> ContainerRequest:
    return replace(machine.request(script, **fields), limits=replace(machine.request("").limits, **LIMITS))


async def _log(machine: Machine, request: ContainerRequest, tmp_path: Path) -> str:
    backend = machine.backend(disk_gib=8)
    went = await run(backend, TASK, request, tmp_path / "packed")
    await backend.aclose()
    assert (went.ended.end, went.ended.code) == (End.EXITED, 0), went.log
    return went.log


async def test_workers_of_a_loader_share_memory(machine: Machine, tmp_path: Path) -> None:
    log = await _log(machine, _request(machine, "python3 /opt/loader.py"), tmp_path)
    assert f"sum {4_000_000 * 3_999_999 // 2}" in log


async def test_torch_compiles_and_loads_what_it_compiled(machine: Machine, tmp_path: Path) -> None:
    assert "equal True" in await _log(machine, _request(machine, "python3 /opt/compile.py"), tmp_path)


async def test_two_processes_of_torchrun_find_each_other(machine: Machine, tmp_path: Path) -> None:
    script = "python3 -m torch.distributed.run --standalone --nproc_per_node=2 /opt/ranks.py"
    log = await _log(machine, _request(machine, script), tmp_path)
    assert "rank 0 of 2 sum 3" in log and "rank 1 of 2 sum 3" in log


async def test_an_image_that_expects_root_reads_what_only_root_may(machine: Machine, tmp_path: Path) -> None:
    log = await _log(machine, _request(machine, "id -u; cat /root/key; ls -ld ~", user=0), tmp_path)
    assert log.startswith("0\nonly for root\n")


async def test_a_package_is_compiled_and_installed_for_the_user(machine: Machine, tmp_path: Path) -> None:
    script = (
        "cp -r /opt/tiny $TMPDIR/tiny && "
        "pip install --user --no-index --no-build-isolation --break-system-packages --quiet $TMPDIR/tiny && "
        "cd / && python3 -c 'import _tiny, tiny; print(\"answer\", _tiny.answer(), tiny.__file__)'"
    )
    log = await _log(machine, _request(machine, script), tmp_path)
    assert "answer 42 /scratch/home" in log
