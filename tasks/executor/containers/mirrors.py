"""Mirrors of registries: an owner's machines pull an image elsewhere, by the same digest (market.md R145).

The digest of a task's specification decides what runs, wherever the bytes come from. So a mirror can withhold an
image and cannot change it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from tasks.executor.containers.errors import ContainerRefused, RequestInvalid
from tasks.executor.containers.request import DIGEST_BYTES, ContainerRequest, Image

__all__ = ["MIRRORS_MAX", "NO_MIRRORS", "Mirrors", "parse_mirrors"]

MIRRORS_MAX: Final = 16
_HUB: Final = "docker.io"


@dataclass(frozen=True)
class Mirrors:
    """Registries, or repositories of one, and where images of them are pulled instead."""

    rows: tuple[tuple[str, str], ...] = ()

    def of(self, image: Image) -> Image:
        """Return an image as it is pulled: the longest name that covers it counts, and the digest stays.

        Raises ContainerRefused for a name that no registry has.
        """
        whole = _whole(image)
        for name, mirror in sorted(self.rows, key=lambda row: -len(row[0])):
            if whole == name or whole.startswith(f"{name}/"):
                try:
                    return replace(image, repository=mirror + whole[len(name) :])
                except RequestInvalid as error:
                    raise ContainerRefused(f"{image.repository}: at its mirror: {error}") from None
        return image

    def source(self, request: ContainerRequest) -> Image:
        """Return the image of a request as it is pulled.

        One that its requester's login opens is pulled where that login belongs. Raises ContainerRefused.
        """
        if request.archive or request.secrets.login is not None:
            return request.image
        return self.of(request.image)


NO_MIRRORS: Final = Mirrors()


def parse_mirrors(texts: Iterable[str]) -> Mirrors:
    """Return the mirrors that options name, as ``docker.io=mirror.example/hub``. Raises ContainerRefused."""
    rows: dict[str, str] = {}
    for text in texts:
        name, equals, mirror = text.partition("=")
        if not equals or not _is_place(name) or not _is_place(mirror):
            shown = "one with a login" if "@" in text else repr(text[:80])
            raise ContainerRefused(f"a mirror as docker.io=mirror.example/hub expected, not {shown}")
        if name in rows:
            raise ContainerRefused(f"{name} has two mirrors")
        rows[name] = mirror
    if len(rows) > MIRRORS_MAX:
        raise ContainerRefused(f"{len(rows)} mirrors, at most {MIRRORS_MAX}")
    return Mirrors(tuple(sorted(rows.items())))


def _is_place(name: str) -> bool:
    """Tell whether a name is a registry, or a path of one."""
    try:
        image = Image(f"{name}/a", bytes(DIGEST_BYTES))
    except RequestInvalid:
        return False
    return name.partition("/")[0] == image.registry


def _whole(image: Image) -> str:
    """Return the repository with its registry: ``busybox`` stands for ``docker.io/library/busybox``."""
    first, slash, rest = image.repository.partition("/")
    if slash and first == image.registry:
        path = rest
    else:
        path = image.repository
    if image.registry == _HUB and "/" not in path:
        path = f"library/{path}"
    return f"{image.registry}/{path}"
