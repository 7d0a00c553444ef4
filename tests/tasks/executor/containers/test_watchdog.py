"""The watchdog's rules: a week of a desktop has no report, every kind of tampering is found, and found once."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.executor.containers.disks import ContainerDisk
from tasks.executor.containers.engine import Engine
from tasks.executor.containers.own_calls import OWN_CALLS_MAX, OwnCalls
from tasks.executor.containers.watchdog import (
    CALM_S,
    LEAVE_AFTER_S,
    QUIET_CALLS,
    SIGN_OF_CALL,
    Cause,
    Effect,
    EngineCall,
    Gap,
    Leave,
    Note,
    Observation,
    Policy,
    Processes,
    Settings,
    Severity,
    Share,
    Sign,
    Tampered,
    Use,
    Watchdog,
    Yielding,
)
from tasks.executor.containers.watchdog_docker import ContainerWatch, differences
from tasks.executor.containers.watchdog_processes import look_at_processes, sees_container
from tasks.executor.containers.watchdog_use import OthersOnMachine, is_job, read_process_table
from tests.tasks.executor.containers.desktop import CONTAINER, HEADER, LOOK_S, WEEK_S, Week

LEAVING = Policy(Yielding.LEAVE, Yielding.LEAVE, Yielding.YIELD)
TRACES: dict[Sign, list[Observation]] = {
    Sign.EXEC: [EngineCall("exec_create: /bin/sh"), EngineCall("exec_start: /bin/sh")],
    Sign.COPY: [EngineCall("archive-path")],
    Sign.COMMIT: [EngineCall("commit")],
    Sign.EXPORT: [EngineCall("export")],
    Sign.CHECKPOINT: [EngineCall("checkpoint")],
    Sign.TRACER: [Processes((), ((77, 9_000),))],
    Sign.STRANGER: [Processes((9_001,), ())],
    Sign.DRIFT: [Settings("1", "Mounts: more"), Settings("1", "Mounts: more still")],
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_week_of_desktop_use_has_no_report_and_yields_to_its_owner(seed: int) -> None:
    week, dog = Week(seed), Watchdog()
    found: Counter[str] = Counter()
    share = Share.WHOLE
    for at_s, seen in week.observations():
        for effect in dog.step(seen, at_s):
            found[type(effect).__name__] += 1
            if isinstance(effect, Share):
                assert effect is not share
                share = effect
    assert not found["Tampered"] and not found["Leave"]
    assert found["Note"] > 100, "what happens is written down"
    assert len(week.sessions) <= found["Share"] // 2 <= 2 * len(week.sessions) + 10, "yields, and does not flap"
    assert share is Share.WHOLE, "at night the job has the machine"


@pytest.mark.parametrize("seed", range(2))
def test_who_wants_the_machine_for_itself_has_the_job_leave_in_use_and_never_a_report(seed: int) -> None:
    week, dog = Week(seed), Watchdog(LEAVING)
    for at_s, seen in week.observations():
        effects = dog.step(seen, at_s)
        assert not any(isinstance(effect, Tampered) for effect in effects)
        if any(isinstance(effect, Leave) for effect in effects):
            assert any(one.begin + LEAVE_AFTER_S <= at_s <= one.end for one in week.sessions)
            assert [effect.severity for effect in effects if isinstance(effect, Note)] == [Severity.PAUSE]
            break
    else:
        assert not week.sessions


@settings(max_examples=25, deadline=None)
@given(sign=st.sampled_from(Sign), seed=st.integers(0, 99), at=st.integers(60, WEEK_S // LOOK_S // 20))
def test_tampering_is_found_in_the_midst_of_daily_use(sign: Sign, seed: int, at: int) -> None:
    week, dog = Week(seed), Watchdog()
    observations = week.observations()
    for at_s, seen in observations:
        assert not any(isinstance(effect, Tampered) for effect in dog.step(seen, at_s))
        if at_s // LOOK_S >= at and isinstance(seen, Use):
            break
    effects = [effect for seen in TRACES[sign] for effect in dog.step(seen, at_s)]
    (found,) = (effect for effect in effects if isinstance(effect, Tampered))
    assert found.sign is sign and found.text
    for _, (at_s, seen) in zip(range(200), observations, strict=False):
        assert dog.step(seen, at_s) == [], "nothing follows after a report"


OBSERVATIONS = st.one_of(
    st.builds(EngineCall, st.sampled_from([*SIGN_OF_CALL, *QUIET_CALLS, "top", "attach", "kill"]), st.booleans()),
    st.builds(Processes, st.just(()) | st.just((5,)), st.just(()) | st.just(((5, 6),))),
    st.builds(Settings, st.sampled_from("12"), st.sampled_from(["", "a", "b"]), st.sampled_from(["", "c"])),
    st.builds(Gap, st.text(max_size=300), st.floats(0, 1e6), st.text(max_size=300)),
    st.builds(
        Use, st.none() | st.booleans(), st.none() | st.integers(0, 4_000), st.none() | st.integers(0, 10**6),
        st.none() | st.integers(0, 1_000),
    ),
)  # fmt: skip


def can_read_the_job(seen: Observation) -> bool:
    match seen:
        case EngineCall(action, is_own):
            return action in SIGN_OF_CALL and not is_own
        case Processes(strangers, tracers):
            return bool(strangers or tracers)
        case Settings(_, drift):
            return bool(drift)
        case _:
            return False


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(seen=st.lists(OBSERVATIONS, max_size=40), steps=st.lists(st.floats(0, 500), min_size=40, max_size=40),
       policy=st.builds(Policy, *[st.sampled_from(Yielding)] * 3), is_adopted=st.booleans())  # fmt: skip
def test_only_what_reads_the_job_is_tampering_and_all_of_it_is(
    seen: list[Observation], steps: list[float], policy: Policy, is_adopted: bool
) -> None:
    dog, now_s, share, is_over = Watchdog(policy, is_adopted), 0.0, Share.WHOLE, False
    for one, step in zip(seen, steps, strict=False):
        now_s += step
        effects: list[Effect] = dog.step(one, now_s)
        if is_over:
            assert effects == []
            continue
        tampered = [effect for effect in effects if isinstance(effect, Tampered)]
        if tampered:
            assert can_read_the_job(one) and len(tampered) == 1 and len(tampered[0].text) <= 200
        elif can_read_the_job(one):
            assert isinstance(one, Settings), "what was asked or entered is a sign at once"
        for effect in effects:
            if isinstance(effect, Share):
                assert effect is not share and isinstance(one, Use)
                share = effect
            if isinstance(effect, Leave):
                assert policy.of(Cause(effect.why)) is Yielding.LEAVE
            if isinstance(effect, Note):
                assert len(effect.text) <= 200 and effect.severity is not Severity.TAMPER
        is_over = any(isinstance(effect, Tampered | Leave) for effect in effects)


def test_an_owner_that_ignores_use_keeps_its_job_at_full_speed() -> None:
    dog = Watchdog(Policy(*[Yielding.IGNORE] * 3))
    assert not [
        dog.step(Use(True, 1_000, 90_000, 1_000), now_s) for now_s in range(9) if dog.step(Use(True), now_s)
    ]


def test_a_share_comes_back_after_a_calm_while_and_one_look_is_no_use() -> None:
    dog = Watchdog()
    assert dog.step(Use(desktop=True), 0) == []
    assert Share.LEAST in dog.step(Use(desktop=True), 10)
    assert dog.step(Use(), 20) == []
    assert dog.step(Use(), 20 + CALM_S - 1) == []
    assert Share.WHOLE in dog.step(Use(), 20 + CALM_S)
    assert dog.step(Use(gpu_permille=900), 100) == [], "a monitor that asks once"
    assert dog.step(Use(), 110) == []


def test_settings_that_another_engine_tells_otherwise_are_no_sign() -> None:
    dog = Watchdog()
    assert dog.step(Settings("1"), 0) == []
    assert [type(effect) for effect in dog.step(Settings("2", "Ulimits: None"), 1)] == [Note]
    assert dog.step(Settings("2", "Ulimits: None"), 2) == []
    assert [type(effect) for effect in dog.step(Settings("2", "Mounts: /etc"), 3)] == [Tampered]
    adopted = Watchdog(is_adopted=True)
    assert [type(effect) for effect in adopted.step(Settings("1", "Ulimits: None"), 0)] == [Note]
    assert [type(effect) for effect in Watchdog().step(Settings("1", "Mounts: /etc"), 0)] == [Tampered]


def test_limits_that_an_owner_changes_are_apart_from_what_may_be_read() -> None:
    host = {"Memory": 5, "NanoCpus": 7, "Privileged": False, "CapAdd": [], "Mounts": []}
    body = {"Image": "i", "HostConfig": host, "Labels": {}, "Env": []}
    found = {"Image": "i", "HostConfig": {**host}, "Config": {"Labels": {}, "Env": []}, "Mounts": []}
    assert differences(body, found) == ("", "")
    drift, limits = differences(body, {**found, "HostConfig": {**host, "NanoCpus": 1}})
    assert not drift and limits.startswith("NanoCpus")
    for name, value in (("Privileged", True), ("CapAdd", ["SYS_PTRACE"])):
        drift, _ = differences(body, {**found, "HostConfig": {**host, name: value}})
        assert drift.startswith(name)
    more = {"Source": "/etc", "Destination": "/e", "RW": False, "Type": "bind"}
    assert differences(body, {**found, "Mounts": [more]})[0].startswith("Mounts")
    assert differences(body, {**found, "Image": "other"})[0].startswith("Image")


def test_own_calls_are_taken_off_one_by_one() -> None:
    calls = OwnCalls()
    assert not calls.take("c", "export")
    calls.expect("c", "export")
    calls.expect("c", "export")
    assert calls.take("c", "export") and not calls.take("d", "export") and not calls.take("c", "commit")
    calls.forget("c", "export")
    assert not calls.take("c", "export")


def test_calls_whose_events_were_lost_do_not_make_a_later_own_call_a_strangers() -> None:
    calls = OwnCalls()
    for number in range(2 * OWN_CALLS_MAX):
        calls.expect(f"gone {number}", "archive-path")
    calls.expect("c", "archive-path")
    assert calls.take("c", "archive-path") and not calls.take("gone 0", "archive-path")


def test_what_an_engine_does_itself_is_not_said_to_be_asked_by_others() -> None:
    for action in ("oom", "kill", "top"):
        assert Watchdog().step(EngineCall(action), 0) == [Note(Severity.INFO, f"the engine tells of: {action}")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional={
    "timeNano": JSON | st.integers(0, 2**63), "Action": JSON | st.sampled_from(["export", "exec_start: sh"]),
    "Actor": JSON | st.fixed_dictionaries({"ID": JSON | st.just(CONTAINER)}, optional={"Attributes": JSON}),
}))  # fmt: skip
def test_whatever_an_engine_tells_is_read_or_left_out(event: dict[str, object]) -> None:
    watch, seen = ContainerWatch(Engine("/nowhere"), CONTAINER, 0, None), list[Observation]()
    watch._take(event, seen.append)
    watch._take(event, seen.append)
    assert len(seen) <= 1, "an event that is repeated is taken once"
    assert all(isinstance(one, EngineCall) and not one.is_own for one in seen)


class FakeProc:
    """A folder like /proc, with processes in namespaces."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, process: int, parent: int, space: str, *, files: str = "", tracer: int = 0) -> None:
        folder = self.root / str(process)
        (folder / "ns").mkdir(parents=True)
        os.symlink(f"pid:[{space}]", folder / "ns" / "pid")
        os.symlink(f"mnt:[{files or space}]", folder / "ns" / "mnt")
        (folder / "status").write_text(f"Name:\tx\nPPid:\t{parent}\nTracerPid:\t{tracer}\n")
        (folder / "stat").write_text(f"{process} (a b) S {parent} 0\n")
        (folder / "cgroup").write_text("0::/system.slice/docker-abcd.scope\n")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    made = FakeProc(tmp_path / "proc")
    for process, parent in ((1, 0), (50, 1), (60, 1)):
        made.add(process, parent, "host")
    made.add(100, 50, "job")  # the first process, a child of the engine's
    made.add(101, 100, "job")
    made.add(102, 101, "job")
    return made


