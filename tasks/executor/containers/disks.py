"""The disk of a container: a file of fixed size with a file system of its own. The kernel keeps its limit."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tasks.executor.containers.errors import NoRoom
from tasks.executor.containers.outputs import DEPTH_MAX, FILES_MAX, is_unfinished
from tasks.executor.containers.request import RESTORED
from tasks.kinds.disk_room import BLOCK_BYTES, inodes_of

__all__ = ["MARKER", "ContainerDisk", "folder_state", "image_bytes", "missing_for_disks"]

MARKER: Final = "scratch/.dekube-disk"
SECRETS_TMPFS_BYTES: Final = 1 << 20
SECRETS_INODES: Final = 256
_COMMAND_S: Final = 120
WIPE_S: Final = 300.0
WIPE_BYTES: Final = 4 << 20
_MIB: Final = 1 << 20
INODE_BYTES: Final = 256
TABLES_SHARE: Final = 256
TABLES_BYTES: Final = 1 << 20
"""Maps of the file system: so much, and one part in ``TABLES_SHARE``."""
HELD_SHARE: Final = 50
HELD_BLOCKS: Final = 4_096
"""The kernel holds one part in ``HELD_SHARE`` of all blocks back for itself, so many at most."""
_FULL_SHARE: Final = 200
"""A file system with less than this part of its blocks free counts as full."""


def missing_for_disks() -> list[str]:
    """Return what this machine lacks for disks of containers."""
    missing = [f"the program {name}" for name in ("mkfs.ext4", "mount", "umount") if _program(name) is None]
    if os.geteuid() != 0:
        missing.append("root's rights for the node (to mount the disks of containers)")
    if not Path("/dev/loop-control").exists():
        missing.append("loop devices (/dev/loop-control)")
    return missing


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin")


def image_bytes(size_mib: int, entries: int = 0) -> int:
    """Return the bytes of a disk that has ``size_mib`` for a container, and files beside those that are usual."""
    needed = (size_mib << 20) + inodes_of(size_mib, entries) * INODE_BYTES + TABLES_BYTES
    needed += needed // TABLES_SHARE
    needed += min(needed // HELD_SHARE + _MIB, HELD_BLOCKS * BLOCK_BYTES)
    return -(-needed // _MIB) * _MIB


class ContainerDisk:
    """The folder of one container: ``disk.img``, where it is mounted, and the inputs. Every call blocks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self._file = folder, folder / "disk", folder / "disk.img"
        self.secrets = folder / "secrets"
        """Where the files of secrets are: a file system in memory."""

    def input_path(self, number: int) -> Path:
        """Return where an input is put."""
        return self.folder / "inputs" / str(number)

    def make(self, size_mib: int, folders: Mapping[str, int]) -> None:
        """Make and mount it, with ``folders`` and their modes, and room for what lies ready to be restored.

        Of its bytes ``size_mib`` are the container's: what the file system itself takes comes on top.
        Raises NoRoom or OSError.
        """
        entries = sum(1 for _ in (self.folder / RESTORED).rglob("*"))
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.unmount()
        self.root.mkdir(mode=0o755, exist_ok=True)
        with self._file.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            try:
                os.posix_fallocate(file.fileno(), 0, image_bytes(size_mib, entries))
            except OSError as error:
                raise NoRoom(f"a disk of {size_mib} MiB: {error.strerror}") from None
        inodes = inodes_of(size_mib, entries)
        _run(
            "mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal,^resize_inode", "-E", "nodiscard",
            "-b", str(BLOCK_BYTES), "-I", str(INODE_BYTES), "-N", str(inodes), str(self._file),
        )  # fmt: skip
        _run("mount", "-t", "ext4", "-o", "loop,nosuid,nodev,noatime", str(self._file), str(self.root))
        (self.root / "lost+found").rmdir()
        for name, mode in folders.items():
            (self.root / name).mkdir()
            (self.root / name).chmod(mode)
        (self.root / MARKER).write_bytes(b"")

    def restore(self, name: str, user: int, *, wipes: bool = False) -> None:
        """Fill the folder ``name`` of the disk with what lies ready for it, as ``user`` could have written it.

        With ``wipes`` what lay ready is overwritten then. Raises NoRoom or OSError.
        """
        source, place = self.folder / RESTORED, self.root / name
        if not source.is_dir():
            return
        try:
            shutil.copytree(source, place, symlinks=True, dirs_exist_ok=True, copy_function=shutil.copyfile)
        except shutil.Error as error:
            raise NoRoom(f"the checkpoint: {str(error)[:200]}") from None
        place.chmod(0o777)  # the copy took the mode of its source
        for path, is_program in _found(source):
            inner = place / path.relative_to(source)
            os.chown(inner, user, user)
            # With a user namespace that user has another number outside: everybody in the container may write.
            inner.chmod(0o777 if is_program else 0o666)
        if wipes:
            overwrite(sorted(source.rglob("*")))
        shutil.rmtree(source)
        source.mkdir()  # it tells later that the container began with a checkpoint

    def put_secrets(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Write the files of secrets, by path in the container, into memory. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.forget_secrets()
        self.secrets.mkdir(mode=0o755)
        options = f"size={SECRETS_TMPFS_BYTES},nr_inodes={SECRETS_INODES},mode=0755,noexec,nosuid,nodev"
        try:
            _run("mount", "-t", "tmpfs", "-o", f"{options},noswap", "tmpfs", str(self.secrets))
        except OSError:  # a kernel before 6.4 may swap it
            _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.secrets))
        for path, content in files:
            place = self.secrets / Path(path).name
            place.write_bytes(content)
            place.chmod(0o444)

    def forget_secrets(self) -> None:
        """Remove the files of secrets from memory, if there are any."""
        while self.secrets.is_mount():
            for place in self.secrets.iterdir():
                place.write_bytes(bytes(place.stat().st_size))
                place.unlink()
            _run("umount", "-l", str(self.secrets))
        if self.secrets.exists():
            self.secrets.rmdir()

    @property
    def is_mounted(self) -> bool:
        """Whether it is mounted."""
        return self.root.is_mount()

    def is_full(self) -> bool:
        """Whether no block or no file is free."""
        if not self.is_mounted:
            return False
        found = os.statvfs(self.root)
        return found.f_bavail * _FULL_SHARE < found.f_blocks or found.f_favail == 0

    def unmount(self) -> None:
        """Unmount it, if it is mounted; a busy one goes when the last file of it is closed."""
        while self.is_mounted:
            try:
                _run("umount", str(self.root))
            except OSError:
                _run("umount", "-l", str(self.root))

    def _settle(self) -> None:
        """Have all that was written on the drive, and let nothing be written any more.

        A mount may live on where it cannot be seen: in the namespace of a container that starts meanwhile. Its
        file system would write to the file after it was overwritten.
        """
        if not self.is_mounted:
            return
        try:
            _run("mount", "-o", "remount,ro", str(self.root))
        except OSError:  # something of it is open for writing
            _run("sync", "-f", str(self.root))

    def wipe(self) -> bool:
        """Overwrite what was written of disk, inputs and a checkpoint to restore, then remove them.

        Returns False where not all was overwritten.

        Zeros go to the blocks that the file system has for them: what a drive or a file system that copies keeps
        elsewhere is out of reach. It is given up after WIPE_S.
        """
        if not self.folder.exists():
            return True
        self.forget_secrets()
        self._settle()
        self.unmount()
        files = [self._file, *sorted(self.folder.glob("*.tar"))]
        for name in ("inputs", RESTORED):
            files += sorted((self.folder / name).rglob("*"))
        is_whole = overwrite(files)
        shutil.rmtree(self.folder)
        return is_whole

    def remove(self) -> None:
        """Remove it with the inputs."""
        if self.folder.exists():
            self.forget_secrets()
            self.unmount()
            shutil.rmtree(self.folder)


