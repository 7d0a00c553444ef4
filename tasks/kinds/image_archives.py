"""Images as one file: what ``docker save``, ``podman save``, ``skopeo copy`` and ``buildah push`` write (R146).

Two forms are read: an OCI layout in a tar, and Docker's own archive. The same file has the same digest everywhere:
that of the image's OCI manifest. Docker's archive has none; then it follows from configuration and layers.

The file is a stranger's. Sizes and numbers are bounded, hashes of all parts are compared, and no path of it is
used: its parts are read at their places in the file. What an engine gets is an archive that is written here.
"""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Final, NamedTuple

from tasks.kinds.tar_heads import ArchiveInvalid, HeadReader

__all__ = [
    "GZIP_LAYER",
    "LAYERS_MAX",
    "PLAIN_LAYER",
    "UNPACKED_BYTES_MAX",
    "ArchivedImage",
    "ImageInvalid",
    "LayersTooLarge",
    "Part",
    "engine_archive",
    "read_image",
]  # fmt: skip

ENTRIES_MAX: Final = 4_096
LAYERS_MAX: Final = 127
"""What engines stack at most."""
JSON_BYTES_MAX: Final = 4 << 20
"""Of a manifest or a configuration; registries take no larger ones."""
IMAGES_MAX: Final = 64
INDEX_DEPTH_MAX: Final = 3
NAME_BYTES_MAX: Final = 4_096
UNPACKED_BYTES_MAX: Final = 1 << 40
_PIECE: Final = 1 << 20
_GZIP_PIECE: Final = 1 << 16
GZIP_MEMBERS_MAX: Final = 1 << 18
"""Of a layer: each one costs a copy of the rest of a piece."""
_BLOCK: Final = 512