def test_a_container_alone_has_no_stranger_and_may_trace_itself(proc: FakeProc) -> None:
    proc.add(103, 102, "job", tracer=101)  # a debugger inside
    proc.add(104, 103, "deeper", files="job")  # a namespace of its own, where its kernel lets it
    proc.add(105, 104, "deeper", files="job")
    assert look_at_processes(100, proc.root) == Processes()
    assert sees_container(100, "abcd", proc.root) and not sees_container(100, "ef", proc.root)
    assert look_at_processes(999, proc.root) is None


@pytest.mark.parametrize(("space", "files"), [("job", "job"), ("job", "host"), ("host", "job")])
def test_a_process_that_entered_is_a_stranger(proc: FakeProc, space: str, files: str) -> None:
    proc.add(200, 60, space, files=files)
    assert look_at_processes(100, proc.root) == Processes((200,))


def test_a_tracer_outside_is_found_at_any_process(proc: FakeProc) -> None:
    proc.add(103, 102, "job", tracer=60)
    assert look_at_processes(100, proc.root) == Processes((), ((103, 60),))
    (proc.root / "100" / "status").write_text("PPid:\t50\nTracerPid:\t60\n")
    assert look_at_processes(100, proc.root) == Processes((), ((100, 60), (103, 60)))


def test_jobs_of_this_node_are_told_from_others(proc: FakeProc) -> None:
    proc.add(61, 60, "host")
    spaces = frozenset({"pid:[job]"})
    assert is_job(102, spaces, 60, proc.root) and is_job(61, spaces, 60, proc.root)
    assert not is_job(50, spaces, 60, proc.root) and not is_job(999, spaces, 60, proc.root)


