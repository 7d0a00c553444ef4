"""A private job on its requester's machine: its key, its encrypted data set, and what stands on chain of them."""

from __future__ import annotations

import tempfile
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from rpc.client import Client
from state.primitives.keys import SecretKey
from state.primitives.manifests import manifest_of
from tasks.custody.chunks import BlobCommitment
from tasks.custody.keys import KeyCommitments, derive_key, input_key_name
from tasks.custody.sealed import seal_input, task_key_of
from tasks.spec import JobSpec

__all__ = ["INPUTS", "PrivateJob", "make_private", "put_private"]

INPUTS = 1
"""Inputs with keys of a training job: its data set."""


class PrivateJob(NamedTuple):
    """A job whose ``spec`` names the encrypted data set ``blob``; its terms of custody have ``key_root``.

    ``commitment`` is what the chain is told of the data set if others are to keep it.
    """

    spec: JobSpec
    blob: bytes
    key_root: bytes
    commitment: BlobCommitment


def make_private(secret: SecretKey, spec: JobSpec, dataset: bytes) -> PrivateJob:
    """Return the private form of a job on the plain ``dataset``, for the account of ``secret``."""
    key = task_key_of(secret.secret, spec)
    sealed = seal_input(derive_key(key, input_key_name(0)), spec.dataset.root, dataset)
    spec = spec.changed(dataset=spec.dataset._replace(blob=manifest_of(BytesIO(sealed.blob)).blob_id))
    return PrivateJob(spec, sealed.blob, KeyCommitments(key, INPUTS, spec.windows).root, sealed.commitment)


def put_private(client: Client, job: PrivateJob, control: Path) -> None:
    """Put the encrypted data set into the store of the node at ``control``."""
    # Beside the control socket: the node, which may be in another container, opens the file by its path.
    with tempfile.NamedTemporaryFile(dir=control.parent, suffix=".dataset") as file:
        file.write(job.blob)
        file.flush()
        client.upload(Path(file.name), control=control)