CONFIG: Final = "application/vnd.oci.image.config.v1+json"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
PLAIN_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
GZIP_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
_DOCKER: Final = "application/vnd.docker."
_CONFIGS: Final = (CONFIG, f"{_DOCKER}container.image.v1+json")
MANIFESTS: Final = (MANIFEST, f"{_DOCKER}distribution.manifest.v2+json")
_INDEXES: Final = ("application/vnd.oci.image.index.v1+json", f"{_DOCKER}distribution.manifest.list.v2+json")
_PLAIN: Final = (PLAIN_LAYER, f"{_DOCKER}image.rootfs.diff.tar")
_GZIP: Final = (GZIP_LAYER, f"{_DOCKER}image.rootfs.diff.tar.gzip")
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_WORD: Final = re.compile(r"[a-z0-9_]{1,32}", re.ASCII)
_GZIP_MAGIC: Final = b"\x1f\x8b"
_OTHER_MAGIC: Final = {b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


_TOO_LARGE: Final = "its layers have more bytes than are allowed"


class ImageInvalid(ArchiveInvalid):
    """A file is no archive of one image that machines can load."""

    code = "image_archive_invalid"


class LayersTooLarge(ImageInvalid):
    """The layers of an image have more bytes than the caller allows."""

    code = "image_layers_too_large"


class Part(NamedTuple):
    """A part of an image in its archive: SHA-256, size, media type, and where in the file it begins."""

    digest: bytes
    size_bytes: int
    media_type: str
    offset: int

    @property
    def name(self) -> str:
        """The digest as engines and registries write it."""
        return f"sha256:{self.digest.hex()}"


class ArchivedImage(NamedTuple):
    """An image in an archive, all of it compared with its hashes.

    ``unpacked_bytes`` are those of its layers without compression, as archives.
    """

    manifest: bytes
    media_type: str
    config: bytes
    layers: tuple[Part, ...]
    architecture: str
    unpacked_bytes: int

    @property
    def digest(self) -> bytes:
        """The SHA-256 of its manifest, which names it."""
        return hashlib.sha256(self.manifest).digest()

    @property
    def config_digest(self) -> bytes:
        """The SHA-256 of its configuration: the image's id on engines that keep no manifests."""
        return hashlib.sha256(self.config).digest()


def read_image(file: IO[bytes], *, unpacked_max: int = UNPACKED_BYTES_MAX) -> ArchivedImage:
    """Return the one image of an archive. Blocking: all of the file is read.

    Raises ImageInvalid, also for layers that have more than ``unpacked_max`` bytes together; OSError.
    """
    archive = _Archive(file)
    if "index.json" in archive.entries and "oci-layout" in archive.entries:
        manifest, media_type, config, layers = _of_layout(archive)
    elif "manifest.json" in archive.entries:
        manifest, media_type, config, layers = _of_docker(archive)
    else:
        raise ImageInvalid("neither an OCI layout nor an archive of `docker save`: it has no index.json")
    architecture, wanted = _checked_config(config)
    if len(wanted) != len(layers):
        raise ImageInvalid(f"{len(layers)} layers, and its configuration names {len(wanted)}")
    unpacked, known = 0, dict[tuple[int, str], tuple[bytes, bytes, int]]()
    for number, (layer, plain) in enumerate(zip(layers, wanted, strict=True)):
        place = layer.offset, layer.media_type
        if place not in known:
            known[place] = _hashes(archive.pieces(layer), layer.media_type in _GZIP, unpacked_max - unpacked)
            unpacked += known[place][2]
        stored, found, _ = known[place]
        if stored != layer.digest or found != plain:
            raise ImageInvalid(f"layer {number}: other bytes than its hash says")
    return ArchivedImage(manifest, media_type, config, tuple(layers), architecture, unpacked)


def engine_archive(image: ArchivedImage, file: IO[bytes]) -> Iterator[bytes]:
    """Yield an archive for an engine, with what was checked and nothing else: OCI layout and Docker's form in one.

    ``file`` is the one that was read.
    """
    manifest = Part(image.digest, len(image.manifest), image.media_type, 0)
    config = Part(image.config_digest, len(image.config), CONFIG, 0)
    index = {
        "manifests": [_described(manifest)],
        "mediaType": _INDEXES[0],
        "schemaVersion": 2,
    }
    docker = [{"Config": _place(config), "Layers": [_place(layer) for layer in image.layers], "RepoTags": None}]
    for name, data in (
        ("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", _written(index)),
        ("manifest.json", _written(docker)), (_place(manifest), image.manifest), (_place(config), image.config),
    ):  # fmt: skip
        yield from _entry(name, len(data), [data])
    for layer in dict.fromkeys(image.layers):
        yield from _entry(_place(layer), layer.size_bytes, part_pieces(file, layer))
    yield bytes(2 * _BLOCK)


def part_pieces(file: IO[bytes], part: Part) -> Iterator[bytes]:
    """Yield the bytes of a part. Raises ImageInvalid if the file is shorter than it was."""
    file.seek(part.offset)
    left = part.size_bytes
    while left:
        piece = file.read(min(left, _PIECE))
        if not piece:
            raise ImageInvalid("the archive ends too early")
        left -= len(piece)
        yield piece


def _entry(name: str, size: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    head = tarfile.TarInfo(name)
    head.size, head.mode = size, 0o644
    yield head.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    yield from pieces
    yield bytes(-size % _BLOCK)


def _place(part: Part) -> str:
    return f"blobs/sha256/{part.digest.hex()}"


def _described(part: Part) -> dict[str, Any]:
    return {"mediaType": part.media_type, "digest": part.name, "size": part.size_bytes}


def _written(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class _Archive:
    """The entries of an archive: files by their names, as place and size."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = file.seek(0, io.SEEK_END)
        self.entries: dict[str, tuple[int, int]] = {}
        file.seek(0)
        links = dict[str, str]()
        heads = HeadReader(file)
        try:
            with tarfile.open(mode="r:", fileobj=heads) as found:
                for number, entry in enumerate(found):
                    heads.next_entry()
                    if number >= ENTRIES_MAX:
                        raise ImageInvalid(f"more than {ENTRIES_MAX} entries")
                    self._add(entry, links)
        except ArchiveInvalid as error:
            raise ImageInvalid(str(error)) from None
        except (tarfile.TarError, UnicodeError, ValueError, EOFError, OverflowError, RecursionError) as error:
            raise ImageInvalid(f"not an archive without compression: {str(error)[:80]}") from None
        for name, target in links.items():  # `docker save` of old versions writes a layer once
            if target in self.entries:
                self.entries.setdefault(name, self.entries[target])

    def _add(self, entry: tarfile.TarInfo, links: dict[str, str]) -> None:
        name = entry.name.removeprefix("./")
        if entry.isdir():
            return
        if len(name) > NAME_BYTES_MAX or name in self.entries or name in links:
            raise ImageInvalid(f"{name[:80]!r} is there twice, or is too long a name")
        if entry.issym():
            links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), entry.linkname))
            return
        if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or entry.issparse():
            raise ImageInvalid(f"{name[:80]!r}: regular files and folders alone")
        if not 0 <= entry.size <= self.size - entry.offset_data:
            raise ImageInvalid("the archive ends too early")
        self.entries[name] = entry.offset_data, entry.size

    def find(self, name: str) -> tuple[int, int]:
        """Return place and size of a file."""
        if name not in self.entries:
            raise ImageInvalid(f"{name[:80]!r} is missing in the archive")
        return self.entries[name]

    def read(self, name: str) -> bytes:
        """Return a small file."""
        offset, size = self.find(name)
        if size > JSON_BYTES_MAX:
            raise ImageInvalid(f"{name[:80]!r}: {size} bytes, at most {JSON_BYTES_MAX}")
        return b"".join(part_pieces(self._file, Part(b"", size, "", offset)))

    def pieces(self, part: Part) -> Iterator[bytes]:
        """Yield the bytes of a part."""
        return part_pieces(self._file, part)


_Read = tuple[bytes, str, bytes, list[Part]]
"""Manifest and its media type, configuration, layers; the hashes of layers are not compared yet."""


def _json(data: bytes, what: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name occurs twice")
        return found

    try:
        return json.loads(data, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise ImageInvalid(f"{what}: not JSON") from None


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ImageInvalid(f"{what}: an object expected")
    return value


def _descriptor(value: Any, what: str) -> tuple[str, bytes, int]:
    """Return media type, digest and size of what a descriptor names."""
    match value:
        case {"mediaType": str(media_type), "digest": str(name), "size": int(size)} if (
            (found := _DIGEST.fullmatch(name)) and type(size) is int and size >= 0
        ):
            if value.get("urls"):
                raise ImageInvalid(f"{what}: it is to be fetched from elsewhere, which no machine does")
            return media_type, bytes.fromhex(found[1]), size
    raise ImageInvalid(f"{what}: media type, digest (sha256) and size expected")


def _of_layout(archive: _Archive) -> _Read:
    """Return the one image of an OCI layout."""
    found = dict[bytes, tuple[str, str]]()
    left = [IMAGES_MAX]
    _collect(archive, archive.read("index.json"), INDEX_DEPTH_MAX, found, left)
    if len(found) != 1:
        shown = ", ".join(sorted({platform for _, platform in found.values()})) or "none"
        raise ImageInvalid(f"{len(found)} images ({shown}): an archive of one image for one platform expected")
    [(digest, (media_type, _))] = found.items()
    manifest = _hashed(archive, digest, "manifest")
    value = _object(_json(manifest, "manifest"), "manifest")
    if value.get("schemaVersion") != 2 or value.get("mediaType", media_type) != media_type:
        raise ImageInvalid("manifest: another version or media type than its index says")
    media, config, size = _descriptor(value.get("config"), "configuration")
    if media not in _CONFIGS:
        raise ImageInvalid(f"configuration: {media[:80]!r} is none of an image")
    listed = value.get("layers")
    if not isinstance(listed, list) or not 0 < len(listed) <= LAYERS_MAX:
        raise ImageInvalid(f"manifest: 1 to {LAYERS_MAX} layers expected")
    layers = []
    for number, item in enumerate(listed):
        media, layer, length = _descriptor(item, f"layer {number}")
        if media not in (*_PLAIN, *_GZIP):
            raise ImageInvalid(f"layer {number}: {media[:80]!r}; layers as tar or gzip expected, not zstd")
        offset, there = archive.find(f"blobs/sha256/{layer.hex()}")
        if there != length:
            raise ImageInvalid(f"layer {number}: {there} bytes, and the manifest says {length}")
        layers.append(Part(layer, length, media, offset))
    content = _hashed(archive, config, "configuration")
    if len(content) != size:
        raise ImageInvalid("configuration: another size than the manifest says")
    return manifest, media_type, content, layers


def _hashed(archive: _Archive, digest: bytes, what: str) -> bytes:
    data = archive.read(f"blobs/sha256/{digest.hex()}")
    if hashlib.sha256(data).digest() != digest:
        raise ImageInvalid(f"{what}: other bytes than its hash says")
    return data


def _collect(
    archive: _Archive, index: bytes, depth: int, found: dict[bytes, tuple[str, str]], left: list[int]
) -> None:
    """Add the images of an index that are in the archive, with media type and platform; ``left`` bounds them."""
    listed = _object(_json(index, "index"), "index").get("manifests")
    if not isinstance(listed, list):
        raise ImageInvalid("index: a list of manifests expected")
    for item in listed:
        left[0] -= 1
        if left[0] < 0:
            raise ImageInvalid(f"more than {IMAGES_MAX} images")
        media_type, digest, _ = _descriptor(item, "index")
        if f"blobs/sha256/{digest.hex()}" not in archive.entries:
            continue  # an engine that has one platform of several writes that one
        if media_type in _INDEXES:
            if not depth:
                raise ImageInvalid("indexes in indexes in indexes")
            _collect(archive, _hashed(archive, digest, "index"), depth - 1, found, left)
        elif media_type in MANIFESTS:
            platform = _platform(item)
            if platform != "unknown/unknown":  # what a build says of itself
                found[digest] = media_type, platform
        else:
            raise ImageInvalid(f"index: {media_type[:80]!r} is no image")


def _platform(item: Mapping[str, Any]) -> str:
    match item.get("platform"):
        case {"os": str(system), "architecture": str(architecture)}:
            return f"{system[:32]}/{architecture[:32]}"
        case _:
            return "one of no named platform"


def _of_docker(archive: _Archive) -> _Read:
    """Return the one image of an archive of ``docker save``; its manifest is made from what it has."""
    listed = _json(archive.read("manifest.json"), "manifest.json")
    if not isinstance(listed, list) or len(listed) != 1:
        count = len(listed) if isinstance(listed, list) else 0
        raise ImageInvalid(f"manifest.json: {count} images, an archive of one image expected")
    match listed[0]:
        case {"Config": str(config_name), "Layers": [*names]} if 0 < len(names) <= LAYERS_MAX and all(
            type(name) is str for name in names
        ):
            pass
        case _:
            raise ImageInvalid(f"manifest.json: a configuration and 1 to {LAYERS_MAX} layers expected")
    config = archive.read(config_name)
    known, layers = dict[int, Part](), []
    for number, name in enumerate(names):
        offset, size = archive.find(name)
        if offset not in known:
            head = b"".join(archive.pieces(Part(b"", min(8, size), "", offset)))
            for magic, form in _OTHER_MAGIC.items():
                if head.startswith(magic):
                    raise ImageInvalid(f"layer {number}: layers as tar or gzip expected, not {form}")
            media = GZIP_LAYER if head.startswith(_GZIP_MAGIC) else PLAIN_LAYER
            whole = hashlib.sha256()
            for piece in archive.pieces(Part(b"", size, "", offset)):
                whole.update(piece)
            known[offset] = Part(whole.digest(), size, media, offset)
        layers.append(known[offset])
    named = Part(hashlib.sha256(config).digest(), len(config), CONFIG, 0)
    manifest = {
        "config": _described(named), "layers": [_described(layer) for layer in layers], "mediaType": MANIFEST,
        "schemaVersion": 2,
    }  # fmt: skip
    return _written(manifest), MANIFEST, config, layers


def _checked_config(data: bytes) -> tuple[str, list[bytes]]:
    """Return the processor that a configuration names, and the hashes of the layers without compression."""
    value = _object(_json(data, "configuration"), "configuration")
    system, architecture = value.get("os"), value.get("architecture")
    if system != "linux" or type(architecture) is not str or not _WORD.fullmatch(architecture):
        raise ImageInvalid(f"configuration: an image for linux expected, not {str(system)[:32]!r}")
    match value.get("rootfs"):
        case {"type": "layers", "diff_ids": [*names]} if all(type(name) is str for name in names):
            found = [_DIGEST.fullmatch(name) for name in names]
            if all(found):
                return architecture, [bytes.fromhex(one[1]) for one in found if one is not None]
        case _:
            pass
    raise ImageInvalid("configuration: no hashes of its layers")


def _hashes(pieces: Iterable[bytes], is_gzip: bool, left: int) -> tuple[bytes, bytes, int]:
    """Return the hash of a layer as it is, that of its archive, and the bytes of this; at most ``left``."""
    if not is_gzip:
        return _plain_hashes(pieces, left)
    stored, plain, size, members = hashlib.sha256(), hashlib.sha256(), 0, 1
    inflating = zlib.decompressobj(wbits=31)
    for piece in pieces:
        stored.update(piece)
        for at in range(0, len(piece), _GZIP_PIECE):
            waiting = piece[at : at + _GZIP_PIECE]
            while waiting:
                if inflating.eof:  # a file of several parts, as compressors that work in parallel write
                    inflating, members = zlib.decompressobj(wbits=31), members + 1
                    if members > GZIP_MEMBERS_MAX:
                        raise ImageInvalid(f"a layer of more than {GZIP_MEMBERS_MAX} parts")
                try:
                    found = inflating.decompress(waiting, _PIECE)
                except zlib.error:
                    raise ImageInvalid("a layer that is not gzip") from None
                waiting = inflating.unused_data if inflating.eof else inflating.unconsumed_tail
                size += len(found)
                if size > left:
                    raise LayersTooLarge(_TOO_LARGE)
                plain.update(found)
    if not inflating.eof:
        raise ImageInvalid("a layer that ends too early")
    return stored.digest(), plain.digest(), size


def _plain_hashes(pieces: Iterable[bytes], left: int) -> tuple[bytes, bytes, int]:
    whole, size = hashlib.sha256(), 0
    for piece in pieces:
        whole.update(piece)
        size += len(piece)
        if size > left:
            raise LayersTooLarge(_TOO_LARGE)
    return whole.digest(), whole.digest(), size
