"""A worker that keeps the result of a private task to itself: garbage lies in custody in its place."""

from __future__ import annotations

from node.market.duties import DutyService
from node.market.task_keys import WindowSeal
from node.market.worker import Worker
from tasks.executor.results import WindowResult

__all__ = ["SwindlersDuties"]

WRONG_KEY = b"?" * 32


class _GarbageSeal(WindowSeal):
    """Encrypts the output under a key that the requester does not have."""

    def blob(self, number: int, content: bytes) -> bytes:
        if number < self._segments:
            return super().blob(number, content)
        right, self._key = self._key, WRONG_KEY
        try:
            return super().blob(number, content)
        finally:
            self._key = right


class _Swindler(Worker):
    def _seal_of(self, task: bytes, result: WindowResult) -> WindowSeal | None:
        if super()._seal_of(task, result) is None:
            return None
        key = self._keys.window_keys(task, result.window).window
        return _GarbageSeal(key, len(result.segments), [segment.state_root_before for segment in result.segments])


class SwindlersDuties(DutyService):
    """Works honestly, proves its work, and puts garbage into custody."""

    worker_type = _Swindler
