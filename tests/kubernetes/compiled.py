"""Compile the cluster of the tests into the cache, with a Go that is new enough."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from tests.clients.programs import CannotCompile, go_program

BUILD_S: Final = 1_500


def main() -> int:
    """Compile it, if the cache has none. Return the exit code."""
    try:
        go, environment = go_program()
    except (CannotCompile, OSError) as error:
        print(f"NO KUBERNETES IS COMPILED HERE: {error}")
        return 1
    path = f"{go.parent}:{os.environ['PATH']}" if isinstance(go, Path) else os.environ["PATH"]
    settings = {**os.environ, **environment, "PATH": path, "GOFLAGS": ""}
    done = subprocess.run(
        ["bash", str(Path(__file__).parent / "cluster"), "build"], env=settings, timeout=BUILD_S, check=False
    )
    if done.returncode:
        print("NO KUBERNETES IS COMPILED HERE")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