def overwrite(files: Iterable[Path]) -> bool:
    """Write zeros over files, in WIPE_S at most; tell whether all were overwritten. No link is followed."""
    deadline, left = time.monotonic() + WIPE_S, 0
    for path in files:
        if path.is_file() and not path.is_symlink():
            left += not _overwrite(path, deadline)
    return not left


def _overwrite(path: Path, deadline: float) -> bool:
    """Write zeros over the parts of a file that hold data, and have them on the drive."""
    zeros = bytes(WIPE_BYTES)
    with path.open("r+b", buffering=0) as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        while at < size:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # ENXIO: no data after this place
                    raise
                break
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            for place in range(start, at, WIPE_BYTES):
                if time.monotonic() > deadline:
                    return False
                os.pwrite(file.fileno(), zeros[: min(WIPE_BYTES, at - place)], place)
        os.fsync(file.fileno())
    return True


def _found(folder: Path) -> list[tuple[Path, bool]]:
    """Return what is in a folder that this node made, and whether it is a folder or a program."""
    return [(path, path.is_dir() or bool(path.stat().st_mode & 0o100)) for path in folder.rglob("*")]


def folder_state(folder: Path) -> list[tuple[str, int, int, int]]:
    """Return names, sizes, times and numbers of the finished files in a container's folder; no link is followed.

    Where two looks differ, something was written between them. Of a folder that is too large or too deep only
    the first files are looked at: it is not stored anyway.
    """
    found: list[tuple[str, int, int, int]] = []
    for root, folders, files, handle in os.fwalk(folder, follow_symlinks=False):
        folders.sort()
        for name in (*folders, *sorted(files)):
            if is_unfinished(name):
                continue
            try:
                state = os.stat(name, dir_fd=handle, follow_symlinks=False)
            except FileNotFoundError:  # renamed meanwhile: the next look sees it
                continue
            size = 0 if stat.S_ISDIR(state.st_mode) else state.st_size
            times = 0 if stat.S_ISDIR(state.st_mode) else state.st_mtime_ns
            found.append((os.path.join(root, name), size, times, state.st_ino))
        if len(found) > FILES_MAX or root.count("/") - str(folder).count("/") >= DEPTH_MAX:
            break
    return found


def _run(name: str, *arguments: str) -> None:
    program = _program(name)
    if program is None:
        raise OSError(f"the program {name} is missing")
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, timeout=_COMMAND_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{name}: not done in {_COMMAND_S} s") from None
    if done.returncode:
        raise OSError(f"{name}: {done.stderr.decode('utf-8', 'replace').strip()[-300:]}")
