"""The campaign gives each decoder exactly as many inputs as it says, goes on where it was, and finds faults."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest

from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from tests.fuzz import campaign, marks, reading
from tests.fuzz.campaign import State, load, report, save
from tests.fuzz.decoders import TARGETS, Target
from tests.fuzz.marks import imported_by
from tests.fuzz.played import Played, read_played, write_played
from tests.fuzz.reading import Course, place_of

pytestmark = pytest.mark.slow

NAME = "job journal"
"""One of the dearest: it gets as many as others."""


def run_chunk(name: str, target: Target, seed: str, course: Course, count: int) -> Course:
    return reading.run_chunk(name, target, seed, course, count, target.samples)


def test_a_campaign_that_was_stopped_goes_on_with_the_same_inputs(tmp_path: Path) -> None:
    target, path = TARGETS[NAME], tmp_path / "state.json"
    straight = stopped = Course()
    for _ in range(2):
        straight = run_chunk(NAME, target, "1", straight, 60)
        stopped = run_chunk(NAME, target, "1", stopped, 60)
        save(path, State("1", {NAME: stopped}))
        read = load(path)
        assert read is not None
        stopped = read.courses[NAME]
    assert straight.inputs == stopped.inputs == 120
    assert (straight.accepted, straight.kept) == (stopped.accepted, stopped.kept)


def test_what_is_refused_elsewhere_or_runs_a_new_line_is_kept() -> None:
    for name in ("genesis", "block", "mux"):
        course = run_chunk(name, TARGETS[name], "1", Course(), 200)
        assert course.kept
        assert len(course.kept) < 150
        assert not course.failures


def test_a_fault_is_found_and_reported_once_with_its_input() -> None:
    def bad(data: bytes) -> None:
        if len(data) % 2:
            raise KeyError("half")
        raise DecodeError("no")

    course = run_chunk("bad", Target(bad, (b"abcd",), ()), "1", Course(), 100)
    assert course.inputs == 100
    ((what, data),) = course.failures
    assert what == "KeyError('half')"
    assert len(bytes.fromhex(data)) % 2
    assert f"FAILED bad: {what}: {data}" in report(State("1", {"bad": course}))


def test_what_hangs_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_data: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr(reading, "HANGS_S", 0.2)
    course = run_chunk("endless", Target(endless, (b"a",), ()), "1", Course(), 2)
    assert [what for what, _ in course.failures] == ["Hangs()"]


def test_another_process_has_the_same_samples() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "from tests.fuzz.test_campaign import samples; print(*samples(), sep='\\n')"],
        cwd=campaign.ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert told.split("\n")[:-1] == samples()


def samples() -> list[str]:
    """A digest of each decoder's samples."""
    return [f"{name} {hashlib.sha256(encode([*one.samples])).hexdigest()}" for name, one in TARGETS.items()]


