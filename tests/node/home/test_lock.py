"""One process lives in a home; what a back-up does not have is made."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from node.home import lock as lock_module
from node.home.lock import HomeInUse, live_in
from node.home.paths import Home


def test_a_second_process_is_told_of_the_first_and_changes_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    code = "import sys; from pathlib import Path; from node.home.paths import Home\n"
    code += "from node.home.lock import live_in\n"
    code += "with live_in(Home(Path(sys.argv[1]))): print('lives', flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "lives\n"
        with pytest.raises(HomeInUse, match=rf"^{tmp_path}: a running process \(pid {other.pid}\) uses this home"):
            live_in(home).__enter__()
    finally:
        other.kill()
        other.communicate()
    with live_in(home):  # however the other one ended
        assert (tmp_path / "run/lock").read_text() == f"{os.getpid()}\n"


def wait_for(is_so: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError


def test_a_lock_file_that_is_removed_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "LOOK_S", 0.01)
    home, lock = Home(tmp_path), tmp_path / "run/lock"
    with capture_logs() as lines, live_in(home):
        lock.unlink()
        wait_for(lambda: lock.exists() and lock.read_text() == f"{os.getpid()}\n")
        with pytest.raises(HomeInUse):
            live_in(home).__enter__()
        lock.unlink()
        (tmp_path / "run").rmdir()
        wait_for(lambda: len(lines) == 2)
    assert [line["log_level"] for line in lines] == ["warning", "error"]


def test_whose_home_another_process_took_meanwhile_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "LOOK_S", 0.01)
    told: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _pid, number: told.append(number))
    lock = tmp_path / "run/lock"
    with live_in(Home(tmp_path)):
        taken = tmp_path / "taken"
        with taken.open("w+") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            taken.replace(lock)
            wait_for(lambda: told == [signal.SIGTERM])


def test_a_home_that_comes_from_a_back_up_gets_its_folders(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    with live_in(Home(tmp_path)):
        for folder in ("data", "run"):
            assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
    with live_in(Home(tmp_path)):
        pass
