"""Fetches the files of a model from a repository that speaks the protocol of the Hugging Face Hub.

The library ``huggingface_hub`` fetches, resumes and reads tokens. ``HF_ENDPOINT`` names another Hub, ``HF_TOKEN``
a token. Names and sizes are looked at before a byte is fetched, contents afterwards.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from state.primitives.errors import ProtocolError
from tasks.engines.input_blobs import MODEL_SENT_BYTES_MAX
from tasks.models.huggingface import CONFIG, ENDS, INDEX, TOKENISER, WEIGHTS
from tasks.models.opening import PARTS, POOLING

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

__all__ = ["FILES_BYTES_MAX", "TEXTS", "ModelFetchFailed", "fetch_model"]

FILES_BYTES_MAX: Final = 4 * MODEL_SENT_BYTES_MAX
"""Files of one model: float32 has twice the bytes of what is sent, and files may hold more than weights."""
TEXTS: Final = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "LICENSE", "README.md")
"""Kept beside what is read, if there: they say how to talk to a model, and on which terms it may be used."""
FILES_MAX: Final = 300
"""Files of a model; shards among them."""
LISTED_MAX: Final = 20_000
"""Files that a repository may name."""
TEXT_BYTES_MAX: Final = 16 << 20
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_REVISION: Final = re.compile(r"[\w./-]{1,128}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SHARD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\.safetensors")
_HASHED_BYTES: Final = 1 << 20


class ModelFetchFailed(ProtocolError):
    """A model's files could not be had from where they are said to be; the text has the remedy."""

    code = "model_not_fetched"


class _Wanted(NamedTuple):
    name: str
    size: int
    sha256: str
    """Empty for a file that Git itself keeps: that one has ``blob``."""
    blob: str


def fetch_model(
    repository: str, folder: Path, *, token: str | None, progress: Callable[[str], None]
) -> tuple[str, str]:
    """Fetch a model's files into ``folder``; return the commit and the licence. Goes on where it was cut off.

    ``repository`` is ORG/NAME or ORG/NAME@REVISION. Raises ModelFetchFailed.
    """
    name, _, revision = repository.partition("@")
    if not _REPOSITORY.fullmatch(name) or (revision and not _REVISION.fullmatch(revision)):
        raise ModelFetchFailed(f"{repository!r}: ORG/NAME or ORG/NAME@REVISION is expected after hf:")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        from huggingface_hub import HfApi, hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise ModelFetchFailed("the extra [models] is not installed: pip install 'dekube-node[models]'") from None
    try:
        endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
        info = HfApi(endpoint, token=token).model_info(name, revision=revision or None, files_metadata=True)
        commit, wanted = _wanted(info)
        for number, file in enumerate(wanted, 1):
            progress(f"fetching {file.name} ({number} of {len(wanted)}, {file.size} bytes)")
            hf_hub_download(name, file.name, revision=commit, local_dir=folder, token=token, endpoint=endpoint)
            _check(folder / file.name, file)
    except HfHubHTTPError as error:
        raise ModelFetchFailed(f"{repository}: {_said(error)}") from None
    except OSError as error:
        raise ModelFetchFailed(f"{repository}: {error.strerror or error}; try again to go on") from None
    except Exception as error:
        if not type(error).__module__.startswith("httpx"):  # the client of the library, which changes its name
            raise
        raise ModelFetchFailed(f"{repository}: {error or type(error).__name__}; try again to go on") from None
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    card = info.card_data
    return commit, str(card.get("license") or "")[:64] if card is not None else ""


def _said(error: Exception) -> str:
    """Return the kind of an error of the Hub, with what to do."""
    kinds = {
        "GatedRepoError": "its owner must admit you first; then set HF_TOKEN or give --token-file",
        "RepositoryNotFoundError": "no such repository, or it is private: set HF_TOKEN or give --token-file",
        "RevisionNotFoundError": "it has no such revision",
        "RemoteEntryNotFoundError": "a file that it names is not there",
        "EntryNotFoundError": "a file that it names is not there",
    }
    status = getattr(getattr(error, "response", None), "status_code", None)
    return kinds.get(type(error).__name__, f"the Hub answered with status {status}")


def _wanted(info: ModelInfo) -> tuple[str, list[_Wanted]]:
    """Return the commit and the files to fetch. Raises ModelFetchFailed."""
    commit, listed = info.sha or "", info.siblings or []
    if not _COMMIT.fullmatch(commit) or len(listed) > LISTED_MAX:
        raise ModelFetchFailed("the Hub names no commit, or too many files")
    named = {one.rfilename: one for one in listed}
    found = []
    for name in _names(named):
        one = named[name]
        size = one.size if isinstance(one.size, int) else -1
        if size < 0 or (not name.endswith(".safetensors") and size > TEXT_BYTES_MAX):
            raise ModelFetchFailed(f"{name}: a size of {one.size} bytes")
        sha256 = one.lfs.sha256 if one.lfs is not None else ""
        found.append(_Wanted(name, size, sha256 or "", one.blob_id or ""))
    if len(found) > FILES_MAX or sum(one.size for one in found) > FILES_BYTES_MAX:
        raise ModelFetchFailed(f"more than {FILES_MAX} files or {FILES_BYTES_MAX} bytes")
    return commit, found


def _names(named: Iterable[str]) -> list[str]:
    """Return those of a repository's files that are fetched: no programs, no pickles."""
    there = set(named)
    names = {CONFIG, ENDS, TOKENISER, PARTS, POOLING, *TEXTS} & there
    if WEIGHTS in there:
        names.add(WEIGHTS)
    elif INDEX in there:
        names |= {INDEX, *(name for name in there if _SHARD.fullmatch(name))}
    if CONFIG not in names or not names & {WEIGHTS, INDEX}:
        raise ModelFetchFailed(f"the repository has no {CONFIG}, or neither {WEIGHTS} nor {INDEX}")
    return sorted(names)


def _check(path: Path, wanted: _Wanted) -> None:
    """Compare a fetched file with what the Hub said of it. Raises ModelFetchFailed; the file is removed."""
    size = path.stat().st_size
    digest = hashlib.sha256() if wanted.sha256 else hashlib.sha1(b"blob %d\0" % size)  # noqa: S324  what Git uses
    with path.open("rb") as file:
        while part := file.read(_HASHED_BYTES):
            digest.update(part)
    if size != wanted.size or digest.hexdigest() != (wanted.sha256 or wanted.blob):
        path.unlink()
        raise ModelFetchFailed(f"{wanted.name}: other bytes than the Hub says; try again")
