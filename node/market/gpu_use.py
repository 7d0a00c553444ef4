"""How much the GPUs of this machine are in use, as the driver's own program says."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

import trio

from node.market.container_live import GpuUse

__all__ = ["gpu_use", "parse_gpu_use"]

PROGRAM: Final = "nvidia-smi"
QUERY: Final = ("--query-gpu=uuid,index,utilization.gpu,memory.used", "--format=csv,noheader,nounits")
TIMEOUT_S: Final = 10.0
OUTPUT_BYTES_MAX: Final = 64 << 10


async def gpu_use(ids: Sequence[str]) -> tuple[GpuUse, ...]:
    """Return the use of GPUs by their ids (UUID or number), nothing where the driver does not tell."""
    if not ids or shutil.which(PROGRAM) is None:
        return ()
    with trio.move_on_after(TIMEOUT_S):
        try:
            done = await trio.run_process([PROGRAM, *QUERY], capture_stdout=True, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError):
            return ()
        return parse_gpu_use(done.stdout[:OUTPUT_BYTES_MAX].decode("utf-8", "replace"), ids)
    return ()


def parse_gpu_use(text: str, ids: Sequence[str]) -> tuple[GpuUse, ...]:
    """Return the use of the GPUs with these ids; a line that is not understood is left out."""
    found: list[GpuUse] = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 4 or not {parts[0], parts[1]} & set(ids):
            continue
        percent, memory = parts[2], parts[3]
        if percent.isdecimal() and memory.isdecimal():
            found.append(GpuUse(min(100, int(percent)), int(memory)))
    return tuple(found)
