"""How a node begins, from what it has and what its options say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.home.config import Checkpoint, parse_checkpoint
from node.home.options import HistoryOptions, NodeOptions, SyncOptions
from node.home.paths import Home
from node.sync.database import beginning_of, make_state_sync, open_chain
from node.sync.service import sync_path
from node.sync.start_plan import Beginning, CheckpointMismatch, NewestBlock, RootExpired, how_to_begin
from state.primitives.genesis import ChainParameters, read_parameters
from state.store import Restore, StoreDamaged
from state.transition.runtime import Runtime
from tests.node.sync.world import EPOCH_BLOCKS, GENESIS, World

REAL = replace(GENESIS, testnet=False)
PERIOD_MS = read_parameters(ChainParameters, "chain", REAL).unbonding_ms * 2 // 3
DAY_MS = 86_400_000
YOUNG_MS, OLD_MS = REAL.time_ms + 1_000, REAL.time_ms + 3_600_000
EXPIRED_MS = REAL.time_ms + PERIOD_MS + 1_000
BLOCKS, STATE, EITHER = Beginning.BLOCKS, Beginning.STATE, Beginning.STATE_OR_BLOCKS
RUNTIME = Runtime(GENESIS)


def at(height: int) -> Checkpoint:
    return parse_checkpoint(f"{height}:" + "ab" * 32)


def begin(now_ms: int, mode: str = "auto", **given: Any) -> Beginning:
    said: dict[str, Any] = {"checkpoint": None, "keeps_all": False, "kept": None, **given}
    return how_to_begin(said.pop("genesis", REAL), mode=mode, now_ms=now_ms, **said)


@pytest.mark.parametrize("kept", [None, NewestBlock(0, REAL.time_ms)], ids=["nothing", "the genesis alone"])
def test_a_fresh_node(kept: NewestBlock | None) -> None:
    assert [begin(OLD_MS, mode, kept=kept) for mode in ("auto", "state", "blocks")] == [EITHER, STATE, BLOCKS]
    assert [begin(YOUNG_MS, mode, kept=kept) for mode in ("auto", "state", "blocks")] == [BLOCKS, STATE, BLOCKS]
    assert begin(OLD_MS, keeps_all=True, kept=kept) is BLOCKS
    assert begin(YOUNG_MS, is_begun=True, kept=kept) is EITHER, "an unfinished sync is finished"
    for now_ms in (YOUNG_MS, OLD_MS, EXPIRED_MS):
        assert begin(now_ms, checkpoint=at(400), kept=kept) is STATE
        assert begin(now_ms, "blocks", checkpoint=at(400), kept=kept) is BLOCKS


@pytest.mark.parametrize(
    "said", [{}, {"keeps_all": True}, {"is_begun": True}, {"mode": "state"}, {"is_founder": True}]
)
def test_an_old_genesis_is_no_root_of_trust(said: dict[str, Any]) -> None:
    with pytest.raises(RootExpired) as caught:
        begin(EXPIRED_MS, **said)
    assert caught.value.code == "trust_expired"
    assert "--checkpoint HEIGHT:HASH" in str(caught.value) and 'sync.mode = "blocks"' in str(caught.value)


def test_founders_of_a_test_network_begin_whenever_they_like() -> None:
    test = replace(REAL, testnet=True)
    assert begin(EXPIRED_MS, genesis=test, is_founder=True) is BLOCKS
    with pytest.raises(RootExpired):
        begin(EXPIRED_MS, genesis=test)


def test_the_only_founder_of_an_old_genesis_waits_for_nobody() -> None:
    alone = replace(REAL, validators=REAL.validators[:1])
    assert begin(OLD_MS, genesis=alone, is_founder=True) is BLOCKS
    assert begin(OLD_MS, genesis=alone) is EITHER, "another node follows it"
    assert begin(OLD_MS, "state", genesis=alone, is_founder=True) is STATE
    assert begin(OLD_MS, is_founder=True) is (BLOCKS if len(REAL.validators) == 1 else EITHER)


def test_a_node_that_was_off() -> None:
    tip_ms = REAL.time_ms + 30 * DAY_MS
    kept = NewestBlock(2_000, tip_ms)
    for mode in ("auto", "state", "blocks"):
        assert begin(tip_ms + 60_000, mode, kept=kept) is BLOCKS
        assert begin(tip_ms + PERIOD_MS, mode, kept=kept) is BLOCKS
    late_ms = tip_ms + PERIOD_MS + 1
    for mode in ("auto", "state"):
        with pytest.raises(RootExpired) as caught:
            begin(late_ms, mode, kept=kept)
        assert "2000" in str(caught.value)
        with pytest.raises(RootExpired):
            begin(late_ms, mode, kept=kept, checkpoint=at(1_996))
        assert begin(late_ms, mode, kept=kept, checkpoint=at(4_000)) is STATE
        assert begin(late_ms, mode, kept=kept, checkpoint=at(2_004)) is BLOCKS, "they lead through it"
    assert begin(late_ms, "blocks", kept=kept) is BLOCKS
    assert begin(late_ms, kept=kept, genesis=replace(REAL, testnet=True)) is BLOCKS, "it may have stood still"


WEEK_MS = 168 * EPOCH_BLOCKS * read_parameters(ChainParameters, "chain", REAL).block_interval_ms_min


def test_a_node_that_was_off_for_longer_than_peers_keep_blocks_begins_with_a_state() -> None:
    tip_ms = REAL.time_ms + 30 * DAY_MS
    kept = NewestBlock(2_001, tip_ms, tip_ms - 5_000)
    late_ms = tip_ms + WEEK_MS + 1
    for mode in ("auto", "state"):
        assert begin(late_ms - 1, mode, kept=kept) is BLOCKS
        assert begin(late_ms, mode, kept=kept) is EITHER
        assert begin(late_ms, mode, kept=kept, checkpoint=at(1_996)) is EITHER, "one that was passed long ago"
        assert begin(late_ms, mode, kept=kept, checkpoint=at(2_004)) is BLOCKS, "they lead through it"
        assert begin(late_ms, mode, kept=kept, keeps_all=True) is BLOCKS
        assert begin(late_ms, mode, kept=kept._replace(boundary_ms=None)) is BLOCKS
        assert begin(late_ms, mode, kept=kept, genesis=replace(REAL, testnet=True)) is BLOCKS
        # The newest block is still to be trusted, and its epoch's beginning is not: only blocks can be believed.
        end_ms = kept.boundary_ms + PERIOD_MS if kept.boundary_ms is not None else 0
        assert begin(end_ms, mode, kept=kept) is EITHER
        assert begin(end_ms + 1, mode, kept=kept) is BLOCKS
        with pytest.raises(RootExpired):
            begin(tip_ms + PERIOD_MS + 1, mode, kept=kept)
    assert begin(late_ms, "blocks", kept=kept) is BLOCKS


def test_who_keeps_all_goes_on_with_the_blocks() -> None:
    kept = NewestBlock(2_000, REAL.time_ms + 1)
    assert begin(EXPIRED_MS + DAY_MS, kept=kept, checkpoint=at(40_000), keeps_all=True) is BLOCKS
    assert begin(EXPIRED_MS + DAY_MS, "state", kept=kept, checkpoint=at(40_000), keeps_all=True) is STATE


@given(
    mode=st.sampled_from(("auto", "state")), keeps_all=st.booleans(), is_begun=st.booleans(),
    is_founder=st.booleans(), age_ms=st.integers(0, 3 * PERIOD_MS),
    kept=st.none() | st.builds(
        NewestBlock, st.integers(0, 10_000), st.integers(0, 3 * PERIOD_MS),
        st.none() | st.integers(0, 3 * PERIOD_MS)
    ),
    checkpoint=st.none() | st.builds(at, st.integers(1, 5_000).map(lambda epoch: epoch * EPOCH_BLOCKS)),
)  # fmt: skip
def test_without_the_operators_word_nothing_old_is_believed(
    mode: str, keeps_all: bool, is_begun: bool, is_founder: bool, age_ms: int, kept: NewestBlock | None,
    checkpoint: Checkpoint | None,
) -> None:  # fmt: skip
    now_ms = REAL.time_ms + age_ms
    if kept is not None:
        time_ms = REAL.time_ms + min(kept.time_ms, age_ms)
        boundary_ms = None if kept.boundary_ms is None else min(REAL.time_ms + kept.boundary_ms, time_ms)
        kept = NewestBlock(kept.height, time_ms, boundary_ms)
    root_ms = kept.time_ms if kept is not None and kept.height else REAL.time_ms
    is_newer = checkpoint is not None and checkpoint.height > (kept.height if kept is not None else 0)
    try:
        how = begin(
            now_ms, mode, keeps_all=keeps_all, is_begun=is_begun, is_founder=is_founder, kept=kept,
            checkpoint=checkpoint,
        )  # fmt: skip
    except RootExpired:
        assert now_ms - root_ms > PERIOD_MS and not is_newer
    else:
        assert now_ms - root_ms <= PERIOD_MS or is_newer
        if how is EITHER and kept is not None and kept.height:
            assert kept.boundary_ms is not None and now_ms - kept.boundary_ms <= PERIOD_MS and not keeps_all
        assert how is not BLOCKS or now_ms - root_ms <= PERIOD_MS or (kept is not None and kept.height)


# A home.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr("node.sync.database._wall_ms", lambda: OLD_MS)
    return Home(tmp_path / "node")


def options_of(checkpoint: str = "", mode: str = "auto", profile: str = "full") -> NodeOptions:
    return NodeOptions(sync=SyncOptions(mode=mode, checkpoint=checkpoint), store=HistoryOptions(profile=profile))


def test_a_checkpoint_is_never_ignored(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert beginning_of(home, options_of(), RUNTIME) is EITHER
    open_chain(home, options_of(), RUNTIME).close()
    far = "400:" + "ab" * 32
    assert beginning_of(home, options_of(), RUNTIME) is EITHER, "the genesis alone is no database"
    assert beginning_of(home, options_of(far), RUNTIME) is STATE
    assert beginning_of(home, options_of(mode="state"), RUNTIME) is STATE
    monkeypatch.setattr("node.sync.database._wall_ms", lambda: EXPIRED_MS)
    with pytest.raises(RootExpired):
        beginning_of(home, options_of(), RUNTIME)
    assert beginning_of(home, options_of(far), RUNTIME) is STATE


def test_a_database_of_another_history_than_the_checkpoint_is_refused(home: Home) -> None:
    world = World(home.chain.parent)
    world.mint(3 * EPOCH_BLOCKS)
    record = world.store.height(EPOCH_BLOCKS)
    assert record is not None
    world.store.close()
    other, same = "ab" * 32, record.block_hash.hex()
    with pytest.raises(CheckpointMismatch):
        open_chain(home, options_of(f"{EPOCH_BLOCKS}:{other}"), RUNTIME)
    with open_chain(home, options_of(f"{EPOCH_BLOCKS}:{same}"), RUNTIME) as store:
        assert store.tip.height == 3 * EPOCH_BLOCKS
    assert beginning_of(home, options_of(f"{400 * EPOCH_BLOCKS}:{other}"), RUNTIME) is STATE
    assert beginning_of(home, options_of(f"{400 * EPOCH_BLOCKS}:{other}", profile="archive"), RUNTIME) is BLOCKS


def test_the_boundary_of_an_old_database_is_found_and_the_database_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, runtime = Home(tmp_path / "node"), Runtime(REAL)
    world = World(home.chain.parent, genesis=REAL)
    world.mint(3 * EPOCH_BLOCKS + 1)
    tip, boundary = world.store.tip, world.store.height(3 * EPOCH_BLOCKS)
    assert boundary is not None
    world.store.close()
    monkeypatch.setattr("node.sync.database._wall_ms", lambda: tip.time_ms + WEEK_MS + 1)
    assert beginning_of(home, options_of(), runtime) is EITHER
    with pytest.raises(CheckpointMismatch):
        beginning_of(home, options_of(f"{EPOCH_BLOCKS}:{'ab' * 32}"), runtime)
    far = Checkpoint(400 * EPOCH_BLOCKS, b"\xab" * 32)
    for text, root, above in (
        ("", Checkpoint(3 * EPOCH_BLOCKS, boundary.block_hash), tip.height),
        (f"{EPOCH_BLOCKS}:{'ab' * 32}", Checkpoint(3 * EPOCH_BLOCKS, boundary.block_hash), tip.height),
        (f"{far.height}:{far.block_hash.hex()}", far, 0),
    ):
        made = make_state_sync(home, options_of(text), runtime, NoNetwork())
        assert (made.checkpoint, made.above) == (root, above)
    open_chain(home, options_of(), runtime).close()


class NoNetwork:
    """Nobody is asked."""

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float, limit_bytes: int
    ) -> bytes:
        raise AssertionError

    def peers(self) -> tuple[()]:
        return ()

    def ban(self, address: bytes, reason: str) -> None:
        raise AssertionError

    def credit(self, address: bytes) -> None:
        raise AssertionError


def test_a_damaged_database_is_named_and_not_replaced_unseen(home: Home) -> None:
    open_chain(home, options_of(), RUNTIME).close()
    (home.chain / "CURRENT").write_bytes(b"")
    options = options_of("400:" + "ab" * 32)
    assert beginning_of(home, options, RUNTIME) is BLOCKS
    with pytest.raises(StoreDamaged):
        open_chain(home, options, RUNTIME)


def test_a_state_that_was_fetched_before_a_crash_needs_no_trust_any_more(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    Restore.open(sync_path(home.chain), GENESIS).close()
    monkeypatch.setattr("node.sync.database._wall_ms", lambda: EXPIRED_MS)
    with pytest.raises(RootExpired):
        beginning_of(home, options_of(), RUNTIME)
    sync_path(home.chain).rename(home.chain.with_name("begun"))
    World(home.chain.parent).store.close()
    home.chain.rename(sync_path(home.chain))
    assert beginning_of(home, options_of(), RUNTIME) is STATE
