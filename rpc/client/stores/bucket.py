"""A bucket of an S3-compatible server: the calls of the library, bounded, with typed errors.

Keys, profile, region and endpoint come from the standard variables and files of AWS (AWS_ACCESS_KEY_ID,
AWS_PROFILE, AWS_ENDPOINT_URL_S3, ...); only the library reads them. Calls block, and may come from several
threads.
"""

from __future__ import annotations

import base64
import hashlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from rpc.client.stores.errors import (
    StoreChanged,
    StoreChecksum,
    StoreDenied,
    StoreExtraMissing,
    StoreFull,
    StoreMissing,
    StoreRefused,
    StoreUnreachable,
)
from rpc.client.stores.listing import Listing
from state.primitives.errors import StoreError

__all__ = ["SHA256_FIELD", "Bucket", "Head", "Part"]

_T = TypeVar("_T")

SHA256_FIELD: Final = "dekube-sha256"
"""Metadata of each object that is written here: the hash of its whole content, in hex."""
CONNECT_S: Final = 10
READ_S: Final = 60
TRIES: Final = 6
CALL_TRIES: Final = 4
"""How often the library sends a request that fails before an answer; ``TRIES`` is for what failed then."""
PAUSE_S: Final = 0.2
PAUSE_S_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 16 << 20
"""Bytes of an answer that is not content: a page of a listing has 1,000 keys of 1,024 bytes."""
PAGE_KEYS: Final = 1_000
CONNECTIONS: Final = 10
PARTS_LISTED_MAX: Final = 10_000
_KINDS: Final[tuple[tuple[type[StoreError], frozenset[str]], ...]] = (
    (StoreDenied, frozenset((
        "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "Forbidden",
        "AllAccessDisabled", "AccountProblem", "401", "403", "RequestTimeTooSkewed", "MethodNotAllowed",
        "AuthorizationHeaderMalformed",
    ))),
    (StoreMissing, frozenset(("NoSuchBucket", "NoSuchKey", "NoSuchUpload", "NotFound", "404"))),
    (StoreChanged, frozenset(("PreconditionFailed", "412", "InvalidRange", "416", "ConditionalRequestConflict"))),
    (StoreChecksum, frozenset((
        "BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "InvalidPart",
    ))),
    (StoreFull, frozenset((
        "QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "EntityTooLarge", "507",
        "XMinioAdminBucketQuotaExceeded", "InsufficientCapacity",
    ))),
)  # fmt: skip


class Head(NamedTuple):
    """What a store says of an object: version and size, and the hashes of its content, if it has any."""

    etag: str
    size_bytes: int
    sha256: str
    """Hex; empty if nothing is said."""
    md5: str
    """Hex; empty if the version is no MD5 of the content."""


class Part(NamedTuple):
    """A part of an upload that the store has."""

    etag: str
    sha256: str
    """Base64; empty if the store names none."""
    size_bytes: int


def _library() -> Any:
    try:
        import botocore.config
        import botocore.exceptions
        import botocore.session
    except ImportError:
        raise StoreExtraMissing(
            "s3:// needs packages that are not installed: pip install dekube-node[s3]"
        ) from None
    return botocore


