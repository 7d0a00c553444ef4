"""The programs of the helper's containers: ``sh`` with ``tar``, ``head``, ``sha256sum``, ``mv``, and ``python3``.

Any image with a shell and these tools will do. One command takes a piece of the inputs: it is written beside its
place, compared with its checksum and moved there whole. So a piece that is sent twice, or half, changes nothing.
Three programs are Python's: their text is in the pod, so anybody can read what runs there.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

__all__ = [
    "EGRESS_COMMAND",
    "LINK_COMMAND",
    "OVERWRITE",
    "RECEIVE",
    "WHY",
    "agent_command",
    "agent_script",
    "archive",
    "by_agent",
    "checksum",
    "end_helper",
    "end_pieces",
    "folder_command",
    "put_piece",
    "serve_command",
    "stop_all",
    "wait_for_sockets",
    "where_pieces_end",
]

ROOT: Final = "/dekube"
STAGE: Final = "/dekube/stage"
INPUTS: Final = "/dekube/inputs"
DISK: Final = "/dekube/disk"
AGENT: Final = "/dekube/agent"
COPY: Final = "/dekube/copy"

RECEIVE: Final = f"""
set -e
umask 000
mkdir -p {DISK}/scratch/home {DISK}/scratch/tmp {DISK}/scratch/cache {DISK}/output {DISK}/checkpoint
umask 022
cd {STAGE}
n=0; echo 0 > next; : > ready
trap 'exit 143' TERM
while [ ! -e end."$n" ]; do
  if [ -e "$n" ]; then cat "$n"; rm "$n"; n=$((n+1)); echo "$n" > next.new; mv next.new next; else sleep 0.05; fi
done | tar -xof - -C {ROOT}
for f in part.*; do
  [ ! -f "$f" ] || head -c "$(stat -c %s "$f")" /dev/zero | dd of="$f" conv=notrunc,fsync 2>/dev/null
  rm -f "$f"
done
: > unpacked
"""
"""Makes the folders of the disk, then unpacks the pieces in their order until the end is marked.

A piece that arrived in part is overwritten: it may be private, and nobody comes here later."""

_SERVE: Final = f"""
echo $$ > {STAGE}/pid
printf %s "$1" > {STAGE}/socket.py
printf %s "$2" > {STAGE}/agent.py
if [ -n "$4" ]; then
  printf %s "$4" > {STAGE}/egress.py
  python3 -I -S {STAGE}/egress.py serve &
fi
exec python3 -I -S {STAGE}/socket.py "$3"
"""
_AGENT: Final = f"""
printf %s "$1" > {AGENT}/agent.py
printf %s "$2" > {AGENT}/folder.py
exec python3 -I -S {AGENT}/agent.py serve "$3" "$4" "$5"
"""
_FOLDER: Final = ("python3", "-I", "-S", f"{AGENT}/folder.py")
LINK_COMMAND: Final = ("python3", "-I", "-S", f"{STAGE}/socket.py", "link")
EGRESS_COMMAND: Final = ("python3", "-I", "-S", f"{STAGE}/egress.py", "link")
_WAIT_FOR: Final = """
n=0
while [ ! -S {path} ] && [ "$n" -lt 300 ]; do n=$((n + 1)); sleep 0.05; done
"""


def wait_for_sockets(*, egress: bool) -> str:
    """Return what ends when the helper's sockets listen: only then the requester's container is started.

    Without them it starts too.
    """
    paths = ["/dekube/socket/job.sock", *([f"{STAGE}/egress.sock"] if egress else ())]
    return "".join(_WAIT_FOR.format(path=path) for path in paths)


@cache
def _program(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def serve_command(*, stays: bool, egress: bool = False) -> list[str]:
    """Return the command of the helper that serves; one that ``stays`` ignores that its pod is told to end.

    With ``egress`` it serves the door of the node's proxy too.
    """
    return [
        "/bin/sh", "-c", _SERVE, "sh", _program("helper_socket.py"), _program("helper_agent.py"),
        "stay" if stays else "serve", _program("helper_egress.py") if egress else "",
    ]  # fmt: skip


def agent_command(*, stays: bool, processes_max: int, files_max: int) -> list[str]:
    """Return the command of the agent, which has the rights of the requester's container (``helper_agent``).

    It ends that container where it has more processes, or more files on its disk.
    """
    return [
        "/bin/sh", "-c", _AGENT, "sh", _program("helper_agent.py"), _program("helper_folder.py"),
        "stay" if stays else "serve", str(processes_max), str(files_max),
    ]  # fmt: skip


def by_agent(*words: str) -> tuple[str, ...]:
    """Return the command for the helper that has the agent run these words."""
    return ("python3", "-I", "-S", f"{STAGE}/agent.py", "run", *words)


WHY: Final = by_agent("/bin/sh", "-c", f"head -c 64 {AGENT}/why")
"""Tells which bound the requester's container has passed (``helper_agent``)."""