def test_what_others_took_of_the_processor_is_not_the_input_s(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [True]

    def stopped(_data: bytes) -> None:
        if first.pop() if first else False:
            sleep(0.3)

    course = run_chunk("stopped", Target(stopped, (b"a",), ()), "1", Course(), 2)
    assert course.slowest_s < 0.1


def test_nothing_played_is_a_report_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "state.json"
    assert campaign.main(["0", "--state", str(path), "--played", str(tmp_path / "none"), "--only", NAME]) == 0
    assert f"{NAME} " in capsys.readouterr().out
    assert path.with_name("report.txt").exists()


def test_the_place_of_a_refusal_tells_two_refusals_apart() -> None:
    def refuse(which: int) -> None:
        if which:
            raise DecodeError("one")
        raise DecodeError("another")

    places = set()
    for which in (0, 1, 1):
        with pytest.raises(DecodeError) as caught:
            refuse(which)
        # The line here is the same for all.
        places.add(place_of(caught.value))
    assert len(places) == 2
    assert place_of(None) == ()


def test_every_decoder_gets_n_and_one_that_is_another_now_begins_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    arguments = ["--state", str(path), "--played", str(tmp_path / "none"), "--jobs", "1"]
    arguments += ["--only", NAME, "--only", "vrf"]

    def inputs() -> dict[str, int]:
        return {name: course["inputs"] for name, course in json.loads(path.read_text())["courses"].items()}

    assert campaign.main(["20", *arguments]) == 0
    assert campaign.main(["30", *arguments]) == 0
    assert inputs() == {NAME: 30, "vrf": 30}
    assert "2 decoders, at least 30 inputs each, 60 in all" in (tmp_path / "report.txt").read_text()
    was = campaign.digest
    monkeypatch.setattr(campaign, "digest", lambda name, files: "other" if name == "vrf" else was(name, files))
    assert campaign.main(["25", *arguments]) == 0
    assert inputs() == {NAME: 30, "vrf": 25}
    assert campaign.main(["40", "--seed", "2", *arguments]) == 2
    assert inputs() == {NAME: 30, "vrf": 25}
    assert campaign.main(["10", "--restart", *arguments]) == 0
    assert path.with_suffix(".old").exists()
    assert inputs() == {NAME: 10, "vrf": 10}
    capsys.readouterr()


def test_what_another_machine_has_played_counts_where_it_is_of_this_software(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here, path = tmp_path / "played.json", tmp_path / "state.json", tmp_path / "other.json"
    files = ("state/primitives/vrf.py",)
    monkeypatch.setattr(campaign, "digest", lambda name, ran: f"{name} {sorted(ran)}")
    of_now = Played(Course(1_000, 10, 1.5, 0.25, files=files), campaign.digest("vrf", files))
    of_before = Played(Course(1_000, files=files), "another")
    write_played("1", {"vrf": of_now, NAME: of_before, "gone": of_before}, there)
    assert read_played(there) == ("1", {"vrf": of_now, NAME: of_before, "gone": of_before})

    def inputs(state: Path) -> dict[str, int]:
        return {name: course["inputs"] for name, course in json.loads(state.read_text())["courses"].items()}

    arguments = ["--jobs", "1", "--played", str(there), "--only", NAME, "--only", "vrf", "--state"]
    assert campaign.main(["30", *arguments, str(here)]) == 0
    assert inputs(here) == {NAME: 30, "vrf": 1_000}
    assert campaign.main(["1010", "--only", "vrf", "--jobs", "1", *arguments[2:4], "--state", str(here)]) == 0
    assert campaign.main(["20", "--seed", "2", *arguments, str(path)]) == 0
    assert inputs(path) == {NAME: 20, "vrf": 20}, "inputs of another seed are others"

    # What has failed, or was read without marks and so by nobody knows which files, is no record.
    document = json.loads(here.read_text())
    document["courses"][NAME] |= {"files": files, "failures": [["KeyError()", "00"]]}
    document["digests"][NAME] = campaign.digest(NAME, files)
    here.write_text(json.dumps(document))
    assert campaign.main(["--record", *arguments, str(here)]) == 0
    seed, played = read_played(there)
    assert (seed, list(played)) == ("1", ["vrf"])
    assert played["vrf"].course.inputs == 1_010
    assert campaign.main(["20", "--restart", *arguments, str(here)]) == 0
    assert inputs(here) == {NAME: 20, "vrf": 20}
    capsys.readouterr()


def test_a_decoder_is_known_by_the_files_that_it_runs_and_by_what_they_import() -> None:
    text = (
        "import json, sys; from tests.fuzz import marks; marks.watch()\n"
        "from tests.fuzz.decoders import TARGETS; from tests.fuzz.reading import Course, run_chunk\n"
        "names = ('transaction', 'mux')\n"
        "print(json.dumps([run_chunk(n, TARGETS[n], '1', Course(), 30, TARGETS[n].samples).files for n in names]))"
    )
    said = subprocess.run([sys.executable, "-c", text], cwd=campaign.ROOT, check=True, stdout=subprocess.PIPE)
    transaction, mux = map(set, json.loads(said.stdout))
    assert "state/primitives/transactions.py" in transaction - mux
    assert "p2p/session/mux.py" in mux - transaction
    assert "p2p/base/errors.py" in imported_by("p2p/session/mux.py")


def test_what_is_played_of_a_decoder_counts_as_long_as_its_files_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, text in {"p2p/one.py": "from p2p import two\n", "p2p/two.py": "A = 1\n", "p2p/three.py": ""}.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    target = tmp_path / "targets.py"
    target.write_text("")
    monkeypatch.setattr(campaign, "ROOT", tmp_path)
    monkeypatch.setattr(marks, "ROOT", tmp_path)
    monkeypatch.setattr(campaign, "SOURCES", {NAME: target})

    def digest() -> str:
        imported_by.cache_clear()
        campaign._hash_of.cache_clear()
        return campaign.digest(NAME, ["p2p/one.py"])

    def changed(file: str, text: str) -> bool:
        before = digest()
        (tmp_path / file).write_text(text)
        return digest() != before

    assert not changed("p2p/three.py", "B = 1\n")
    assert changed("p2p/two.py", "A = 2\n")
    assert changed("p2p/one.py", "from p2p import two, three\n")
    assert changed("p2p/three.py", "B = 2\n")
    assert changed("targets.py", "C = 1\n")
    course = Course(inputs=1, files=("p2p/one.py",))
    assert campaign.is_current(NAME, course, digest())
    assert not campaign.is_current(NAME, course, "another")
    then = digest()
    (tmp_path / "p2p/one.py").unlink()
    assert not campaign.is_current(NAME, course, then)
