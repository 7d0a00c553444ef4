"""Archives of images: what programs write is read, and nothing that differs from its hashes (R146)."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.kinds.folders import ArchiveInvalid, unpack
from tasks.kinds.image_archives import (
    GZIP_LAYER,
    LAYERS_MAX,
    PLAIN_LAYER,
    ArchivedImage,
    ImageInvalid,
    engine_archive,
    read_image,
)
from tasks.kinds.tar_heads import HEAD_BYTES_MAX
from tests.tasks.images import OCI, config_of, described, docker_save, layout, named, tar

FIRST: Final = tar({"bin/a": b"a" * 700})
SECOND: Final = tar({"etc/b": b"b" * 1500})
LAYERS: Final = (FIRST, SECOND, FIRST)


def read(data: bytes, limit: int = 1 << 30) -> ArchivedImage:
    return read_image(io.BytesIO(data), unpacked_max=limit)


@pytest.mark.parametrize("is_gzip", [False, True])
@pytest.mark.parametrize("is_nested", [False, True])
def test_an_oci_layout_has_the_digest_of_its_manifest(is_gzip: bool, is_nested: bool) -> None:
    data = layout(LAYERS, is_gzip=is_gzip, is_nested=is_nested)
    found = read(data)
    assert named(found.manifest).encode() in data
    assert found.config == config_of(LAYERS)
    assert [layer.media_type for layer in found.layers] == [GZIP_LAYER if is_gzip else PLAIN_LAYER] * 3
    assert (found.architecture, found.unpacked_bytes) == ("amd64", len(FIRST) + len(SECOND))


def test_an_archive_of_docker_has_a_manifest_that_follows_from_it() -> None:
    found = read(docker_save(LAYERS))
    assert found == read(docker_save(LAYERS))
    value = json.loads(found.manifest)
    assert value["config"]["digest"] == named(config_of(LAYERS))
    assert [layer["digest"] for layer in value["layers"]] == [named(layer) for layer in LAYERS]
    assert found.layers[0] == found.layers[2], "a layer that is a link in the archive"


def test_a_layer_of_several_gzip_members_is_read() -> None:
    half = len(FIRST) // 2
    data = gzip.compress(FIRST[:half], mtime=0) + gzip.compress(FIRST[half:], mtime=0)
    found = read(docker_save((data,), config=config_of((FIRST,))))
    assert (found.layers[0].media_type, found.unpacked_bytes) == (GZIP_LAYER, len(FIRST))


@pytest.mark.parametrize("make", [layout, docker_save])
def test_what_engines_get_is_the_same_image_in_both_forms(make: Callable[..., bytes]) -> None:
    file = io.BytesIO(make(LAYERS))
    found = read_image(file)
    data = b"".join(engine_archive(found, file))
    again = read(data)
    assert (again.digest, again.config, again.unpacked_bytes) == (found.digest, found.config, found.unpacked_bytes)
    assert [layer[:3] for layer in again.layers] == [layer[:3] for layer in found.layers]
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
        assert len(names) == len(set(names)) == 3 + 2 + 2
        [docker] = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
        layers = [archive.extractfile(name).read() for name in docker["Layers"]]  # type: ignore[union-attr]
    plain = [gzip.decompress(one) if one.startswith(b"\x1f\x8b") else one for one in layers]
    assert plain == list(LAYERS)
    assert f"blobs/sha256/{hashlib.sha256(found.config).hexdigest()}" == docker["Config"]


def blob(data: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"


WRONG: Final = {
    "no archive": b"x" * 2048,
    "an empty one": tar({}),
    "compressed as a whole": gzip.compress(layout(LAYERS)),
    "another layer": layout(LAYERS, is_gzip=False, changed={blob(SECOND): SECOND[:-1] + b"x"}),
    "a shorter layer": layout(LAYERS, is_gzip=False, changed={blob(SECOND): SECOND[:-512]}),
    "another configuration": layout(LAYERS, changed={blob(config_of(LAYERS)): config_of(LAYERS) + b" "}),
    "a configuration of other layers": layout(LAYERS, config=config_of((FIRST, SECOND, SECOND))),
    "of one layer less": layout(LAYERS, config=config_of((FIRST, SECOND))),
    "for windows": layout(LAYERS, config=config_of(LAYERS, os="windows")),
    "for a strange processor": layout(LAYERS, config=config_of(LAYERS, architecture="../x")),
    "two images": layout(LAYERS, manifests=2),
    "two images of docker": docker_save(LAYERS, images=2),
    "no layers": layout(()),
    "too many layers": layout([FIRST] * (LAYERS_MAX + 1)),
    "layers from elsewhere": layout(
        LAYERS, more={"layers": [described(f"{OCI}.layer.v1.tar", one, urls=["https://x"]) for one in LAYERS]}
    ),
    "zstd": layout(LAYERS, more={"layers": [described(f"{OCI}.layer.v1.tar+zstd", one) for one in LAYERS]}),
    "zstd in an archive of docker": docker_save((b"\x28\xb5\x2f\xfd" + bytes(64),)),
    "gzip that is none": layout(
        LAYERS, is_gzip=False, more={"layers": [described(f"{OCI}.layer.v1.tar+gzip", one) for one in LAYERS]}
    ),
    "only what a build says of itself": layout(LAYERS, platform={"os": "unknown", "architecture": "unknown"}),
    "a name twice": layout(LAYERS, changed={"index.json": b'{"manifests":[],"manifests":[]}'}),
    "deep JSON": layout(LAYERS, changed={"index.json": b"[" * 100_000}),
    "large JSON": layout(LAYERS, changed={"index.json": b" " * (5 << 20)}),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_archives_are_refused(name: str) -> None:
    raised = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)  # a node's: a library of the tests (py_ecc, of web3) raises that of the process
    try:
        with pytest.raises(ArchiveInvalid):
            read(WRONG[name])
    finally:
        sys.setrecursionlimit(raised)


def test_layers_are_bounded_as_they_unpack() -> None:
    data = layout([tar({"zeros": bytes(4 << 20)})])
    assert len(data) < 64 << 10, "it is small as it lies there"
    with pytest.raises(ImageInvalid, match="more bytes than are allowed"):
        read(data, 1 << 20)


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../b"])
def test_no_path_of_an_archive_is_used(name: str) -> None:
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    assert read(layout(LAYERS, changed={name: b"x"})) is not None, "nothing is written, so a name does no harm"
    manifest = json.dumps([{"Config": "link", "RepoTags": None, "Layers": [name]}]).encode()
    with pytest.raises(ImageInvalid, match="missing"):
        read(tar({"manifest.json": manifest, "link": link}))


@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK]
)
def test_n68_heads_of_gigabytes_are_not_read_into_memory(kind: bytes, tmp_path: Path) -> None:
    """A head may say that it is a terabyte."""
    head = tarfile.TarInfo("x")
    head.type, head.size = kind, 1 << 40

    class Long(io.BytesIO):
        largest = 0

        def read(self, size: int | None = -1) -> bytes:
            assert size is not None
            Long.largest = max(Long.largest, size)
            return super().read(size)

    data = head.tobuf(tarfile.GNU_FORMAT) + bytes(4096)
    with pytest.raises(ImageInvalid, match="heads"):  # what callers give the task up for
        read_image(Long(data))
    with pytest.raises(ArchiveInvalid, match="heads"):
        unpack(Long(data), tmp_path / "made", limit_bytes=1 << 62)
    assert 0 < Long.largest <= HEAD_BYTES_MAX


@given(st.binary(max_size=64), st.integers(0), st.booleans())
@example(b"", 0, False)
def test_damaged_archives_are_refused_or_are_the_same_image(patch: bytes, at: int, is_docker: bool) -> None:
    whole = docker_save(LAYERS) if is_docker else layout(LAYERS)
    at %= len(whole)
    data = whole[:at] + patch + whole[at + len(patch) :]
    try:
        found = read(data)
    except ArchiveInvalid:
        return
    # Names of files and unread entries may differ: configuration and layers cannot.
    assert found.config == config_of(LAYERS) or is_docker
    assert hashlib.sha256(found.manifest).digest() == found.digest
