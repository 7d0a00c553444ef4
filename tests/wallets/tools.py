"""Installs the clients of other languages as their lock file names them, under build/; none of it is shipped."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
PLACE: Final = HERE.parents[1] / "build" / "wallets"
SCRIPTS: Final = ("driver.mjs", "ethers.mjs", "viem.mjs")


def installed() -> Path:
    """Return the folder with the scripts and what they import."""
    stamp, lock = PLACE / "installed.json", HERE / "package-lock.json"
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # tests of several processes want it at once
        if not stamp.exists() or stamp.read_bytes() != lock.read_bytes():
            stamp.unlink(missing_ok=True)
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, PLACE)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            subprocess.run(command, cwd=PLACE, check=True, capture_output=True)
            shutil.copy(lock, stamp)
        for name in SCRIPTS:
            shutil.copy(HERE / name, PLACE)
    return PLACE


def cast() -> Path | None:
    """Return the program cast, None where there is none for this machine."""
    found = PLACE / "node_modules" / "@foundry-rs" / "cast-linux-amd64" / "bin" / "cast"
    return found if found.exists() else None
