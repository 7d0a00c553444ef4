"""The specification is true where a program can tell: citations resolve, and its numbers are those of the code."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Final

import pytest

from billing import escrow
from billing import relay as relay_receipts
from consensus import block_serving, inbound, light, signer, sync, vote_relay, wire
from consensus.core import limits
from consensus.events import ConsensusParameters
from node.chain import evidence as evidence_pool
from node.chain import ledger, mempool, tx_gossip
from node.chain import ledger as node_ledger
from node.chain.runtime import make_runtime
from node.consensus import compact, compact_service
from node.market import blob_search, container_copies
from node.sync import messages as sync_messages
from p2p.base import endpoint, observed_address
from p2p.base.limits import NetworkLimits
from p2p.gossip import core as gossip
from p2p.multicast import pieces
from p2p.multicast import wire as multicast
from p2p.path import hole_punch
from p2p.records import records, revocations
from p2p.secure import channel, handshake, identity, record
from p2p.secure.frame import TrafficClass
from p2p.session import bulk_streams, mux, requests
from relay.payment import credit, metering
from relay.protocol import fanout, link_state, route
from relay.protocol import wire as relay_wire
from relay.protocol.errors import Refusal
from relay.protocol.limits import RelayLimits
from rpc.ethereum import fees, logs, params, pool, render
from rpc.ethereum import identity as rpc_identity
from rpc.gateway import blobs, connections, dispatch, http_protocol, rest, subscriptions
from rpc.gateway.node import client
from rpc.methods import log_filter, poll_filters, schema, transactions
from rpc.protocol import grants, task_views
from rpc.protocol.errors import number_of
from state import trie
from state.primitives import abi, blocks, codec, committee, envelope, manifests, receipts
from state.primitives.blocks import Header
from state.primitives.errors import InvalidTransaction
from state.primitives.genesis import ChainParameters, Genesis
from state.store import snapshots
from state.transition import calls, epochs, evidence, slashing, staking
from state.transition import errors as transition
from state.view.tables import Table
from tasks import claims, proofs
from tasks import spec as specification
from tasks import trials as speed
from tasks.custody import chunks, inputs, keys, looks, shares
from tasks.dispute import game, moves
from tasks.engines import datasets, plan, tuning_plan
from tasks.executor.containers.egress import addresses, client_hello, proxy
from tasks.executor.containers.kubernetes import egress_link
from tasks.kinds import container, egress
from tasks.kinds import finetune as finetune_jobs
from tasks.ledger import (
    auction,
    bands,
    block_end,
    bonds,
    carriage,
    checkpoint_records,
    checkpoints,
    complaints,
    custody,
    custody_records,
    deadlines,
    disputes,
    draws,
    games,
    group_records,
    groups,
    meter_records,
    parking,
    progress,
    quorum_records,
    quorums,
    registry,
    reruns,
    serving,
    settlement,
    tampering,
    transitions,
    trials,
    window_draws,
)
from tasks.ledger import calls as market_calls
from tasks.ledger import records as task_records
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.parameters import PAIRS_PER_CALL_MAX, WINDOW_SLACK_MIN, TaskParameters
from tasks.programs import finetune, tensors
from tasks.programs import generate as generate_program
from tasks.programs import sampling as sampling_program
from tasks.programs.operators import decoding as decoding_operators
from tests.house import citations, spec_tables

PARAMETERS: Final[dict[str, tuple[tuple[str, Any], ...]]] = {
    "consensus.md": (("consensus", ConsensusParameters()),),
    "chain.md": (("chain", ChainParameters()),),
    "market.md": (("tasks", TaskParameters()),),
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
        "views_ahead": limits.VIEWS_AHEAD,
        "evidence_views": limits.EVIDENCE_VIEWS,
        "fetches_max": limits.FETCHES_MAX,
        "catch_up_blocks": limits.CATCH_UP_COMMIT_BLOCKS,
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
    "chain.md": {
        "depth_max": codec.DEPTH_MAX,
        "integer_bits_max": codec.INTEGER_BITS_MAX,
        "items_free": codec.ITEMS_FREE,
        "header_bytes_max": blocks.HEADER_LIMIT_BYTES,
        "block_bytes_max": blocks.BLOCK_LIMIT_BYTES,
        "transaction_bytes_max": envelope.TRANSACTION_LIMIT_BYTES,
        "note_bytes_max": calls.NOTE_LIMIT_BYTES,
        "call_bytes_max": abi.CALL_LIMIT_BYTES,
        "unbondings_max": staking.UNBONDINGS_MAX,
        "releases_max": staking.RELEASES_MAX,
        "screened_gas_min": node_ledger.SCREENED_GAS_MIN,
        "events_max": receipts.EVENTS_MAX,
        "event_data_bytes_max": receipts.EVENT_DATA_LIMIT_BYTES,
        "receipt_bytes_max": receipts.RECEIPT_LIMIT_BYTES,
        "bucket_entries_max": trie.BUCKET_ENTRIES_MAX,
        "range_bytes_max": trie.RANGE_LIMIT_BYTES,
        "snapshot_piece_bytes": snapshots.PIECE_BYTES,
        "snapshot_headers_max": sync_messages.HEADERS_MAX,
        "snapshot_offers_max": sync_messages.OFFERS_MAX,
        "snapshot_pieces_max": sync_messages.PIECES_MAX,
        "records_max": sync_messages.RECORDS_MAX,
        "records_bytes_max": sync_messages.RECORDS_LIMIT_BYTES,
    },
    "market.md": {
        "profile_bytes_max": registry.PROFILE_LIMIT_BYTES,
        "endpoints_max": registry.ENDPOINTS_MAX,
        "text_max": registry.TEXT_MAX,
        "gpus_max": specification.GPUS_MAX,
        "spec_bytes_max": specification.SPEC_LIMIT_BYTES,
        "segments_max": specification.SEGMENTS_MAX,
        "windows_max_of_task": specification.WINDOWS_MAX,
        "leaf_bytes_max": proofs.LEAF_LIMIT_BYTES,
        "sampled_max": proofs.SAMPLED_MAX,
        "node_record_bytes_max": registry.RECORD_LIMIT_BYTES,
        "task_record_bytes_max": task_records.TASK_LIMIT_BYTES,
        "window_record_bytes_max": task_records.WINDOW_LIMIT_BYTES,
        "meter_bytes_max": meter_records.METER_LIMIT_BYTES,
        "tamper_bytes_max": tampering.TAMPER_LIMIT_BYTES,
        "tamper_ms": tampering.SUSPENDED_MS,
        "tamper_doublings_max": tampering.DOUBLINGS_MAX,
        "quorum_bytes_max": quorum_records.QUORUM_LIMIT_BYTES,
        "quorum_seats_max": quorum_records.SEATS,
        "undecided_parts": quorums.UNDECIDED_PARTS,
        "tick_s_min": container.TICK_S_MIN,
        "tick_s_max": container.TICK_S_MAX,
        "idle_s_max": container.IDLE_S_MAX,
        "pattern_length_max": container.PATTERN_LENGTH_MAX,
        "view_blocks_max": task_views.VIEW_BLOCKS_MAX,
        "seconds_max": container.SECONDS_MAX,
        "grace_s_min": container.GRACE_S_MIN,
        "grace_s_max": container.GRACE_S_MAX,
        "rate_band_bps": specification.RATE_BAND_BPS,
        "retries_max": container.RETRIES_MAX,
        "again_max": container.AGAIN_MAX,
        "kept_ms": container_copies.KEPT_MS,
        "mounts_max": container.MOUNTS_MAX,
        "mount_bytes_max": container.MOUNT_BYTES_MAX,
        "command_max": container.COMMAND_MAX,
        "environment_max": container.ENVIRONMENT_MAX,
        "repository_length_max": container.REPOSITORY_LENGTH_MAX,
        "path_length_max": container.PATH_LENGTH_MAX,
        "output_bytes_max": container.OUTPUT_BYTES_MAX,
        "log_bytes_max": container.LOG_BYTES_MAX,
        "egress_max": egress.EGRESS_MAX,
        "name_length_max": egress.NAME_LENGTH_MAX,
        "labels_max": egress.LABELS_MAX,
        "egress_connections_max": proxy.CONNECTIONS_MAX,
        "egress_head_bytes_max": proxy.HEAD_BYTES_MAX,
        "egress_window_bytes": egress_link.WINDOW_BYTES,
        "hello_bytes_max": client_hello.HELLO_BYTES_MAX,
        "addresses_max": addresses.ADDRESSES_MAX,
        "every_s_min": container.CHECKPOINT_EVERY_S_MIN,
        "every_s_max": container.CHECKPOINT_EVERY_S_MAX,
        "checkpoint_bytes_max": container.CHECKPOINT_BYTES_MAX,
        "checkpoints_bytes_max": checkpoint_records.CHECKPOINTS_LIMIT_BYTES,
        "secrets_sealed_bytes_max": container.SECRETS_SEALED_BYTES[-1],
        "leave_fine_s_max": checkpoints.LEAVE_FINE_S_MAX,
        "second_units_max": container.SECOND_UNITS_MAX,
        "disk_mib_max": container.DISK_MIB_MAX,
        "cores_max": container.CORES_MAX,
        "history_bytes_max": task_records.HISTORY_LIMIT_BYTES,
        "report_bytes_max": task_records.REPORT_LIMIT_BYTES,
        "escrow_record_bytes_max": escrow.RECORD_LIMIT_BYTES,
        "escrow_share_bytes_max": escrow.SHARE_LIMIT_BYTES,
        "line_bytes_max": escrow.LINE_LIMIT_BYTES,
        "carriage_record_bytes_max": carriage.RECORD_LIMIT_BYTES,
        "releases_max_of_task": settlement.RELEASES_MAX,
        "poked_windows_max": transitions.POKED_WINDOWS_MAX,
        "enlarged_jury": serving.ENLARGED_JURY,
        "sponsor_share_bps_max": bonds.SHARE_BPS_MAX,
        "prices_bytes_max": market_calls.PRICES_LIMIT_BYTES,
        "call_bytes_max": market_calls.CALL_LIMIT_BYTES,
        "pairs_per_call_max": PAIRS_PER_CALL_MAX,
        "window_slack_min": WINDOW_SLACK_MIN,
        "drawn_max": market_calls.DRAWN_MAX,
        "changed_max": auction.CHANGED_MAX,
        "replacing_bps": market_calls.REPLACING_BPS,
        "bounded_draws": market_calls.BOUNDED_DRAWS,
        "dear_bps": market_calls.DEAR_BPS,
        "prices_kept": market_calls.PRICES_KEPT,
        "withdrawal_ms_max": progress.WITHDRAWAL_MS_MAX,
        "wakes_max": progress.WAKES_MAX,
        "passed_max": progress.PASSED_MAX,
        "looks_max": parking.LOOKS_MAX,
        "turns_max": parking.TURNS_MAX,
        "complaints_wanted": complaints.COMPLAINTS_WANTED,
        "complaints_max": complaints.COMPLAINTS_MAX,
        "layers_max": plan.LAYERS_MAX,
        "width_max": plan.WIDTH_MAX,
        "parameters_max": plan.PARAMETERS_MAX,
        "batch_max": plan.BATCH_MAX,
        "window_units_max": specification.WINDOW_UNITS_MAX,
        "rate_max": specification.RATE_MAX,
        "window_states_bytes_max": specification.WINDOW_STATES_BYTES_MAX,
        "segment_ms_max": specification.SEGMENT_MS_MAX,
        "dataset_bytes_max": datasets.DATASET_BYTES_MAX,
        "dataset_blob_bytes_max": datasets.DATASET_BLOB_BYTES_MAX,
        "claim_chunks_max": claims.CHUNKS_MAX,
        "dataset_leaves_max": datasets.DATASET_LEAVES_MAX,
        "dataset_rows_max": datasets.ROWS_MAX,
        "match_ms_max": specification.MATCH_MS_MAX,
        "model_bytes_max": tuning_plan.MODEL_BYTES_MAX,
        "step_calls_max": finetune_jobs.STEP_CALLS_MAX,
        "generate_batch_max": generate_program.BATCH_MAX,
        "ends_max": decoding_operators.ENDS_MAX,
        "temperature_max": sampling_program.TEMPERATURE_MAX,
        "clipped_max": finetune.CLIPPED_MAX,
        "program_leaf_bytes": tensors.LEAF_BYTES,
        "chunk_bytes": chunks.CHUNK_BYTES,
        "inputs_max": keys.INPUTS_MAX,
        "share_holders_max": shares.HOLDERS_MAX,
        "path_hashes_max": chunks.SIBLINGS_MAX,
        "custodians_drawn_max": custody_records.DRAWN_MAX,
        "custodians_tried_max": custody_records.TRIED_MAX,
        "unkept_ms_max": custody.UNKEPT_MS_MAX,
        "receivers_max": custody_records.RECEIVERS_MAX,
        "looks_at_once_max": looks.LOOKS_AT_ONCE,
        "looks_min": looks.LOOKS_MIN,
        "looks_safety": looks.LOOKS_SAFETY,
        "plain_chunks_max": inputs.PLAIN_CHUNKS_MAX,
        "custody_input_bytes_max": custody_records.INPUT_LIMIT_BYTES,
        "custody_record_bytes_max": custody_records.CUSTODY_LIMIT_BYTES,
        "custody_terms_bytes_max": custody_records.TERMS_LIMIT_BYTES,
        "dispute_moves_max": game.MOVES_MAX,
        "dispute_move_bytes_max": moves.MOVE_LIMIT_BYTES,
        "dispute_fanout": moves.FANOUT,
        "dispute_record_bytes_max": disputes.DISPUTE_LIMIT_BYTES,
        "docket_bytes_max": disputes.DOCKET_LIMIT_BYTES,
        "challenge_bytes_max": disputes.SEAL_LIMIT_BYTES,
        "challenges_max": disputes.SEALS_MAX,
        "outsiders_at_once_max": disputes.OUTSIDERS_AT_ONCE_MAX,
        "disputes_at_once_max": disputes.RUNNING_MAX,
        "silent_disputes_max": disputes.SILENT_MAX,
        "rerun_seats": reruns.RERUN_SEATS,
        "forgotten_disputes_max": disputes.FORGOTTEN_MAX,
        "released_moves_max": disputes.RELEASED_MOVES_MAX,
        "trace_bytes_per_s": games.TRACE_BYTES_PER_S,
        "members_max": group_records.MEMBERS_MAX,
        "members_per_spare": group_records.SPARES_PER,
        "seats_per_step": groups.SEATS_PER_STEP,
        "seats_looked_max": groups.SEATS_LOOKED_MAX,
        "barred_max": group_records.BARRED_MAX,
        "group_history_max": group_records.GROUP_HISTORY_MAX,
        "group_record_bytes_max": group_records.GROUP_LIMIT_BYTES,
        "band_bps": bands.BAND_BPS,
        "groups_per_call": deadlines.GROUPS_PER_CALL,
        "members_per_call": market_calls.MEMBERS_PER_CALL,
        "rivals_looked_max": auction.RIVALS_LOOKED_MAX,
        "trial_record_bytes_max": trials.TRIAL_LIMIT_BYTES,
        "trials_per_block_max": trials.TRIALS_PER_BLOCK_MAX,
        "trial_checks_max": trials.CHECKS_MAX,
        "trial_round_arcs": trials.ROUND_ARCS,
        "trial_misses_max": trials.MISSES_MAX,
        "trial_halvings_max": trials.HALVINGS_MAX,
        "trial_links_max": speed.LINKS_MAX,
        "trial_links_wanted": speed.LINKS_WANTED,
        "call_events_max": block_end.CALL_EVENTS_MAX,
        "lane_kept_max": mempool.LANE_KEPT_MAX,
        "events_per_block_max": block_end.EVENTS_PER_BLOCK_MAX,
        "events_per_draw": block_end.EVENTS_PER_DRAW,
        "lots_per_block": draws.LOTS_PER_BLOCK,
        "wait_doublings_max": window_draws.WAIT_DOUBLINGS_MAX,
        "gas_waits_max": window_draws.GAS_WAITS_MAX,
        "receipt_bytes_max_of_relay": relay_receipts.RECEIPT_BYTES_MAX,
        "receipt_life_ms": relay_receipts.RECEIPT_LIFE_MS,
        "channel_life_ms": relay_receipts.CHANNEL_LIFE_MS,
        "clock_skew_ms_max": relay_receipts.CLOCK_SKEW_MS_MAX,
        "withdrawal_ms": carriage.WITHDRAWAL_MS,
        "due_life_ms": carriage.DUE_LIFE_MS,
        "relays_of_payer_max": carriage.RELAYS_PER_PAYER_MAX,
    },
    "network.md": {
        "certificate_bytes_max": identity.CERTIFICATE_BYTES_MAX,
        "certificate_life_ms_max": identity.CERTIFICATE_LIFE_MS_MAX,
        "certificate_skew_ms_max": identity.CLOCK_SKEW_MS_MAX,
        "revocations_max": revocations.KNOWN_MAX,
        "record_bytes_max": records.RECORD_BYTES_MAX,
        "record_life_ms": records.RECORD_LIFE_MS,
        "endpoints_max": records.ENDPOINTS_MAX,
        "endpoint_characters_max": endpoint.ENDPOINT_CHARACTERS_MAX,
        "handshake_message_bytes_max": handshake.HANDSHAKE_MESSAGE_BYTES_MAX,
        "record_plaintext_bytes_max": record.RECORD_PLAINTEXT_BYTES_MAX,
        "rekey_records": channel.REKEY_RECORDS,
        "fragment_bytes": mux.FRAGMENT_BYTES,
        "partial_messages_max": mux.MuxLimits().partial_messages_max,
        "reassembly_bytes_max": mux.MuxLimits().reassembly_bytes_max,
        "retained_bytes_max": mux.MuxLimits().retained_bytes_max,
        "window_bytes_first": bulk_streams.WindowLimits().first_bytes,
        "window_bytes_max": bulk_streams.WindowLimits().max_bytes,
        "outstanding_max": bulk_streams.OUTSTANDING_MAX,
        "done_numbers_max": bulk_streams.DONE_NUMBERS_MAX,
        "method_characters_max": requests._METHOD_CHARACTERS_MAX,
        "refusal_bytes_max": requests._REFUSAL_BYTES_MAX,
        "gossip_body_bytes_max": gossip.BODY_BYTES_MAX,
        "payloads_max": gossip.PAYLOADS_MAX,
        "topics_max": gossip.TOPICS_MAX,
        "topic_characters_max": gossip.TOPIC_CHARACTERS_MAX,
        "ids_max": gossip.GossipParameters().ids_max,
        "batch_max": tx_gossip.BATCH_MAX,
        "batch_bytes_max": tx_gossip.BATCH_BYTES_MAX,
        "gossip_fee_share": ledger.GOSSIP_FEE_SHARE,
        "consensus_payload_bytes_max": vote_relay.PAYLOAD_BYTES_MAX,
        "blob_question_bytes_max": blob_search.QUESTION_BYTES_MAX,
        "given_bytes_max": compact.GIVEN_BYTES_MAX,
        "whole_bytes_max": compact_service.WHOLE_BYTES_MAX,
        "proposal_question_bytes_max": vote_relay.WANTED_BYTES_MAX,
        "multicast_message_bytes_max": pieces.MESSAGE_BYTES_MAX,
        "piece_bytes_min": pieces.PIECE_BYTES_MIN,
        "piece_bytes_max": pieces.PIECE_BYTES_MAX,
        "data_pieces_max": pieces.DATA_PIECES_MAX,
        "parity_max": pieces.PARITY_MAX,
        "parity_message_bytes_max": pieces.PARITY_MESSAGE_BYTES_MAX,
        "multicast_control_bytes_max": multicast.CONTROL_BYTES_MAX,
        "swap_members_max": multicast.SWAP_MEMBERS_MAX,
        "ask_sources_max": multicast.ASK_SOURCES_MAX,
        "observed_bytes_max": observed_address.OBSERVED_BYTES_MAX,
        "attempt_bytes": hole_punch._ATTEMPT_BYTES,
        "blob_piece_bytes": manifests.PIECE_BYTES,
        "blob_chunk_bytes": manifests.BLOB_CHUNK_BYTES,
        "blob_pieces_max": manifests.BLOB_PIECES_MAX,
        "manifest_bytes_max": manifests.MANIFEST_BYTES_MAX,
        "relay_message_bytes_max": relay_wire.MESSAGE_BYTES_MAX,
        "voucher_bytes_max": relay_wire.VOUCHER_BYTES_MAX,
        "alternatives_max": relay_wire.ALTERNATIVES_MAX,
        "hops_max": route.HOPS_MAX,
        "route_bytes_max": route.ROUTE_BYTES_MAX,
        "route_life_ms": route.ROUTE_LIFE_MS,
        "links_max": link_state.LINKS_MAX,
        "link_state_bytes_max": link_state.LINK_STATE_BYTES_MAX,
        "groups_max": fanout.GROUPS_MAX,
        "members_max": fanout.MEMBERS_MAX,
        "publishers_max": fanout.PUBLISHERS_MAX,
        "fanout_piece_bytes_max": fanout.PIECE_BYTES_MAX,
        "fanout_message_bytes_max": fanout.MESSAGE_BYTES_MAX,
        "pay_bytes": metering.PAY_BYTES,
        "pay_ms": metering.PAY_MS,
        "claim_bytes": metering.CLAIM_BYTES,
        "claim_percent": metering.CLAIM_PERCENT,
    },
    "rpc.md": {
        "values_max": dispatch.VALUES_MAX,
        "identifier_characters_max": dispatch.IDENTIFIER_LIMIT_CHARACTERS,
        "headers_bytes_max": http_protocol.HEADERS_LIMIT_BYTES,
        "page_items_max": schema.LIMIT_MAX,
        "page_items_default": schema.LIMIT_DEFAULT,
        "wait_ms_max": transactions.WAIT_MS_MAX,
        "sync_wait_ms_max": params.SYNC_WAIT_MS,
        "min_height_wait_ms": client.MIN_HEIGHT_WAIT_MS,
        "catch_up_max": subscriptions.CATCH_UP_MAX,
        "pool_news_max": subscriptions.POOL_NEWS_MAX,
        "log_blocks_max": logs.BLOCKS_MAX,
        "logs_max": logs.LOGS_MAX,
        "log_choices_max": params.CHOICES_MAX,
        "choices_of_filter": log_filter.CHOICES_OF_FILTER,
        "fee_blocks_max": fees.FEE_BLOCKS_MAX,
        "percentiles_max": params.PERCENTILES_MAX,
        "filters_max": poll_filters.FILTERS_MAX,
        "filters_per_caller_max": poll_filters.FILTERS_PER_CALLER_MAX,
        "pool_shown_max": pool.SHOWN_MAX,
        "sha3_bytes_max": rpc_identity.SHA3_LIMIT_BYTES,
        "gas_shown_max": render.GAS_SHOWN_MAX,
        "grant_blocks_max": grants.GRANT_BLOCKS_MAX,
    },
}
"""Where the code has each number that a table of the specification names."""

DEFAULTS: Final[dict[str, tuple[tuple[str, Any], ...]]] = {
    "network.md": (
        ("", NetworkLimits()),
        ("relay.", RelayLimits()),
        ("tariff.", metering.Tariff()),
        ("credit.", credit.CreditOptions()),
    ),
    "rpc.md": (
        ("", dispatch.DispatchOptions()),
        ("", connections.ConnectionOptions()),
        ("", subscriptions.SessionOptions()),
        ("blobs.", blobs.BlobOptions()),
    ),
}
"""Options of which a document lists some, by the prefix that it gives their names."""


def expected(document: str) -> dict[str, int]:
    """Return the numbers of a document as the code has them."""
    found = dict(LIMITS.get(document, {}))
    for prefix, parameters in PARAMETERS.get(document, ()):
        for field in dataclasses.fields(parameters):
            found[f"{prefix}.{field.name}"] = getattr(parameters, field.name)
    listed = spec_tables.numbers(document)
    for prefix, options in DEFAULTS.get(document, ()):
        for field in dataclasses.fields(options):
            if (name := prefix + field.name) in listed:
                found.setdefault(name, getattr(options, field.name))
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


def test_refusals_of_relays_and_purposes_of_handshakes_have_their_numbers() -> None:
    text = spec_tables.text_of("network.md")
    section = text.split("### 10.3 ")[1].split("### 10.4 ")[0]
    refusals = {int(number): name for number, name in re.findall(r"^\| (\d+) \| (\w+) \|", section, re.MULTILINE)}
    assert refusals == {int(refusal): refusal.label for refusal in Refusal}
    purposes = {
        int(number): name
        for name, number in re.findall(r"^\| ([a-z -]+) \| (\d+) \|$", text.split("### 3.2 ")[0], re.MULTILINE)
    }
    assert purposes.keys() == {int(purpose) for purpose in identity.Purpose}


def test_classes_of_messages_have_their_numbers_and_sizes() -> None:
    section = spec_tables.text_of("network.md").split("### 4.2 ")[1].split("### 4.3 ")[0]
    rows = re.findall(r"^\| (\w+) \| (\d+) \| ([\d,]+) \|$", section, re.MULTILINE)
    assert [(name.upper(), int(number), int(size.replace(",", ""))) for name, number, size in rows] == [
        (cls.name, int(cls), limits.message_bytes_max)
        for cls, limits in zip(TrafficClass, mux.MuxLimits().classes, strict=True)
    ]


def test_reasons_of_errors_have_their_numbers_and_statuses() -> None:
    text = spec_tables.text_of("rpc.md")
    for number, reasons in re.findall(
        r"^\| (-\d+) \| (`.*) \|$", text.split("### 5.2 ")[1].split("### 5.3 ")[0], re.MULTILINE
    ):
        listed = re.findall(r"`(\w+)`", reasons)
        assert {number_of(reason) for reason in listed if reason != "retry_after_s"} == {int(number)}
    for status, reasons in re.findall(
        r"^\| (\d+) \| (`.*) \|$", text.split("### 5.4 ")[1].split("## 6 ")[0], re.MULTILINE
    ):
        assert {rest.STATUS_OF_REASON[reason] for reason in re.findall(r"`(\w+)`", reasons)} == {int(status)}
    for status, reasons in re.findall(r"^\| (\d+) \| (`.*) \|$", text.split("## 9 ")[1], re.MULTILINE):
        assert {blobs.STATUS_OF_REASON[reason] for reason in re.findall(r"`(\w+)`", reasons)} == {int(status)}


def test_refused_transactions_have_the_texts_that_clients_match() -> None:
    section = spec_tables.text_of("rpc.md").split("### 5.3 ")[1].split("### 5.4 ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))
    refusals: tuple[InvalidTransaction, ...] = (
        transition.NonceTooLow(expected=1, got=0),
        transition.NonceTooHigh(expected=0, got=1),
        transition.InsufficientFunds(balance=0, needed=1),
        transition.IntrinsicGasTooLow(gas_limit=0, needed=1),
        transition.GasLimitTooHigh(gas_limit=1, limit=0),
        transition.FeeCapTooLow(fee_cap=0, base_fee=1),
        transition.TipAboveFeeCap(tip=1, fee_cap=0),
        transition.WrongChain(expected=1, got=2),
        transition.UnknownKind(0),
        transition.CallRefused("why"),
        transition.TransactionTooLarge(size_bytes=1, limit_bytes=0),
        transition.SenderUnknown(),
        mempool.AlreadyKnown(),
        mempool.ReplacementUnderpriced(needed_fee=1, needed_tip=1),
        mempool.MempoolFull(),
        mempool.SenderLimit(limit=1),
    )
    assert listed.keys() == {refusal.code for refusal in refusals}
    assert [refusal for refusal in refusals if not str(refusal).startswith(listed[refusal.code])] == []


def test_every_citation_of_the_specification_names_a_place_that_there_is() -> None:
    assert citations.unresolved() == []
    assert len(citations.citations()) >= citations.CITATIONS_MIN


def test_no_number_of_a_heading_or_rule_stands_twice() -> None:
    assert citations.repeated() == []


def test_the_kinds_of_transactions_are_those_of_the_runtime() -> None:
    genesis = Genesis(chain_id=1, name="spec", time_ms=0, testnet=True, allocations=(), validators=())
    listed = {}
    for line in spec_tables.text_of("chain.md").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("0x"):
            listed[int(cells[0], 16)] = (cells[1], int(cells[2].replace(",", "")), cells[4])
    built = {
        kind: (
            rule.name,
            rule.gas,
            f"`{rule.call.function.signature}` at {rule.call.contract[-2:].hex()}" if rule.call else "",
        )
        for kind, rule in make_runtime(genesis).rules.items()
    }
    assert listed == built


def test_the_header_has_the_fields_of_the_specification() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", spec_tables.text_of("chain.md"), re.MULTILINE)
    assert [name for _, name in rows] == list(Header._fields)
    assert [int(number) for number, _ in rows] == list(range(len(Header._fields)))


def test_the_tables_of_the_state_are_those_of_the_specification() -> None:
    rows = re.findall(r"^\| (0x[0-9a-f]{2}) \|", spec_tables.text_of("chain.md"), re.MULTILINE)
    numbers = {int(row, 16) for row in rows}
    assert {table.value for table in Table if table.value < Table.NODE} <= numbers


def test_phases_and_reasons_of_the_market_have_their_numbers() -> None:
    text = spec_tables.text_of("market.md").split("### 5.1 ")[1].split("### 5.3 ")[0]
    of_tasks, of_windows = text.split("### 5.2 ")
    reasons = {int(number): name for number, name in re.findall(r"\| (\d+) \| ([a-z ]+?) (?=\|)", of_tasks)}
    assert reasons == {int(reason): _words(reason) for reason in Reason}
    windows = {name: int(number) for name, number in re.findall(r"\| ([a-z ]+?) \| (\d+) (?=\|)", of_windows)}
    assert windows == {_words(phase): int(phase) for phase in WindowPhase}
    flat = " ".join(of_tasks.split()).lower()
    missing = [phase for phase in Phase if not re.search(rf"{_words(phase)}(?: is)? {int(phase)}\b", flat)]
    assert missing == []


def _words(member: Phase | WindowPhase | Reason) -> str:
    return member.name.lower().replace("_", " ")
