"""The image of our node for tests: what the Dockerfile makes, without an engine and without a pull.

Debian with its Python, the locked dependencies and the code are layers of their own. Each is made once, and kept
in a cache of this user. Programs and packages that no node in a cluster runs are left out: a test cluster is new
each time, and unpacks all of it.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import pytest

ROOT: Final = Path(__file__).parents[2]
HOME: Final = "/home/dekube"
USER: Final = 10001
PACKAGES: Final = "opt/dekube/lib/python3.11/site-packages"
RELEASE: Final = "bookworm"
VERSION: Final = 2
"""Of what is made here: another number makes the layers anew."""
UNUSED: Final = (
    "dev", "var/cache", "var/lib/apt", "var/lib/dpkg", "var/log", "usr/share/doc", "usr/share/locale",
    "usr/share/man", "usr/share/info", "usr/share/perl5", "usr/share/bash-completion", "usr/share/zoneinfo",
    "usr/lib/apt", "usr/lib/x86_64-linux-gnu/perl-base", "usr/lib/x86_64-linux-gnu/gconv", "usr/include",
    "usr/lib/python3.11/test",
)  # fmt: skip
UNUSED_PACKAGES: Final = ("scikit-learn", "scipy", "joblib", "threadpoolctl", "narwhals", "setuptools")
"""For importing data sets and for building; the Dockerfile has the first."""
LAYERS_KEPT: Final = 12
"""Packed layers in the cache, newest first."""
BUILD_S: Final = 900
CONFIG_TYPE: Final = "application/vnd.docker.container.image.v1+json"
MANIFEST_TYPE: Final = "application/vnd.docker.distribution.manifest.v2+json"
LAYER_TYPE: Final = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@dataclass(frozen=True)
class Layer:
    """A layer: the packed file, and the hash of the archive in it."""

    packed: bytes
    content: str


def push_node_image(port: int, name: str = "dekube-node") -> str:
    """Put the image into the registry of a port; return its digest. Skips where it cannot be built."""
    layers = node_layers()
    config = json.dumps({
        "architecture": "amd64", "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [one.content for one in layers]},
        "config": {
            "Env": ["PATH=/opt/dekube/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"],
            "User": str(USER), "WorkingDir": HOME, "Entrypoint": ["dekube"],
            "Cmd": ["node", "run", "--home", HOME],
        },
    }).encode()  # fmt: skip
    base = f"http://127.0.0.1:{port}/v2/{name}"
    manifest = json.dumps({
        "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": _described(CONFIG_TYPE, config),
        "layers": [_described(LAYER_TYPE, one.packed) for one in layers],
    }).encode()  # fmt: skip
    with httpx.Client(trust_env=False, timeout=60) as client:
        for blob in (config, *(one.packed for one in layers)):
            place = client.post(f"{base}/blobs/uploads/").raise_for_status().headers["Location"]
            client.put(f"{place}&digest={_named(blob)}", content=blob).raise_for_status()
        client.put(
            f"{base}/manifests/1", content=manifest, headers={"Content-Type": MANIFEST_TYPE}
        ).raise_for_status()
    return _named(manifest)


def node_layers() -> tuple[Layer, ...]:
    """Return the layers, of which two may lie in the cache."""
    lock = (ROOT / "requirements.lock").read_bytes()
    return (
        _cached(f"base-{RELEASE}", _base),
        _cached(f"packages-{hashlib.sha256(lock).hexdigest()[:16]}", _packages),
        _cached(f"code-{_hash_of_code()}", _code),
    )


def _hash_of_code() -> str:
    """Return a hash of all that an installation of this tree takes."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True,
        check=True,
    ).stdout.split(b"\0")  # fmt: skip
    found = hashlib.sha256()
    for name in sorted(set(listed)):
        path = ROOT / os.fsdecode(name)
        if not name.startswith((b"tests/", b"docs/", b"build/")) and path.is_file():
            found.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def _cached(name: str, make: Callable[[Path], None]) -> Layer:
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "dekube-tests" / "node-image"
    )
    cache.mkdir(parents=True, exist_ok=True)
    file, note = cache / f"{name}-{VERSION}.tar.gz", cache / f"{name}-{VERSION}.content"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            made = _packed(make)
            file.write_bytes(made.packed)
            note.write_text(made.content)
            notes = sorted(cache.glob("*.content"), key=lambda one: one.stat().st_mtime, reverse=True)
            for old in notes[LAYERS_KEPT:]:
                old.with_suffix(".tar.gz").unlink(missing_ok=True)
                old.unlink()
        os.utime(note)
        return Layer(file.read_bytes(), note.read_text())


