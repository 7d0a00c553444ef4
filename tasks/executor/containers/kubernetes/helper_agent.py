"""Two programs of a pod: the agent, which works with the rights of the requester's container, and who asks it.

The Python of the helper's image runs this file alone (3.9 or newer), so it imports nothing of this project. A pod
gets its text. ``serve`` runs in a container of its own, under the user of the requester's container: it alone
may read that one's files and signal its processes. No command of the node enters that container, since the
requester's processes could stop the runtime at it. ``run WORDS`` does, in the helper's container, under another
user. It has the agent run the words, writes what they say, and ends as they do. ``end`` ends the agent.

The agent also ends a container with more processes, or more files on its disk, than it may have (R165). A cluster
bounds neither by itself: a pod may take all numbers of processes and all inodes of its machine.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import time

FOLDER = "/dekube/agent"
DOOR = FOLDER + "/agent.sock"
USE = FOLDER + "/use"
ASKED_BYTES_MAX = 64 << 10
ASKED_S = 10.0
WORKS_MAX = 16
CHUNK_BYTES = 64 << 10
HEAD = struct.Struct(">I")
LAST = 1 << 31
"""Added to a head: what follows is no output, but the exit code alone."""
SILENCE_S = 50.0
"""An agent that says nothing for so long is stopped, or gone. The node hears that before it takes the stream for
broken (``exec_stream``), which it would try again for minutes."""
TRIES = 50
TRY_S = 0.1
LOOK_S = 5.0
WHY = FOLDER + "/why"
"""The name of the bound that a container has passed, and how far."""
DISK = "/dekube/disk"
COUNT_S = 0.2
FILES_S = 10.0
FILES_SHARE = 10
"""Files are counted for a tenth of the time at most."""
MORE_FILES = 3
"""Exit code of a count of files that found too many. A count that fails ends with another one."""
DEPTH_MAX = 256
"""A folder that is deeper is not looked into: its disk counts as full."""
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NAME_BYTES = 32
"""What a name takes of a folder that cannot be read, at least on the usual file systems."""
USE_FORM = struct.Struct(">QQ")
FILE_BYTES_MAX = 64 << 10
LOOKED_AT_MAX = 256
"""Processes that are looked at to find one of the requester's container."""
NO_AGENT = 75
NOT_RUN = 126


def received(connection: socket.socket, size: int) -> bytes:
    """Return so many bytes. Raises OSError where fewer come."""
    found = b""
    while len(found) < size:
        data = connection.recv(size - len(found))
        if not data:
            raise OSError("the connection ended")
        found += data
    return found


def run(words: list[str]) -> int:
    """Have the agent run a command; return its exit code, NO_AGENT where there is no agent that answers."""
    for _ in range(TRIES):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(SILENCE_S)
        try:
            made.connect(DOOR)
            break
        except OSError:
            made.close()
            time.sleep(TRY_S)
    else:
        return NO_AGENT
    try:
        asked = json.dumps(words).encode()
        made.sendall(HEAD.pack(len(asked)) + asked)
        while True:
            (size,) = HEAD.unpack(received(made, HEAD.size))
            if size & LAST:
                return int(size & 0xFF)
            if size > CHUNK_BYTES:
                return NO_AGENT
            data = received(made, size)
            while data:
                data = data[os.write(1, data) :]
    except OSError:
        return NO_AGENT
    finally:
        made.close()


def work(connection: socket.socket) -> None:
    """Run what one connection asks for, in a process of its own, and tell what it says and how it ends."""
    connection.settimeout(ASKED_S)
    (size,) = HEAD.unpack(received(connection, HEAD.size))
    if size > ASKED_BYTES_MAX:
        return
    words = json.loads(received(connection, size))
    if words == ["end"]:
        os.kill(os.getppid(), signal.SIGKILL)
        return
    connection.settimeout(None)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # so that all of it can be ended
        os.dup2(write, 1)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 2)
        os.closerange(3, 64)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            os.execvp(words[0], words)  # noqa: S606
        finally:
            os._exit(NOT_RUN)
    os.close(write)
    try:
        while True:
            readable, _, _ = select.select([read, connection.fileno()], [], [])
            if connection.fileno() in readable:  # it says nothing more: it has gone
                break
            data = os.read(read, CHUNK_BYTES)
            if not data:
                _, status = os.waitpid(child, 0)
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                connection.sendall(HEAD.pack(LAST | code))
                return
            connection.sendall(HEAD.pack(len(data)) + data)
    finally:
        try:
            os.killpg(child, signal.SIGKILL)
        except OSError:
            pass


def serve(how: str, processes_max: int, files_max: int) -> None:
    """Run what is asked for until the pod ends; ``stay``: not before the pod's time to end is over."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN if how == "stay" else lambda *_: os._exit(0))
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(DOOR + ".new")
    os.chmod(DOOR + ".new", 0o666)  # noqa: S103  the helper has another user; nobody else has the volume
    door.listen(WORKS_MAX)
    os.rename(DOOR + ".new", DOOR)
    works: set[int] = set()
    measured_at, files = 0.0, FilesWatch(files_max)
    while True:
        # Once: what has ended may stand in the list for long, and the agent has works of its own then.
        if (count := processes()) > processes_max and has_others():
            end_others(f"processes {count}")
        if files.look() and has_others():
            end_others(f"files {files_max}")
        for one in list(works):
            if os.waitpid(one, os.WNOHANG)[0]:
                works.discard(one)
        if time.monotonic() > measured_at + LOOK_S:
            measured_at = time.monotonic()
            note_use()
        readable, _, _ = select.select([door] if len(works) < WORKS_MAX else [], [], [], COUNT_S)
        if not readable:
            continue
        connection, _ = door.accept()
        child = os.fork()
        if child == 0:
            door.close()
            try:
                work(connection)
            finally:
                os._exit(0)
        works.add(child)
        connection.close()


def processes() -> int:
    """Return how many processes the pod has, with their threads: each takes a number of the machine."""
    return sum(threads_of(name) for name in os.listdir("/proc") if name.isdigit())


def threads_of(process: str) -> int:
    """Return how many threads a process has: each is a folder, which the kernel counts as a link. At least 1."""
    try:
        return max(1, os.stat(f"/proc/{process}/task").st_nlink - 2)
    except OSError:  # it has ended
        return 1


def has_others() -> bool:
    """Whether a process of this user lives that has another root folder: one of the requester's container."""
    own = os.stat("/proc/self/root/")
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                found = os.stat(f"/proc/{name}/root/")
            except OSError:  # it has ended, or is the helper's
                continue
            if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
                return True
    return False


