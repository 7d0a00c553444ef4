"""Control groups of jobs: where a process is, bounds that hold, and groups that are gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.executor import measures
from tasks.executor.control_groups import ControlGroups, JobGroup, Placed, _unified, open_groups, placed
from tasks.executor.errors import JobFailed
from tasks.executor.job import ChildFrame, Hello, Progress, encode_frame
from tasks.executor.supervisor import Capabilities, ProcessBackend, ProcessOptions
from tests.tasks.executor.helpers import ignore, impostor, job_processes, make_order

ROOT = Path(__file__).parents[3]
V1 = """\
22 1 0:20 / / rw - ext4 /dev/vda rw
31 22 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:3 - cgroup cgroup rw,cpu,cpuacct
35 22 0:32 /box /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 22 0:36 / /odd\\040place/pids rw,relatime - cgroup cgroup rw,pids
40 22 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 22 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
TAKE = "data = bytearray({} << 20); data[::4096] = b'x' * len(data[::4096])"
V2 = "30 22 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def test_a_process_is_found_in_each_hierarchy_that_it_sees() -> None:
    groups = (
        "9:name=systemd:/a\n8:pids:/jobs/x\n4:memory:/box/in:side\n2:cpu,cpuacct:/\n0::/system.slice/n.service\n"
    )
    assert placed(groups, V1) == [
        Placed(frozenset({"name=systemd"}), Path("/sys/fs/cgroup/systemd/a"), Path("/sys/fs/cgroup/systemd")),
        Placed(frozenset({"pids"}), Path("/odd place/pids/jobs/x"), Path("/odd place/pids")),
        Placed(frozenset({"memory"}), Path("/sys/fs/cgroup/memory/in:side"), Path("/sys/fs/cgroup/memory")),
        Placed(frozenset({"cpu", "cpuacct"}), *[Path("/sys/fs/cgroup/cpu,cpuacct")] * 2),
        Placed(frozenset(), Path("/sys/fs/cgroup/unified/system.slice/n.service"), Path("/sys/fs/cgroup/unified")),
    ]  # fmt: skip
    assert placed("0::/\n", V2) == [Placed(frozenset(), Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup"))]
    assert placed("4:memory:/boxes/other\n", V1) == []  # beside the mount's root, not below it
    assert placed("0::/../other\n", V2) == []  # above the namespace's root
    assert placed("nonsense\n:::\n\n", "nonsense - cgroup\n\n") == []


@pytest.fixture
def groups() -> ControlGroups:
    found = open_groups()
    if found is None:
        pytest.skip("THIS MACHINE GRANTS NO CONTROL GROUPS FOR MEMORY: JOBS ARE LOOKED AT EACH SECOND HERE")
    return found


def folders(group: JobGroup) -> list[Path]:
    return list(group._folders)


def group_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def take(mib: int) -> str:
    """A program that waits for a line, then takes memory at once."""
    return f"import sys\nsys.stdin.readline()\n{TAKE.format(mib)}\n"


def run_in(group: JobGroup, program: str) -> int:
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        group.add(process.pid)
        process.communicate(b"\n", timeout=60)
    return process.returncode


def test_a_process_that_takes_too_much_is_ended_and_no_other(groups: ControlGroups) -> None:
    small, large = groups.make(64 << 20), groups.make(512 << 20)
    try:
        assert run_in(large, take(128)) == 0
        assert run_in(small, take(128)) == -9
        assert (small.memory_kills() > 0, large.memory_kills()) == (True, 0)
    finally:
        assert small.remove()
        assert large.remove()
    assert not any(path.exists() for path in [*folders(small), *folders(large)])


def test_what_left_its_session_ends_with_the_group(groups: ControlGroups) -> None:
    group = groups.make(256 << 20)
    program = (
        "import os, sys, time\nsys.stdin.readline()\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)\n"
    )
    assert run_in(group, program) == 0
    left = (folders(group)[0] / "cgroup.procs").read_text().split()
    assert left
    assert group.remove()
    assert not any(is_alive(pid) for pid in left)


def test_groups_of_a_node_that_is_gone_are_removed(groups: ControlGroups) -> None:
    program = (
        "from tasks.executor.control_groups import open_groups\nprint(*open_groups().make(1 << 26)._folders)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    mine = groups.make(64 << 20)
    try:
        made = [Path(name) for name in done.stdout.split()]
        same = [path.with_name(f"dekube-job-{os.getpid()}-00000000-0") for path in made]  # in a container, say
        for path in same:
            path.mkdir()
        made += same
        assert made
        assert all(path.exists() for path in made)
        groups.remove_leftovers()
        assert not any(path.exists() for path in made)
        assert all(path.exists() for path in folders(mine))
    finally:
        mine.remove()


async def test_a_job_is_in_a_group_of_its_own(groups: ControlGroups) -> None:
    heard: list[Capabilities] = []
    seen: list[str] = []

    async def listen(message: ChildFrame) -> None:
        if isinstance(message, Progress) and not seen:
            seen.extend(group_of(pid) for pid in job_processes())

    await ProcessBackend(ProcessOptions(engine="numpy"), on_start=heard.append).run(make_order(), listen)
    assert measures.MEMORY in heard[0].isolation
    assert f"/dekube-job-{os.getpid()}-" in seen[0]
    group = groups.make(1 << 26)
    parents = {path.parent for path in folders(group)}
    group.remove()
    assert not [path for parent in parents for path in parent.glob(f"dekube-job-{os.getpid()}-*")]


async def test_a_job_that_takes_all_memory_at_once_does_not_get_it(groups: ControlGroups, tmp_path: Path) -> None:
    """A look each second would come too late: the program notes that it has the memory, and waits."""
    reached = tmp_path / "reached"
    hello = encode_frame(Hello("cuda:torch", frozenset(measures.MEASURES) - {measures.MEMORY}))
    program = impostor(
        tmp_path, f"job.sendall({hello!r})", TAKE.format(300), f"open({str(reached)!r}, 'w').close()",
        "time.sleep(60)",
    )  # fmt: skip
    options = ProcessOptions(python=program, memory_mib=96, isolation_required=frozenset({measures.MEMORY}))
    with pytest.raises(JobFailed) as raised:
        await ProcessBackend(options).run(make_order(), ignore)
    assert raised.value.reason == "out_of_memory"
    assert not reached.exists()


@pytest.fixture
def unified() -> Iterator[Path]:
    """A group of version 2 with one controller, below where the machine has it."""
    places = placed(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    tops = [place.top for place in places if not place.controllers]
    if not tops or os.geteuid() != 0:
        pytest.skip("THIS MACHINE HAS NO HIERARCHY OF VERSION 2 THAT ROOT MAY CHANGE: DELEGATION IS NOT SHOWN")
    top = tops[0]
    controllers = (top / "cgroup.controllers").read_text().split()
    if not controllers or not os.access(top / "cgroup.subtree_control", os.W_OK):
        pytest.skip("NO CONTROLLER IS FREE FOR VERSION 2 HERE: DELEGATION IS NOT SHOWN")
    folder = top / f"dekube-test-{os.getpid()}"
    (top / "cgroup.subtree_control").write_text(f"+{controllers[0]}")
    folder.mkdir()
    yield folder
    assert JobGroup([*sorted(folder.glob("*/"), reverse=True), folder]).remove()


def test_a_group_that_is_not_delegated_is_not_divided(unified: Path) -> None:
    controller = (unified / "cgroup.controllers").read_text().split()[0]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        (unified / "cgroup.procs").write_text(str(process.pid))
        place = Placed(frozenset(), unified, unified.parent)
        assert _unified(place, (controller,)) == (frozenset(), None)
        assert list(unified.glob("*/")) == []
        process.communicate(b"\n")


def test_the_processes_of_a_delegated_group_move_inside(unified: Path) -> None:
    """As ``Delegate=`` of systemd grants it; then as ``DelegateSubgroup=node`` places the process."""
    controller = (unified / "cgroup.controllers").read_text().split()[0]
    os.setxattr(unified, "trusted.delegate", b"1")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        (unified / "cgroup.procs").write_text(str(process.pid))
        place = Placed(frozenset(), unified, unified.parent)
        assert _unified(place, (controller,)) == (frozenset({controller}), unified)
        assert (unified / "node/cgroup.procs").read_text().split() == [str(process.pid)]
        assert (unified / "cgroup.subtree_control").read_text().split() == [controller]
        again = Placed(frozenset(), unified / "node", unified.parent)
        assert _unified(again, (controller,)) == (frozenset({controller}), unified)
        group = ControlGroups([unified]).make(1 << 30)
        group.add(process.pid)
        assert (folders(group)[0] / "cgroup.procs").read_text().split() == [str(process.pid)]
        assert group.remove()
        assert process.wait() == -9
