"""Images as files from the requester's side: read, checked whole, and named by their content (R146)."""

from __future__ import annotations

from pathlib import Path

from rpc.client.packing import MOUNT_SENT_BYTES_MAX, PackedFile
from state.primitives.manifests import BlobTooLarge
from tasks.kinds.container import ARCHIVED, Image
from tasks.kinds.image_archives import ImageInvalid, read_image
from tasks.requests.containing import ContainerRequest
from tasks.requests.errors import RequestInvalid

__all__ = ["pack_image"]


def pack_image(request: ContainerRequest) -> tuple[Image, PackedFile]:
    """Return the image of a request that names its file, and the file as it is sent: as it is, without a copy.

    Raises RequestInvalid, which names the file.
    """

    def wrong(text: str, code: str | None = None) -> RequestInvalid:
        return RequestInvalid(f"{request.image}: {text}", file=request.file, field="image", code=code)

    path = Path(request.image)
    try:
        if not path.is_file():
            raise wrong("no such file; `docker save -o image.tar NAME` writes one")
        if path.stat().st_size > MOUNT_SENT_BYTES_MAX:
            raise wrong(f"more than {MOUNT_SENT_BYTES_MAX} bytes")
        with path.open("rb") as file:
            found = read_image(file)
        packed = PackedFile(path, is_owned=False)
    except ImageInvalid as error:
        raise wrong(str(error), error.code) from None
    except BlobTooLarge:
        raise wrong(f"more than {MOUNT_SENT_BYTES_MAX} bytes") from None
    except OSError as error:
        raise wrong(str(error.strerror)) from None
    return Image(ARCHIVED, found.digest, packed.blob, packed.size_bytes), packed