def end_others(why: str) -> None:
    """End all processes of this user but this one, at once: none can make another one meanwhile."""
    try:
        with open(WHY, "x", encoding="utf-8") as file:
            file.write(why)
    except OSError:  # it was written before, or its folder is full
        pass
    if os.getuid() == 0 or os.geteuid() == 0:  # no pod's agent is: it would end what is not its own
        return
    try:
        os.kill(-1, signal.SIGKILL)
    except OSError:  # there is none
        pass


class FilesWatch:
    """Counts the files of the disk now and then, in a process of its own: there may be millions."""

    def __init__(self, files_max: int) -> None:
        self.files_max = files_max
        self.child, self.began, self.again_at = 0, 0.0, time.monotonic() + FILES_S

    def look(self) -> bool:
        """Whether the disk was found to hold too many files since the last call."""
        now = time.monotonic()
        if self.child:
            found, status = os.waitpid(self.child, os.WNOHANG)
            if found:
                self.child, self.again_at = 0, now + max(FILES_S, FILES_SHARE * (now - self.began))
                return os.WIFEXITED(status) and os.WEXITSTATUS(status) == MORE_FILES
        elif now > self.again_at:
            self.began, self.again_at = now, now + FILES_S
            try:
                self.child = os.fork()
            except OSError:  # no more processes: those are counted
                return False
            if self.child == 0:
                code = 1
                try:
                    os.nice(10)
                    code = MORE_FILES if has_more_files(DISK, self.files_max) else 0
                finally:
                    os._exit(code)
        return False


def has_more_files(root: str, files_max: int) -> bool:
    """Whether a folder has more files and folders below it; no link is followed."""
    return files_in(None, root, files_max, 0) > files_max


def files_below(folder: int, files_max: int, depth: int) -> int:
    """Count the files and folders below an open folder; more than ``files_max``: too many, or too deep.

    Each folder is opened from the one above it. So no path is too long, and no list of folders fills the memory.
    """
    if depth > DEPTH_MAX:
        return files_max + 1
    count = 0
    try:
        with os.scandir(folder) as found:
            for one in found:
                count += 1
                if one.is_dir(follow_symlinks=False):
                    count += files_in(folder, one.name, files_max - count, depth + 1)
                if count > files_max:
                    break
    except OSError:  # it is gone
        pass
    return count


def files_in(above: int | None, name: str, files_max: int, depth: int) -> int:
    """Count the files and folders of a folder in an open one; one that cannot be read counts by its size."""
    try:
        handle = os.open(name, FOLDER_FLAGS, dir_fd=above)
    except OSError:
        try:
            return os.stat(name, dir_fd=above, follow_symlinks=False).st_size // NAME_BYTES
        except OSError:
            return 0
    try:
        return files_below(handle, files_max, depth)
    finally:
        os.close(handle)


def note_use() -> None:
    """Write what the requester's container uses, for the helper to tell."""
    try:
        with open(USE + ".new", "wb") as file:
            file.write(use_of_others())
        os.rename(USE + ".new", USE)
    except OSError:  # its folder is full, or another one: nothing is told
        pass


def use_of_others() -> bytes:
    """Return nanoseconds of processors and bytes of memory of the requester's container; nothing if unknown.

    Its processes have another root folder, and see the limits of their own container in it.
    """
    own = os.stat("/proc/self/root/")
    for name in [one for one in os.listdir("/proc") if one.isdigit() and one != "1"][:LOOKED_AT_MAX]:
        root = f"/proc/{name}/root"
        try:
            found = os.stat(root + "/")
            if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
                return USE_FORM.pack(*use_below(root + "/sys/fs/cgroup"))
        except (OSError, ValueError, KeyError, struct.error):
            continue
    return b""


def use_below(folder: str) -> tuple[int, int]:
    """Return the use that a control group tells, in either version. Raises OSError, ValueError, KeyError."""
    if os.path.exists(folder + "/cgroup.controllers"):
        used = numbers(folder + "/cpu.stat")["usage_usec"] * 1_000
        held, cached = int(short(folder + "/memory.current")), numbers(folder + "/memory.stat")["inactive_file"]
    else:
        used = int(short(folder + "/cpuacct/cpuacct.usage"))
        held = int(short(folder + "/memory/memory.usage_in_bytes"))
        cached = numbers(folder + "/memory/memory.stat").get("total_inactive_file", 0)
    return used, max(0, held - cached)


def numbers(path: str) -> dict[str, int]:
    """Return a file of lines with a name and a number."""
    return {line.split()[0]: int(line.split()[1]) for line in short(path).splitlines() if len(line.split()) == 2}


def short(path: str) -> str:
    """Return the text of a small plain file."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("not a file")
        return os.read(handle, FILE_BYTES_MAX).decode("ascii")
    finally:
        os.close(handle)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    sys.exit(run(sys.argv[2:]) if sys.argv[1] == "run" else run(["end"]))
