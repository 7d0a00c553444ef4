"""One process lives in a home; what a back-up does not have is made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.places import Home
from node.tenancy import HomeInUse, live_in


def test_a_second_process_is_told_of_the_first_and_changes_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    code = "import sys; from pathlib import Path; from node.places import Home; from node.tenancy import live_in\n"
    code += "with live_in(Home(Path(sys.argv[1]))): print('lives', flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "lives\n"
        with pytest.raises(HomeInUse, match=rf"^{tmp_path}: a process lives here already \(number {other.pid}\)"):
            live_in(home).__enter__()
    finally:
        other.kill()
        other.communicate()
    with live_in(home):  # however the other one ended
        assert (tmp_path / "run/lock").read_text() == f"{os.getpid()}\n"


def test_a_home_that_comes_from_a_back_up_gets_its_folders(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    with live_in(Home(tmp_path)):
        for folder in ("data", "run"):
            assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
    with live_in(Home(tmp_path)):
        pass