# The machine's programs, as they answer


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


def test_cards_desktop_and_load_are_read_from_the_machines_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (
        HEADER
        + "    0  77  C  97  -  -  -  -  -  18000  0  python\n    0  88  C+G  41  -  -  -  -  -  6000  0  a game\n"
    )
    (tmp_path / "table").write_text(rows)
    program(tmp_path, "nvidia-smi", f'test "$1" = pmon && cat {tmp_path}/table\n')
    program(
        tmp_path, "loginctl",
        'case "$1" in list-sessions) echo " 1 1000 me seat0 tty2"; echo "c2 120 gdm seat0";;\n'
        f'*) cat "{tmp_path}/session-$2";; esac\n',
    )  # fmt: skip
    active = "Type=wayland\nActive=yes\nIdleHint=no\nRemote=no\nClass=user\n"
    (tmp_path / "session-1").write_text(active)
    (tmp_path / "session-c2").write_text(active.replace("user", "greeter"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    usage = tmp_path / "cpuacct.usage"
    usage.write_text("0\n")
    others = OthersOnMachine(lambda process: process == 77, ((usage, "", 10**9),))
    assert others.look() == Use(True, 410, 6_000, None)
    usage.write_text(f"{10**15}\n")
    assert (others.look().load_permille or 0) > 1_000
    for changed in ("IdleHint=yes", "Active=no", "Remote=yes", "Type=tty"):
        name = changed.partition("=")[0]
        kept = [line for line in active.splitlines() if not line.startswith(name)]
        (tmp_path / "session-1").write_text("\n".join([*kept, changed]) + "\n")
        assert others.look().desktop is False, changed
    program(tmp_path, "nvidia-smi", "echo no devices; exit 9\n")
    program(tmp_path, "loginctl", "exit 1\n")
    found = OthersOnMachine(lambda _: False, ((tmp_path / "none", "", 1),)).look()
    assert found == Use() and found.causes() == frozenset()


@given(st.text(max_size=400))
def test_any_table_of_a_card_is_read(text: str) -> None:
    for row in read_process_table(HEADER + text):
        assert row.process >= 0 and row.permille >= 0 and row.memory_mib >= 0


def test_a_wiped_file_has_no_byte_of_its_contents_on_the_drive(tmp_path: Path) -> None:
    disk = ContainerDisk(tmp_path / "task")
    place = disk.input_path(0)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"input" * 1_000)
    image = tmp_path / "task" / "disk.img"
    with image.open("wb") as file:
        file.write(b"secret" * 1_000)
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"more")
    with image.open("rb") as kept, place.open("rb") as other:
        assert disk.wipe()
        assert not any(kept.read()) and not any(other.read())
    assert not disk.folder.exists() and disk.wipe()
