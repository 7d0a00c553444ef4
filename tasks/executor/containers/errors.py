"""What can go wrong around a container; each code ends up in logs and in what the chain is told."""

from __future__ import annotations

from tasks.executor.errors import ExecutorError

__all__ = [
    "BadOutputs",
    "ContainerRefused",
    "DigestMismatch",
    "EgressUnavailable",
    "EngineError",
    "EngineUnavailable",
    "FolderChanges",
    "ImageTooLarge",
    "ImageUnavailable",
    "NoRoom",
    "NotStarted",
    "RequestInvalid",
    "SettingsDiffer",
]


class RequestInvalid(ExecutorError):
    """A container that no machine runs: a path, a name or a size is outside its limits."""

    code = "container_invalid"


class ContainerRefused(ExecutorError):
    """This machine does not run such a container: its operator's options or its engine exclude it."""

    code = "container_refused"


class EgressUnavailable(ContainerRefused):
    """A container is to reach names, and this node cannot give it a proxy."""

    code = "egress_unavailable"


class EngineUnavailable(ExecutorError):
    """Nothing answers on the engine's socket, or it is too old."""

    code = "engine_unavailable"


class EngineError(ExecutorError):
    """The engine answered with an error; ``status`` is that of HTTP."""

    code = "engine_error"

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{text} (status {status})")
        self.status = status


class ImageUnavailable(ExecutorError):
    """The image cannot be pulled: no such repository or digest, no permission, or no route to the registry."""

    code = "image_unavailable"


class ImageTooLarge(ExecutorError):
    """The image needs more of the disk than the operator allows."""

    code = "image_too_large"


class DigestMismatch(ExecutorError):
    """The image at hand is not the one with the digest that was asked for."""

    code = "image_digest_mismatch"


class NoRoom(ExecutorError):
    """The disk has no room for the container or its image."""

    code = "no_disk_space"


class NotStarted(ExecutorError):
    """The engine cannot start the container: its program or its folder is not in the image, say."""

    code = "container_not_started"


class SettingsDiffer(ExecutorError):
    """The engine made a container with other settings than were ordered; it was removed before its start."""

    code = "container_settings_differ"


class FolderChanges(ExecutorError):
    """A folder changed each time that it was read; it is tried again later."""

    code = "folder_changes"


class BadOutputs(ExecutorError):
    """The outputs exceed their limit, or what the engine sent of them is not an archive."""

    code = "outputs_invalid"