def agent_script(script: str) -> tuple[str, ...]:
    """Return the command for the helper that has the agent run a script of the shell."""
    return by_agent("/bin/sh", "-c", script)


OVERWRITE: Final = f"""
ok=0
wipe() {{
  chmod u+rwx "$1" 2>/dev/null
  for f in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    if [ -L "$f" ]; then :
    elif [ -d "$f" ]; then wipe "$f"
    elif [ -f "$f" ]; then
      chmod u+rw "$f" 2>/dev/null
      head -c "$(stat -c %s "$f")" /dev/zero | dd of="$f" bs=65536 conv=notrunc,fsync 2>/dev/null || ok=1
    fi
  done
}}
while :; do echo; sleep 5; done & alive=$!
wipe {DISK}; wipe {INPUTS}; [ ! -d {COPY} ] || wipe {COPY}
kill $alive
exit $ok
"""
"""Overwrites all files of a private container, whose user is the agent's; no link is followed."""


def folder_command(*words: str) -> tuple[str, ...]:
    """Return the helper's command to have the folder of checkpoints read (``helper_folder``)."""
    return by_agent(*_FOLDER, *words)


def end_helper() -> str:
    """Return the script that ends agent and helper: a pod that is taken away has nothing to wait for."""
    return f"python3 -I -S {STAGE}/agent.py end; kill -9 $(cat {STAGE}/pid)"


def where_pieces_end() -> str:
    """Return the script that tells the number of the first piece which has not arrived, or ``end``."""
    return f"""
cd {STAGE} || exit 1
[ -e ready ] || exit 3
ls | grep -q '^end\\.' && {{ echo end; exit 0; }}
n=$(cat next)
while [ -e "$n" ]; do n=$((n+1)); done
echo "$n"
"""


def put_piece(number: int, size: int, sha256: str) -> str:
    """Return the script that takes a piece of ``size`` bytes from its input; 4: another content."""
    return f"""
cd {STAGE} || exit 1
while [ "$(ls | grep -c '^[0-9]*$')" -gt 1 ]; do sleep 0.05; done
head -c {size} > part.$$ || {{ rm -f part.$$; exit 1; }}
[ "$(sha256sum < part.$$)" = "{sha256}  -" ] || {{ rm -f part.$$; exit 4; }}
[ "$(cat next)" -le {number} ] && mv part.$$ {number} || rm -f part.$$
"""


def end_pieces(number: int) -> str:
    """Return the script that marks the end after ``number`` pieces: the requester's container may start."""
    return f": > {STAGE}/end.{number}"


def archive(offset: int) -> str:
    """Return the script that writes the outputs as a tar archive from an offset on."""
    tail = f" | tail -c +{offset + 1}" if offset else ""
    return f"cd {DISK} && tar -cf - output{tail}"


def checksum() -> str:
    """Return the script that tells the SHA-256 of the archive, after an empty line every few seconds meanwhile."""
    return f"""
cd {DISK} || exit 1
while :; do echo; sleep 5; done & alive=$!
sum=$(tar -cf - output | sha256sum); code=$?
kill $alive
echo "$sum"
exit $code
"""


def stop_all(signal: str) -> str:
    """Return the script that sends a signal to every process of the requester's container.

    The pod shares one list of processes. Those of the agent have its root folder; it may signal no others.
    """
    return f"""
own=$(stat -Lc %d:%i /proc/self/root/)
for p in /proc/[0-9]*; do
  n=${{p#/proc/}}
  [ "$n" = 1 ] && continue
  [ "$(stat -Lc %d:%i "$p/root/" 2>/dev/null)" = "$own" ] || kill -{signal} "$n" 2>/dev/null
done
exit 0
"""