def _packed(make: Callable[[Path], None]) -> Layer:
    """Return a layer of what ``make`` puts into a folder; all of it belongs to root."""
    with tempfile.TemporaryDirectory(prefix="node-image-") as folder:
        root = Path(folder) / "root"
        root.mkdir(mode=0o755)
        make(root)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as layer:
            layer.add(root, "", filter=_kept)
    content = archive.getvalue()
    return Layer(gzip.compress(content, 1, mtime=0), _named(content))


def _kept(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if any(info.name == one or info.name.startswith(f"{one}/") for one in UNUSED):
        return None
    if f"/{PACKAGES}/" in f"/{info.name}" and info.isdir() and info.name.rpartition("/")[2] == "tests":
        return None
    info.mtime = 0
    if info.name == HOME[1:] or info.name.startswith(f"{HOME[1:]}/"):
        info.uid = info.gid = USER
    return info


def _base(root: Path) -> None:
    """Debian with Python, and the user of the node."""
    if shutil.which("debootstrap") is None:
        pytest.skip("NO IMAGE OF THE NODE IS BUILT HERE: debootstrap is not installed")
    _run("debootstrap", "--variant=minbase", "--include=python3", RELEASE, str(root))
    for file, line in (("passwd", f"dekube:x:{USER}:{USER}::{HOME}:/bin/sh"), ("group", f"dekube:x:{USER}:")):
        with (root / "etc" / file).open("a") as opened:
            opened.write(line + "\n")
    (root / HOME[1:]).mkdir(mode=0o755)


def _packages(root: Path) -> None:
    """The locked dependencies, in a virtual environment of Debian's Python."""
    locked = root / "requirements.lock"
    parts = re.split(r"^(?=[a-z0-9])", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    locked.write_text("".join(one for one in parts if one.partition("==")[0] not in UNUSED_PACKAGES))
    _install(root, "--only-binary=:all:", "--require-hashes", "-r", str(locked))
    locked.unlink()
    environment = root / "opt" / "dekube"
    (environment / "bin").mkdir(exist_ok=True)
    (environment / "bin" / "python3").symlink_to("/usr/bin/python3")
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")


def _code(root: Path) -> None:
    """The packages of this tree, and the command."""
    _install(root, "--no-deps", "--no-build-isolation", "--no-index", str(ROOT))
    command = root / "opt" / "dekube" / "bin" / "dekube"
    command.parent.mkdir()
    command.write_text("#!/opt/dekube/bin/python3\nimport sys\nfrom node.cli import main\nsys.exit(main())\n")
    command.chmod(0o755)


def _install(root: Path, *what: str) -> None:
    packages = root / PACKAGES
    _run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check",
        "--python-version=3.11", "--no-deps", f"--target={packages}", *what,
    )  # fmt: skip
    shutil.rmtree(packages / "bin", ignore_errors=True)  # commands for the Python of this machine
    # A container's file system is read-only: else each start would compile all that it loads.
    _run(
        sys.executable, "-m", "compileall", "-q", "-j", "2", "--invalidation-mode", "unchecked-hash",
        "-s", str(root), "-p", "/", str(packages),
    )  # fmt: skip


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
    if done.returncode:
        pytest.skip(f"NO IMAGE OF THE NODE IS BUILT HERE: {done.stderr[-600:]}")


def _described(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": kind, "size": len(blob), "digest": _named(blob)}


def _named(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
