"""Certificates of views, stored as evidence of forks within limits of size, number and age."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from state.store.library_errors import reported
from state.store.records import (
    NOTARIZED,
    NOTARIZED_SPAN,
    NULLIFIED,
    Span,
    ViewCertificate,
    ViewCertificates,
    decode_span,
    encode_span,
    view_key,
    view_of_key,
)

__all__ = ["StoredViews", "ViewCounts"]

_NULLIFIED_MIN: Final = 256
_NOTARIZED_DROPPED_MAX: Final = 64
"""Maximum number of NOTARIZE certificates that one commit deletes."""
_NULLIFIED_DROPPED_MAX: Final = 20_000


class ViewCounts(NamedTuple):
    """How much is kept."""

    span: Span
    nullified: tuple[int, int] | None
    """The epoch whose kept NULLIFY certificates are counted, and how many they are."""


class StoredViews:
    """The certificates of views. Written by the store's one writer, read from any thread."""

    def __init__(self, db: Any, *, epoch_blocks: int, evidence_epochs: int, notarized_bytes_max: int) -> None:
        self._db = db
        self._evidence_epochs = evidence_epochs
        self._notarized_bytes_max = notarized_bytes_max
        self.nullified_max: Final = max(_NULLIFIED_MIN, 2 * epoch_blocks)
        """So many views of an epoch are kept: the faulty can nullify half as many as it has blocks."""
        self._counts = ViewCounts(decode_span(db.get(NOTARIZED_SPAN, verify_checksums=True)), None)

    def nullified(self, epoch: int, view: int) -> bytes | None:
        """Return the NULLIFY certificate that let the chain skip a view, for as long as evidence counts."""
        return self._read(view_key(NULLIFIED, epoch, view))

    def notarized(self, epoch: int, view: int) -> bytes | None:
        """Return the NOTARIZE certificate of a view up to a final one, as far as such are kept."""
        return self._read(view_key(NOTARIZED, epoch, view))

    def nullified_from(self, epoch: int, from_view: int, limit: int | None = None) -> list[ViewCertificate]:
        """Return what ``nullified`` knows of an epoch from a view on, in the order of views."""
        return self._views(NULLIFIED, epoch, from_view, limit)

    def notarized_from(self, epoch: int, from_view: int, limit: int | None = None) -> list[ViewCertificate]:
        """Return what ``notarized`` knows of an epoch from a view on, in the order of views."""
        return self._views(NOTARIZED, epoch, from_view, limit)

    def _views(self, prefix: bytes, epoch: int, from_view: int, limit: int | None) -> list[ViewCertificate]:
        start, stop = view_key(prefix, epoch, from_view), view_key(prefix, epoch + 1, 0)
        with (
            reported(),
            self._db.iterator(start=start, stop=stop, verify_checksums=True, fill_cache=False) as entries,
        ):
            return [ViewCertificate(*view_of_key(key), value) for key, value in islice(entries, limit)]

    def plan(self, batch: Any, found: ViewCertificates, epoch: int, *, is_last: bool) -> ViewCounts:
        """Put what a block of ``epoch`` brings into its batch, ``is_last`` of it; changes nothing here."""
        nullified = self._put_nullified(batch, found.nullified)
        span = self._put_notarized(batch, found.notarized, epoch)
        if is_last:
            self._drop_nullified(batch, epoch - self._evidence_epochs)
        return ViewCounts(span, nullified)

    def written(self, counts: ViewCounts) -> None:
        """Take in that the batch of a plan is on the disk."""
        self._counts = counts

    def _read(self, key: bytes) -> bytes | None:
        with reported():
            found: bytes | None = self._db.get(key, verify_checksums=True)
        return found

    def _put_notarized(self, batch: Any, found: Sequence[ViewCertificate], epoch_now: int) -> Span:
        """Delete the oldest certificates above the limits of size and age; return what is kept.

        The number of deletions per commit is limited, so that no commit takes long.
        """
        (size, epoch, view), limit = self._counts.span, self._notarized_bytes_max
        for one in found:
            key = view_key(NOTARIZED, one.epoch, one.view)
            size += len(one.certificate) - len(self._read(key) or b"")
            batch.put(key, one.certificate)
            epoch, view = min((epoch, view), (one.epoch, one.view))
        oldest = max(0, epoch_now - self._evidence_epochs)
        if size > limit or epoch < oldest:
            stop = view_key(NOTARIZED, *(found[0][:2] if found else (epoch_now + 1, 0)))
            count, is_kept = 0, False
            with (
                reported(),
                self._db.iterator(start=view_key(NOTARIZED, epoch, view), stop=stop, fill_cache=False) as entries,
            ):
                for key, value in islice(entries, _NOTARIZED_DROPPED_MAX):
                    at = view_of_key(key)
                    is_kept = size <= limit and at[0] >= oldest
                    if is_kept:
                        epoch, view = at
                        break
                    batch.delete(key)
                    size, epoch, view, count = size - len(value), at[0], at[1] + 1, count + 1
            if not is_kept and count < _NOTARIZED_DROPPED_MAX:
                epoch, view = max((epoch, view), (oldest, 0))
        span = Span(size, epoch, view)
        if span != self._counts.span:
            batch.put(NOTARIZED_SPAN, encode_span(span))
        return span

    def _put_nullified(self, batch: Any, found: Sequence[ViewCertificate]) -> tuple[int, int] | None:
        """Keep them within the bound, at the cost of the oldest; return the epoch and how many it has."""
        if not found:
            return self._counts.nullified
        epoch = found[0].epoch
        first, stop = view_key(NULLIFIED, epoch, 0), view_key(NULLIFIED, epoch + 1, 0)
        counted = self._counts.nullified
        if counted is not None and counted[0] == epoch:
            count = counted[1]
        else:
            count = len(self._nullified_keys(first, stop))
        for one in found:
            assert one.epoch == epoch, "a commit is of one epoch"
            key = view_key(NULLIFIED, epoch, one.view)
            count += self._read(key) is None
            batch.put(key, one.certificate)
        if count > self.nullified_max:
            oldest = self._nullified_keys(
                first, view_key(NULLIFIED, epoch, found[0].view), limit=count - self.nullified_max
            )
            for key in oldest:
                batch.delete(key)
            count -= len(oldest)
        return epoch, count

    def _drop_nullified(self, batch: Any, epoch: int) -> None:
        """Take away what is of an epoch before this one: nothing can be proven with it any more."""
        if epoch > 0:
            for key in self._nullified_keys(
                NULLIFIED, view_key(NULLIFIED, epoch, 0), limit=_NULLIFIED_DROPPED_MAX
            ):
                batch.delete(key)

    def _nullified_keys(self, start: bytes, stop: bytes, *, limit: int | None = None) -> list[bytes]:
        with reported(), self._db.iterator(start=start, stop=stop, include_value=False, fill_cache=False) as keys:
            return list(islice(keys, limit))
