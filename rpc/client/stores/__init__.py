"""Stores of inputs and results: a folder of this machine, or a bucket of an S3-compatible server."""

from rpc.client.stores.fetching import (
    blobs_named,
    cache_folder,
    fetch_request,
    fetch_source,
    is_remote,
    model_named,
    outputs_named,
    remove_unused,
    replaced,
)
from rpc.client.stores.putting import PutReport, put_folder

__all__ = [
    "PutReport", "blobs_named", "cache_folder", "fetch_request", "fetch_source", "is_remote", "model_named",
    "outputs_named", "put_folder", "remove_unused", "replaced",
]  # fmt: skip