class Bucket:
    """A bucket. Raises StoreExtraMissing without the library, StoreDenied without keys."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._library = _library()
        self._client = self._open()
        self.endpoint: str = self._client.meta.endpoint_url

    def _open(self) -> Any:
        errors = self._library.exceptions
        try:
            session = self._library.session.get_session()
            if session.get_credentials() is None:
                raise StoreDenied(
                    "no keys for s3://: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
                )
            region = session.get_config_variable("region") or "us-east-1"

            def client(style: str) -> Any:
                config = self._library.config.Config(
                    connect_timeout=CONNECT_S, read_timeout=READ_S, max_pool_connections=CONNECTIONS,
                    retries={"mode": "standard", "total_max_attempts": CALL_TRIES}, s3={"addressing_style": style},
                    request_checksum_calculation="when_required", response_checksum_validation="when_required",
                )  # fmt: skip
                return session.create_client("s3", region_name=region, config=config)

            made = client("auto")
            if ".amazonaws.com" not in made.meta.endpoint_url:
                made = client("path")  # servers of others rarely have a host name for each bucket
        except (errors.BotoCoreError, ValueError) as error:
            raise StoreDenied(f"settings of s3:// cannot be used: {type(error).__name__}") from None
        made.meta.events.register("before-send.s3", self._send)
        return made

    def _send(self, request: Any, **_: Any) -> Any:
        """Send a request; read an answer that is not content up to a limit. Redirects are not followed."""
        is_content, request.stream_output = request.stream_output, True
        answer = self._client._endpoint.http_session.send(request)
        if 300 <= answer.status_code < 400:
            raise StoreRefused("the store redirects to another address: name its own endpoint or region")
        if is_content and answer.status_code < 300:
            return answer
        found = bytearray()
        try:
            for piece in answer.raw.stream(65_536):
                found += piece
                if len(found) > ANSWER_BYTES_MAX:
                    raise StoreRefused(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        except (OSError, self._http_error) as error:
            raise self._library.exceptions.ConnectionClosedError(endpoint_url=self.endpoint, error=error) from None
        answer._content = bytes(found)
        return answer

    @property
    def _http_error(self) -> type[Exception]:
        import urllib3

        return urllib3.exceptions.HTTPError

    def _call(self, what: str, method: str, **arguments: Any) -> Any:
        """Return the answer to a call. Raises StoreError with the code of what happened."""
        errors = self._library.exceptions
        try:
            return getattr(self._client, method)(Bucket=self.name, **arguments)
        except errors.ClientError as error:
            raise self._refusal(what, error.response) from None
        except errors.NoCredentialsError:
            raise StoreDenied("no keys for s3://") from None
        except errors.BotoCoreError as error:
            raise StoreUnreachable(f"{what}: {type(error).__name__} at {self.endpoint}") from None
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            # Numbers or dates of an answer that are none: the library's parser lets these through.
            raise StoreRefused(f"{what}: an answer of another form") from None

    def _refusal(self, what: str, response: Any) -> StoreError:
        code = str(response.get("Error", {}).get("Code", ""))[:60]
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        for kind, codes in _KINDS:
            if code in codes:
                return kind(f"{what}: {code}")
        if status in (401, 403):
            return StoreDenied(f"{what}: {code}")
        if status == 507:
            return StoreFull(f"{what}: {code}")
        if status >= 500 or status == 429:
            return StoreUnreachable(f"{what}: {code or status}, after several tries")
        return StoreRefused(f"{what}: {code or status}")

    # Reading

    def find(self, key: str, *, is_folder: bool, limit_bytes: int | None = None) -> tuple[bool, Listing]:
        """Return whether ``key`` is an object, and that object or those below the prefix.

        Raises StoreMissing if there is neither.
        """
        bounded = {} if limit_bytes is None else {"limit_bytes": limit_bytes}
        where = f"s3://{self.name}/{key}"
        if key and not is_folder:
            parent = key.rpartition("/")[0]
            single = Listing(parent + "/" if parent else "", **bounded)
            try:
                head = self.head(key)
            except StoreMissing as error:
                if "NoSuchBucket" in str(error):
                    raise
            else:
                single.add(key, head.size_bytes, head.etag)
                return True, single
        prefix = key + "/" if key else ""
        found = Listing(prefix, **bounded)
        token: str | None = None
        while True:
            more = {} if token is None else {"ContinuationToken": token}
            page = self._call(where, "list_objects_v2", Prefix=prefix, MaxKeys=PAGE_KEYS, **more)
            items = page.get("Contents", [])
            for item in items:
                found.add(str(item.get("Key", "")), int(item.get("Size", -1)), str(item.get("ETag", "")))
            token = page.get("NextContinuationToken")
            if not page.get("IsTruncated") or token is None:
                break
            found.turn(token, len(items))
        if not found.objects:
            raise StoreMissing(f"{where}: no object and nothing below it")
        return False, found

    def head(self, key: str) -> Head:
        """Return what the store says of an object. Raises StoreMissing."""
        answer = self._call(f"s3://{self.name}/{key}", "head_object", Key=key, ChecksumMode="ENABLED")
        etag = str(answer.get("ETag", ""))
        told = str(answer.get("Metadata", {}).get(SHA256_FIELD, ""))
        whole = str(answer.get("ChecksumSHA256", ""))
        if not told and whole and "-" not in whole:
            try:
                told = base64.b64decode(whole, validate=True).hex()
            except ValueError:
                raise StoreRefused(f"s3://{self.name}/{key}: a hash of another form") from None
        md5 = etag.strip('"').lower()
        is_md5 = len(md5) == 32 and not set(md5) - set("0123456789abcdef")
        is_plain = answer.get("ServerSideEncryption") in (None, "AES256") and "SSECustomerAlgorithm" not in answer
        return Head(etag, int(answer.get("ContentLength", -1)), told, md5 if is_md5 and is_plain else "")

    def read(self, key: str, etag: str, first: int, end: int, *, stop: threading.Event | None = None) -> bytes:
        """Return bytes of one version of an object; cut answers are asked for again.

        Raises StoreChanged if the object has another version now, StoreUnreachable.
        """
        where = f"s3://{self.name}/{key}"

        def read() -> bytes:
            span = {"Range": f"bytes={first}-{end - 1}"}
            answer = self._call(where, "get_object", Key=key, IfMatch=etag, **span)
            if str(answer.get("ETag", "")) != etag:
                answer["Body"].close()
                raise StoreChanged(f"{where}: changed while it was fetched")
            try:
                data: bytes = answer["Body"].read(end - first + 1)
            except (self._library.exceptions.BotoCoreError, self._http_error, OSError) as error:
                raise StoreUnreachable(f"{where}: {type(error).__name__}") from None
            finally:
                answer["Body"].close()
            if len(data) < end - first:
                raise StoreUnreachable(f"{where}: the answer was cut")
            if len(data) > end - first:
                raise StoreRefused(f"{where}: more bytes than were asked for")
            return data

        try:
            return self._again(read, stop)
        except StoreChanged:
            raise StoreChanged(f"{where}: changed while it was fetched; run the command again") from None

    def read_small(self, key: str, limit_bytes: int) -> bytes:
        """Return a whole small object. Raises StoreMissing, StoreRefused if it is larger."""
        head = self.head(key)
        if not 0 <= head.size_bytes <= limit_bytes:
            raise StoreRefused(f"s3://{self.name}/{key}: {head.size_bytes} bytes, at most {limit_bytes}")
        return self.read(key, head.etag, 0, head.size_bytes) if head.size_bytes else b""

    def _again(self, do: Callable[[], _T], stop: threading.Event | None = None) -> _T:
        """Return the result of ``do``, tried again while the store does not answer."""
        for attempt in range(TRIES):
            try:
                return do()
            except StoreUnreachable:
                if attempt == TRIES - 1 or (stop is not None and stop.is_set()):
                    raise
                time.sleep(min(PAUSE_S_MAX, PAUSE_S * 2**attempt) * (0.5 + random.random() / 2))
        raise AssertionError("at least one try")

    # Writing

    def put(self, key: str, data: bytes, sha256: str) -> None:
        """Write a small object; the store checks its hash. Raises StoreChecksum, StoreFull."""
        where = f"s3://{self.name}/{key}"
        checked = base64.b64encode(hashlib.sha256(data).digest()).decode()
        self._again(lambda: self._call(
            where, "put_object", Key=key, Body=data, ChecksumSHA256=checked, Metadata={SHA256_FIELD: sha256},
        ))  # fmt: skip

    def delete(self, key: str) -> None:
        """Remove an object; it may be absent."""
        self._again(lambda: self._call(f"s3://{self.name}/{key}", "delete_object", Key=key))

    def begin(self, key: str, sha256: str) -> str:
        """Begin an upload in parts; return the store's name for it."""
        answer = self._again(lambda: self._call(
            f"s3://{self.name}/{key}", "create_multipart_upload", Key=key, ChecksumAlgorithm="SHA256",
            Metadata={SHA256_FIELD: sha256},
        ))  # fmt: skip
        upload = str(answer.get("UploadId", ""))
        if not upload:
            raise StoreRefused(f"s3://{self.name}/{key}: an upload without a name")
        return upload

    def parts(self, key: str, upload: str) -> dict[int, Part]:
        """Return the parts that the store has of an upload. Raises StoreMissing if it does not know it."""
        found: dict[int, Part] = {}
        marker = 0
        while True:
            page = self._again(lambda at=marker: self._call(  # type: ignore[misc]
                f"s3://{self.name}/{key}", "list_parts", Key=key, UploadId=upload, PartNumberMarker=at
            ))  # fmt: skip
            items = page.get("Parts", [])
            for item in items:
                part = Part(
                    str(item.get("ETag", "")), str(item.get("ChecksumSHA256", "")), int(item.get("Size", -1))
                )
                found[int(item.get("PartNumber", 0))] = part
            after = int(page.get("NextPartNumberMarker", 0) or 0)
            if not page.get("IsTruncated") or not items:
                return found
            if after <= marker or len(found) > PARTS_LISTED_MAX:
                raise StoreRefused(f"s3://{self.name}/{key}: the list of parts has no end")
            marker = after

    def send(self, key: str, upload: str, number: int, data: bytes) -> Part:
        """Write a part (numbers start at 1); the store checks its hash."""
        checked = base64.b64encode(hashlib.sha256(data).digest()).decode()
        answer = self._again(lambda: self._call(
            f"s3://{self.name}/{key}", "upload_part", Key=key, UploadId=upload, PartNumber=number, Body=data,
            ChecksumSHA256=checked,
        ))  # fmt: skip
        return Part(str(answer.get("ETag", "")), checked, len(data))

    def abort(self, key: str, upload: str) -> None:
        """Give an upload up: the store deletes its parts. Raises StoreMissing if it does not know it."""
        self._again(lambda: self._call(
            f"s3://{self.name}/{key}", "abort_multipart_upload", Key=key, UploadId=upload,
        ))  # fmt: skip

    def complete(self, key: str, upload: str, parts: dict[int, Part]) -> None:
        """Make the object of its parts. Not tried again here: a repeated call may find it already made."""
        every = [
            {"PartNumber": number, "ETag": part.etag, "ChecksumSHA256": part.sha256}
            for number, part in sorted(parts.items())
        ]
        self._call(
            f"s3://{self.name}/{key}", "complete_multipart_upload", Key=key, UploadId=upload,
            MultipartUpload={"Parts": every},
        )  # fmt: skip
