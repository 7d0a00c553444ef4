"""A private job on its requester's machine: its key, its encrypted data set, and what stands on chain of them."""

from __future__ import annotations

import tempfile
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from rpc.client import Client
from state.primitives.keys import SecretKey
from state.primitives.manifests import manifest_of
from tasks.custody.keys import KeyCommitments, derive_key, input_key_name
from tasks.custody.sealed import crypt_blob, task_key_of
from tasks.spec import JobSpec

__all__ = ["INPUTS", "PrivateJob", "make_private", "put_private"]

INPUTS = 1
"""Inputs with keys of a training job: its data set."""


class PrivateJob(NamedTuple):
    """A job whose ``spec`` names the encrypted data set ``cipher``; its terms of custody have ``key_root``."""

    spec: JobSpec
    cipher: bytes
    key_root: bytes


def make_private(secret: SecretKey, spec: JobSpec, dataset: bytes) -> PrivateJob:
    """Return the private form of a job on the plain ``dataset``, for the account of ``secret``."""
    key = task_key_of(secret.secret, spec)
    cipher = crypt_blob(derive_key(key, input_key_name(0)), spec.dataset.root, dataset)
    spec = spec._replace(dataset=spec.dataset._replace(blob=manifest_of(BytesIO(cipher)).blob_id))
    return PrivateJob(spec, cipher, KeyCommitments(key, INPUTS, spec.windows).root)


def put_private(client: Client, job: PrivateJob, control: Path) -> None:
    """Put the encrypted data set into the store of the node at ``control``."""
    # Beside the control socket: the node, which may be in another container, opens the file by its path.
    with tempfile.NamedTemporaryFile(dir=control.parent, suffix=".dataset") as file:
        file.write(job.cipher)
        file.flush()
        client.upload(Path(file.name), control=control)
