"""The specification is true where a program can tell: citations resolve, and its numbers are those of the code."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import pytest

from consensus import block_serving, core, inbound, light, signer, sync, wire
from consensus.events import ConsensusParameters
from node.chain import evidence as evidence_pool
from state.primitives import committee
from state.transition import epochs, evidence, slashing
from tests.house import citations, spec_tables

PARAMETERS: Final[dict[str, tuple[tuple[str, Any], ...]]] = {
    "consensus.md": (("consensus", ConsensusParameters()),),
}
"""The parameters whose defaults a document lists: all of them, by their prefix in the genesis."""

LIMITS: Final[dict[str, dict[str, int]]] = {
    "consensus.md": {
        "seats_max": committee.SEATS_MAX,
        "message_bytes_max": wire.MESSAGE_LIMIT_BYTES,
        "small_message_bytes_max": wire.SMALL_MESSAGE_BYTES_MAX,
        "certificate_bytes_max": wire.CERTIFICATE_LIMIT_BYTES,
        "votes_max": wire.VOTES_MAX,
        "certificates_max": wire.CERTIFICATES_MAX,
        "certificates_sent_max": wire.CERTIFICATES_SENT_MAX,
        "nulls_max": wire.NULLS_MAX,
        "views_max": wire.VIEWS_MAX,
        "blocks_max": wire.BLOCKS_MAX,
        "window_bytes_max": wire.WINDOW_BYTES_MAX,
        "inbox_messages_max": inbound.INBOX_MESSAGES_MAX,
        "sender_messages_max": inbound.SENDER_MESSAGES_MAX,
        "strangers_messages_max": inbound.STRANGERS_MESSAGES_MAX,
        "early_messages_max": inbound.EARLY_MESSAGES_MAX,
        "early_of_one_max": inbound.EARLY_OF_ONE_MAX,
        "early_of_strangers_max": inbound.EARLY_OF_STRANGERS_MAX,
        "answer_burst_bytes": inbound.ANSWER_BURST_BYTES,
        "strangers_burst_bytes": inbound.STRANGERS_BURST_BYTES,
        "views_ahead": core.VIEWS_AHEAD,
        "evidence_views": core.EVIDENCE_VIEWS,
        "fetches_max": core.FETCHES_MAX,
        "catch_up_blocks": core.CATCH_UP_COMMIT_BLOCKS,
        "signer_frame_bytes_max": signer.FRAME_BYTES_MAX,
        "signer_request_bytes_max": signer.REQUEST_BYTES_MAX,
        "signer_votes_page": signer.VOTES_PAGE,
        "signer_keys_max": signer.KEYS_MAX,
        "evidence_bytes_max": evidence.EVIDENCE_LIMIT_BYTES,
        "block_evidence_bytes_max": evidence.BLOCK_EVIDENCE_BYTES_MAX,
        "evidence_pending_max": evidence_pool.PENDING_MAX,
        "offenders_max": slashing.OFFENDERS_MAX,
        "reward_divisor": slashing.REWARD_DIVISOR,
        "downtime_divisor": epochs.DOWNTIME_DIVISOR,
        "jail_times_max": epochs.JAIL_TIMES_MAX,
        "leader_slots_min": epochs.LEADER_SLOTS_MIN,
        "skipped_views_max": epochs.SKIPPED_VIEWS_MAX,
        "gap_blocks": sync.GAP_BLOCKS,
        "windows_max": sync.WINDOWS_MAX,
        "peer_windows_max": sync.PEER_WINDOWS_MAX,
        "ahead_blocks_max": sync.AHEAD_BLOCKS_MAX,
        "ahead_bytes_max": sync.AHEAD_BYTES_MAX,
        "serves_max": block_serving.SERVES_MAX,
        "drift_ms": light.LightOptions(trusting_period_ms=None).drift_ms,
        "headers_max": light.HEADERS_MAX,
        "epoch_record_bytes_max": light.EPOCH_RECORD_LIMIT_BYTES,
    },
}
"""Where the code has each number that a table of the specification names."""


def expected(document: str) -> dict[str, int]:
    """Return the numbers of a document as the code has them."""
    found = dict(LIMITS.get(document, {}))
    for prefix, parameters in PARAMETERS.get(document, ()):
        for field in dataclasses.fields(parameters):
            found[f"{prefix}.{field.name}"] = getattr(parameters, field.name)
    return found


@pytest.mark.parametrize("document", spec_tables.DOCUMENTS)
def test_the_numbers_of_the_tables_are_those_of_the_code(document: str) -> None:
    assert spec_tables.numbers(document) == expected(document)


@pytest.mark.parametrize("document", spec_tables.DOCUMENTS)
def test_references_between_the_documents_resolve(document: str) -> None:
    found = [(name, place) for name, place in spec_tables.references(document) if name in spec_tables.DOCUMENTS]
    assert found
    assert [(name, place) for name, place in found if place not in citations.headings(name)] == []


@pytest.mark.parametrize("document", spec_tables.DOCUMENTS)
def test_a_document_has_a_version_and_numbers_its_headings(document: str) -> None:
    lines = spec_tables.text_of(document).splitlines()
    assert lines[2].startswith("Version ")
    titles = [line for line in lines if line.startswith("##")]
    assert [line for line in titles if not line.lstrip("# ")[0].isdigit()] == []
