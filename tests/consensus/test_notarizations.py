"""What a shell keeps of views that become final."""

from __future__ import annotations

from consensus.events import Commit
from consensus.guard import JOURNAL_BLOCK, JOURNAL_CERTIFICATE, journal_record
from consensus.guard_log import blocks_alone
from consensus.notarizations import Notarizations
from consensus.votes import Certificate
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY


def certificate(kind: int, epoch: int, view: int) -> Certificate:
    return Certificate(kind, epoch, view, 0, bytes([view]) * 32, b"\x07", bytes(192))


def commit(epoch: int, view: int, *skipped: int) -> Commit:
    nulls = tuple([certificate(NULLIFY, epoch, known) for known in skipped])
    return Commit(certificate(FINALIZE, epoch, view), (), view, nulls)


def test_a_commit_takes_the_notarized_views_up_to_its_own_and_leaves_the_rest() -> None:
    views = Notarizations([certificate(NOTARIZE, 3, 4), certificate(NULLIFY, 3, 2)])
    for view in (1, 3, 2, 6):
        views.add(certificate(NOTARIZE, 3, view))
        views.add(certificate(FINALIZE, 3, view))
    taken = views.take(commit(3, 4, 2))
    assert [(one.kind, one.view) for one in taken] == [(NOTARIZE, 1), (NOTARIZE, 3), (NOTARIZE, 4)]
    assert views.take(commit(3, 5)) == ()
    assert [one.view for one in views.take(commit(3, 6))] == [6]
    assert len(views) == 0


def test_views_of_an_epoch_that_is_over_are_forgotten() -> None:
    views = Notarizations([certificate(NOTARIZE, 3, 9), certificate(NOTARIZE, 4, 1), certificate(NOTARIZE, 4, 2)])
    assert [(one.epoch, one.view) for one in views.take(commit(4, 1))] == [(4, 1)]
    assert len(views) == 1


def test_a_journal_without_certificates_has_its_blocks_and_no_torn_end() -> None:
    block, null = journal_record(JOURNAL_BLOCK, b"block"), journal_record(JOURNAL_CERTIFICATE, b"null")
    assert blocks_alone(null + block + null + block[:-1]) == block
    assert blocks_alone(b"") == blocks_alone(null) == blocks_alone(b"junk") == b""
