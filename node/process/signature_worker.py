"""The child process that recovers addresses from signatures: frames on stdin, addresses on stdout.

A frame is its length (4 bytes, big-endian), then digest (32) and signature (65) of each entry. The answer has 20
bytes for each. The process ends when stdin closes, so it never outlives the node.
"""

from __future__ import annotations

import signal
import sys
from typing import BinaryIO, Final

from state.primitives.keys import recover_addresses
from tasks.executor.sandbox import end_with_parent

__all__ = ["FRAME_BYTES_MAX", "serve"]

FRAME_BYTES_MAX: Final = 97 * 8192
"""Longest batch of one frame. The parent splits longer ones."""


def serve(requests: BinaryIO, answers: BinaryIO) -> int:
    """Answer frames until ``requests`` ends; return the exit status (2 for an invalid frame)."""
    while True:
        head = requests.read(4)
        if len(head) < 4:
            return 0
        size = int.from_bytes(head, "big")
        if size > FRAME_BYTES_MAX or size % 97:
            return 2
        batch = requests.read(size)
        if len(batch) < size:
            return 0
        try:
            answers.write(recover_addresses(batch))
            answers.flush()
        except BrokenPipeError:
            return 0


if __name__ == "__main__":
    end_with_parent()  # a stopped process does not see stdin close
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the node decides when it ends; log rotation is not meant for it
    sys.exit(serve(sys.stdin.buffer, sys.stdout.buffer))
