"""Archives of images as programs write them, made by hand: an OCI layout, and the form of ``docker save``."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

OCI: Final = "application/vnd.oci.image"


def named(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar(entries: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(mode="w", fileobj=file, format=tarfile.PAX_FORMAT) as archive:
        for name, content in entries.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def tree_layer(tree: Path) -> bytes:
    """Return a layer with the files of a folder."""
    file = io.BytesIO()
    with tarfile.open(mode="w", fileobj=file, format=tarfile.PAX_FORMAT) as archive:
        archive.add(tree, ".")
    return file.getvalue()


def config_of(layers: Sequence[bytes], **more: Any) -> bytes:
    """Return the configuration of an image of plain layers."""
    value = {
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [named(layer) for layer in layers]}, **more,
    }  # fmt: skip
    return json.dumps(value).encode()


def described(media_type: str, data: bytes, **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": named(data), "size": len(data), **more}


def layout(
    layers: Sequence[bytes], *, config: bytes | None = None, is_gzip: bool = True, manifests: int = 1,
    platform: Mapping[str, str] | None = None, changed: Mapping[str, bytes] | None = None, is_nested: bool = False,
    more: Mapping[str, Any] | None = None,
) -> bytes:  # fmt: skip
    """Return an OCI layout, as skopeo, buildah and builders of Docker write it."""
    stored = [gzip.compress(layer, mtime=0) if is_gzip else layer for layer in layers]
    form = f"{OCI}.layer.v1.tar" + ("+gzip" if is_gzip else "")
    head = config_of(layers) if config is None else config
    blobs, listed = {}, []
    for number in range(manifests):
        value = {
            "schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json",
            "config": described(f"{OCI}.config.v1+json", head), "layers": [described(form, one) for one in stored],
            **(more or {}), **({"annotations": {"number": str(number)}} if number else {}),
        }  # fmt: skip
        manifest = json.dumps(value).encode()
        extra = {} if platform is None else {"platform": dict(platform)}
        listed.append(described(f"{OCI}.manifest.v1+json", manifest, **extra))
        blobs[named(manifest)] = manifest
    index = json.dumps({"schemaVersion": 2, "manifests": listed}).encode()
    if is_nested:
        blobs[named(index)] = index
        outer = {"schemaVersion": 2, "manifests": [described(f"{OCI}.index.v1+json", index)]}
        index = json.dumps(outer).encode()
    blobs |= {named(data): data for data in (head, *stored)}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": index}
    files |= {f"blobs/{name.replace(':', '/')}": data for name, data in blobs.items()}
    return tar({**files, **(changed or {})})


def docker_save(layers: Sequence[bytes], *, config: bytes | None = None, images: int = 1) -> bytes:
    """Return the form of ``docker save`` before version 25, where a layer that occurs again is a link."""
    head = config_of(layers) if config is None else config
    entries: dict[str, bytes | tarfile.TarInfo] = {}
    names, first = [], dict[bytes, str]()
    for number, layer in enumerate(layers):
        name = f"{number:064x}/layer.tar"
        if layer in first:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"../{first[layer]}"
            entries[name] = link
        else:
            entries[name] = layer
            first[layer] = name
        entries[f"{number:064x}/VERSION"] = b"1.0"
        names.append(name)
    file = f"{hashlib.sha256(head).hexdigest()}.json"
    listed = [{"Config": file, "RepoTags": ["a/b:c"], "Layers": names} for _ in range(images)]
    return tar({**entries, file: head, "manifest.json": json.dumps(listed).encode(), "repositories": b"{}"})
