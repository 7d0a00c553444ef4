"""The campaign gives each decoder exactly as many inputs as it says, goes on where it was, and finds faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from state.primitives.errors import DecodeError
from tests.fuzz import campaign, reading
from tests.fuzz.campaign import State, load, report, save
from tests.fuzz.decoders import TARGETS, Target
from tests.fuzz.reading import Course, place_of

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
        save(path, State("1", "x", {NAME: stopped}))
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
    assert f"FAILED bad: {what}: {data}" in report(State("1", "x", {"bad": course}))


def test_what_hangs_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_data: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr(reading, "HANGS_S", 0.2)
    course = run_chunk("endless", Target(endless, (b"a",), ()), "1", Course(), 2)
    assert [what for what, _ in course.failures] == ["Hangs()"]


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


def test_every_decoder_gets_n_and_a_state_of_other_software_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    monkeypatch.setattr(campaign, "digest", lambda: "this")
    arguments = ["--state", str(path), "--jobs", "1", "--only", NAME, "--only", "vrf"]
    assert campaign.main(["20", *arguments]) == 0
    assert campaign.main(["30", *arguments]) == 0
    assert {name: course["inputs"] for name, course in json.loads(path.read_text())["courses"].items()} == {
        NAME: 30,
        "vrf": 30,
    }
    assert "2 decoders, at least 30 inputs each, 60 in all" in (tmp_path / "report.txt").read_text()
    monkeypatch.setattr(campaign, "digest", lambda: "another")
    assert campaign.main(["40", *arguments]) == 2
    assert load(path) is not None
    assert campaign.main(["10", "--restart", *arguments]) == 0
    assert path.with_suffix(".old").exists()
    capsys.readouterr()
