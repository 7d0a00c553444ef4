"""The multicast core, in a seeded world of lines and relays, and against those who keep to no rule."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.multicast.core import Multicast
from p2p.multicast.pieces import (
    PARITY_MESSAGE_BYTES_MAX,
    Piece,
    PieceLayout,
    encode_piece,
    make_parity_pieces,
    seal_message,
    split_message,
)
from p2p.multicast.wire import (
    ASK_SOURCES_MAX,
    CONTROL_BYTES_MAX,
    FORGET_S,
    SWAP_MEMBERS_MAX,
    TICK_S,
    Announce,
    Ask,
    Control,
    Deliver,
    Done,
    Have,
    Member,
    MulticastParameters,
    Publish,
    ReportFault,
    SendControl,
    SendPiece,
    Swap,
    Want,
    decode_control,
    encode_control,
)
from state.primitives.errors import DecodeError
from tests.p2p.multicast_world import World, address

KIND = 2
BODY = Random(1).randbytes(400_000)
RATE = 5e6
UPLOAD_S = len(BODY) / RATE
HOMES = 10


def assert_heard(world: World, *, sender: int = 0, but: tuple[int, ...] = (), body: bytes = BODY) -> float:
    """Everybody has the message exactly once, from its sender; return when the last had it."""
    last = 0.0
    for node in world.nodes.values():
        if node.address == address(sender) or node.address in map(address, but):
            continue
        assert [heard[1:] for heard in node.heard] == [(address(sender), KIND, body)], node.address.hex()
        assert not node.blamed
        last = max(last, node.heard[0][0])
    return last


def run(world: World, until_s: float = 8.0) -> World:
    world.send(0, KIND, BODY)
    world.run(until_s)
    return world


@pytest.mark.parametrize("relays", [1, 2])
@pytest.mark.parametrize("jitter_s", [0.0, 0.05])
def test_through_relays_the_sender_uploads_once(relays: int, jitter_s: float) -> None:
    world = World(HOMES, seed=relays, jitter_s=jitter_s)
    for _ in range(relays):
        world.add_relay()
    run(world)
    last = assert_heard(world)
    sender = world.nodes[address(0)]
    assert sender.sent_bytes < 1.05 * len(BODY)
    assert last < UPLOAD_S + 0.2 + 2 * jitter_s
    assert [f.missing for f in sender.finished] == [0]
    assert all(node.sent_bytes < 20_000 for node in world.nodes.values() if node is not sender)


def test_without_relays_the_receivers_carry_it_to_each_other() -> None:
    world = run(World(HOMES, seed=3))
    assert assert_heard(world) < 2 * UPLOAD_S + 0.2
    assert max(node.sent_bytes for node in world.nodes.values()) < 2 * len(BODY)
    assert world.nodes[address(0)].core.counters["served"] == 0


def test_a_third_that_hands_nothing_on_costs_nobody_a_round() -> None:
    world = World(HOMES, seed=4)
    mute = (2, 5)
    for number in mute:
        world.nodes[address(number)].is_mute = True
    run(world)
    assert assert_heard(world, but=mute) < 2 * UPLOAD_S + 0.3
    for node in world.nodes.values():
        assert not node.core.counters["pulls"] or node.is_mute


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "fault",
    [
        {"dies_at": 0.04},
        {"is_silent": True},
        {"censors": frozenset(map(address, range(4, 9)))},
        {"censors": frozenset({address(4)})},
        {"loses": 0.3},
        {"forges": 0.2},
    ],
    ids=["dies", "is silent", "censors half", "censors one", "loses pieces", "forges pieces"],
)
@pytest.mark.parametrize("others", [0, 1])
def test_a_bad_relay_costs_at_most_a_second(fault: dict[str, object], others: int, seed: int) -> None:
    world = World(HOMES, seed=seed)
    world.add_relay(**fault)
    for _ in range(others):
        world.add_relay()
    run(world)
    assert assert_heard(world) < UPLOAD_S + 0.2 + 1.0
    # What follows takes another path at once.
    for node in world.nodes.values():
        node.heard.clear()
    body, began = BODY[::-1], world.now
    world.send(0, KIND, body)
    world.run(began + 8)
    assert assert_heard(world, body=body) - began < UPLOAD_S + 0.2 + 1.0


@pytest.mark.parametrize("seed", range(4))
def test_receivers_that_stand_still_cost_the_sender_no_second_upload(seed: int) -> None:
    """They are told whom to ask, and ask for nothing that their sockets held all the time."""
    world = World(HOMES, seed=seed, jitter_s=0.01)
    for _ in range(2):
        world.add_relay()
    random = Random(seed)
    for number in random.sample(range(1, HOMES), 4):
        world.stand_still(number, random.uniform(0.1, 0.8))
    run(world)
    assert_heard(world)
    assert world.nodes[address(0)].sent_bytes < 1.1 * len(BODY)
    assert world.nodes[address(0)].core.counters["asks"]


@pytest.mark.parametrize(
    "waiting",
    [(range(8), range(2, 10)), (range(8), range(8)), (range(6), range(10))],
    ids=["two lack one each", "two have none", "four lack one"],
)
def test_a_few_whom_a_relay_does_not_reach_ask_those_who_have_it(waiting: tuple[range, range]) -> None:
    world = World(HOMES, seed=11)
    for numbers in waiting:
        world.add_relay(waiting=frozenset(map(address, numbers)))
    run(world)
    assert assert_heard(world) < 2 * UPLOAD_S + 0.5
    sender = world.nodes[address(0)]
    assert sender.sent_bytes < 1.1 * len(BODY)
    assert not sender.core.counters["served"] and not sender.core.counters["swaps"]
    assert max(n.sent_bytes for n in world.nodes.values() if n is not sender) < len(BODY)


def test_where_relays_reach_halves_each_of_them_takes_all_of_it() -> None:
    world = World(HOMES, seed=12)
    world.add_relay(waiting=frozenset(map(address, range(1, 6))))
    world.add_relay(waiting=frozenset(map(address, range(6, 10))))
    run(world)
    assert assert_heard(world) < 2 * UPLOAD_S + 0.2
    assert world.nodes[address(0)].core.counters["asks"] == 0


@pytest.mark.parametrize("seed", range(2))
def test_relays_that_both_censor_some_and_a_third_that_answers_nobody(seed: int) -> None:
    world = World(HOMES, seed=seed)
    for _ in range(2):
        world.add_relay(censors=frozenset(map(address, range(6, 10))))
    mute = (1, 2, 7)
    for number in mute:
        world.nodes[address(number)].is_mute = True
    run(world)
    assert assert_heard(world, but=mute) < UPLOAD_S + 1.2


def test_relays_that_are_both_silent_cost_one_upload_and_its_parity_more() -> None:
    world = World(HOMES, seed=13)
    for _ in range(2):
        world.add_relay(is_silent=True)
    run(world)
    assert assert_heard(world) < UPLOAD_S + 1.0
    assert world.nodes[address(0)].sent_bytes < 2.6 * len(BODY)


def test_a_relay_that_loses_pieces_costs_the_sender_nothing() -> None:
    world = World(HOMES, seed=14)
    world.add_relay(loses=0.3)
    run(world)
    assert assert_heard(world) < UPLOAD_S + 1.2
    assert world.nodes[address(0)].sent_bytes < 1.1 * len(BODY)


def test_a_relay_that_failed_is_used_again_after_a_while() -> None:
    world = World(HOMES, seed=5)
    relay = world.add_relay(is_silent=True)
    run(world)
    relay.is_silent = False
    world.run(30)
    before = relay.copies
    world.send(0, KIND, BODY[::-1])
    world.run(38)
    assert relay.copies > before


def test_who_was_slow_once_gets_the_next_message_with_the_others() -> None:
    """Its relays had done their part; that it was helped is held against them all the same."""
    world = World(HOMES, seed=9)
    relays = [world.add_relay(), world.add_relay()]
    world.stand_still(3, 1.5)
    run(world, 4.0)
    assert world.nodes[address(0)].core._sending._is_shunned(relays[0].address, address(3), world.now)
    for node in world.nodes.values():
        node.heard.clear()
    asked, began = world.nodes[address(0)].core.counters["asks"], world.now
    world.send(0, KIND, BODY[::-1])
    world.run(began + 4)
    at = sorted(node.heard[0][0] - began for n, node in world.nodes.items() if n != address(0))
    assert at[-1] < UPLOAD_S + 0.2 and world.nodes[address(0)].core.counters["asks"] == asked
    assert not world.nodes[address(0)].core._sending._is_shunned(relays[0].address, address(3), world.now)


def test_who_is_censored_is_helped_as_soon_as_before_though_its_relays_are_tried_again() -> None:
    world = World(HOMES, seed=9)
    for _ in range(2):
        world.add_relay(censors=frozenset([address(3)]))
    run(world, 4.0)
    for began in (4.0, 8.0):
        for node in world.nodes.values():
            node.heard.clear()
        world.send(0, KIND, BODY[int(began) :])
        world.run(began + 4)
        at = {n: node.heard[0][0] - began for n, node in world.nodes.items() if n != address(0)}
        others = max(when for n, when in at.items() if n != address(3))
        assert at[address(3)] < others + 0.25, "those who have it are asked at once"


def test_those_who_may_wait_are_served_after_the_others_and_carry_nothing() -> None:
    world = World(HOMES, seed=6)
    world.send(0, KIND, BODY, may_wait=(8, 9))
    world.run(8)
    assert_heard(world)
    first = max(world.nodes[address(n)].heard[0][0] for n in range(1, 8))
    for number in (8, 9):
        node = world.nodes[address(number)]
        assert node.heard[0][0] > first
        assert node.core.counters["forwarded"] == 0


def test_who_comes_back_in_time_gets_it() -> None:
    world = World(HOMES, seed=7)
    world.add_relay()
    world.leave(3)
    world.leave(4)
    world.send(0, KIND, BODY)
    world.run(1.0)
    world.join(3)
    world.run(8)
    assert_heard(world, but=(4,))
    assert not world.nodes[address(4)].heard
    world.run(20)
    assert [f.missing for f in world.nodes[address(0)].finished] == [1]


def test_sent_again_it_only_reaches_those_who_lost_it() -> None:
    world = World(HOMES, seed=8)
    relay = world.add_relay()
    run(world, 2.0)
    assert_heard(world)
    sent, copies = world.nodes[address(0)].sent_bytes, relay.copies
    restarted = world.nodes[address(5)]
    restarted.core = Multicast(restarted.address, random=Random(5))
    restarted.core.trusted = frozenset(world.nodes)
    restarted.heard.clear()
    world.send(0, KIND, BODY)
    world.run(6)
    assert_heard(world)
    assert relay.copies == copies
    assert world.nodes[address(0)].sent_bytes - sent < 1.2 * len(BODY)


def test_a_sender_that_falls_silent_in_the_middle_of_a_swap_leaves_no_memory_behind() -> None:
    world = World(HOMES, seed=9)
    world.send(0, KIND, BODY)
    world.run(0.06)
    world.leave(0)
    world.run(60)
    assert all(not node.core.held_bytes for node in world.nodes.values())


def test_what_the_sender_gave_to_any_reaches_all_when_it_dies_after_its_upload() -> None:
    world = World(HOMES, seed=10)
    world.nodes[address(3)].is_mute = True
    world.send(0, KIND, BODY)
    world.run(2 * UPLOAD_S)
    world.leave(0)
    world.run(12)
    assert_heard(world, but=(3,))


# -- one core, by hand ------------------------------------------------------------------------------------------

ALICE, BOB, CAROL, MALLORY = (address(number) for number in (1, 2, 3, 66))
KEY = bytes(32)


def core_of(*trusted: bytes, parameters: MulticastParameters | None = None) -> Multicast:
    core = Multicast(address(0), random=Random(0), parameters=parameters)
    core.trusted = frozenset(trusted)
    return core


def announced(body: bytes, key: bytes = KEY) -> tuple[bytes, list[bytes], list[bytes]]:
    """Return the announcement of a body and its pieces, plain and marked to hand on."""
    sealed = seal_message(key, KIND, body)
    cut = split_message(sealed, PieceLayout(len(sealed), 1024))
    pieces = [Piece(cut.root, number, cut.proofs[number].siblings, data) for number, data in enumerate(cut.pieces)]
    announce = encode_control(Announce(cut.root, key, KIND, PieceLayout(len(sealed), 1024)))
    return (
        announce,
        [encode_piece(p) for p in pieces],
        [encode_piece(p._replace(is_to_forward=True)) for p in pieces],
    )


def delivered(effects: list[object]) -> list[Deliver]:
    return [effect for effect in effects if isinstance(effect, Deliver)]


def test_pieces_that_come_before_their_announcement_are_kept_for_it() -> None:
    core = core_of(ALICE)
    announce, pieces, _ = announced(bytes(3000))
    for piece in pieces:
        assert core.relay_piece(BOB, ALICE, piece, 0.0) == []
    assert [d.body for d in delivered([*core.control(ALICE, announce, 0.1)])] == [bytes(3000)]
    assert delivered([*core.control(ALICE, announce, 0.2)]) == []


def test_early_pieces_of_strangers_are_not_kept_and_those_of_members_are_bounded() -> None:
    core = core_of(ALICE, parameters=MulticastParameters(early_bytes_per_source_max=9_000))
    _, pieces, _ = announced(bytes(30_000))
    for piece in pieces:
        core.peer_piece(MALLORY, piece, 0.0)
    assert core.held_bytes == 0
    for piece in pieces:
        core.relay_piece(BOB, ALICE, piece, 0.0)
    assert 0 < core.held_bytes <= 9_000
    core.tick(5.0)
    assert core.held_bytes == 0 and not core.is_active


def test_who_announces_the_root_of_another_first_takes_nothing_from_it() -> None:
    core = core_of(ALICE, MALLORY)
    announce, pieces, _ = announced(bytes(3000))
    stolen = decode_control(announce)
    assert isinstance(stolen, Announce)
    for piece in pieces[:2]:
        core.relay_piece(BOB, ALICE, piece, 0.0)
    core.control(MALLORY, encode_control(stolen._replace(key=b"k" * 32)), 0.1)
    core.control(ALICE, announce, 0.2)
    effects = core.relay_piece(BOB, ALICE, pieces[2], 0.3)
    assert [(d.sender, d.body) for d in delivered([*effects])] == [(ALICE, bytes(3000))]
    assert [e.address for e in effects if isinstance(e, ReportFault)] == [MALLORY]


def test_who_announces_the_root_of_another_later_is_blamed_once() -> None:
    core = core_of(ALICE, MALLORY)
    announce, pieces, _ = announced(bytes(3000))
    stolen = decode_control(announce)
    assert isinstance(stolen, Announce)
    core.control(ALICE, announce, 0.0)
    heard = [effect for piece in pieces for effect in core.relay_piece(BOB, ALICE, piece, 0.0)]
    assert len(delivered([*heard])) == 1
    effects = core.control(MALLORY, encode_control(stolen._replace(key=b"k" * 32)), 0.1)
    assert [e for e in effects if isinstance(e, ReportFault)] == [ReportFault(MALLORY)]
    effects = core.control(MALLORY, encode_control(stolen._replace(key=b"l" * 32)), 0.2)
    assert effects == [SendControl(MALLORY, encode_control(Done(stolen.root)))]
    assert not delivered([*core.peer_piece(ALICE, pieces[0], 0.3)])


def test_who_announces_the_root_of_another_in_another_shape_harms_nobody() -> None:
    """The root does not say how the message is cut, so true pieces do not fit what a liar announced."""
    body = bytes(range(250)) * 12
    announce, pieces, _ = announced(body)
    stolen = decode_control(announce)
    assert isinstance(stolen, Announce)
    lie = encode_control(stolen._replace(layout=PieceLayout(stolen.layout.size_bytes, 2048)))
    core = core_of(ALICE, CAROL)
    core.control(MALLORY, lie, 0.0)
    effects = [*core.relay_piece(BOB, ALICE, pieces[0], 0.1), *core.peer_piece(CAROL, pieces[1], 0.1)]
    core.control(address(67), lie, 0.1)
    assert not effects
    core.control(CAROL, lie, 0.2)  # one of the committee who does the same
    assert not [e for e in core.peer_piece(ALICE, pieces[0], 0.2) if isinstance(e, ReportFault)]
    heard = [*core.control(ALICE, announce, 0.3), *core.peer_piece(ALICE, pieces[2], 0.3)]
    heard += core.peer_piece(ALICE, pieces[1], 0.4)
    assert [(d.sender, d.body) for d in delivered([*heard])] == [(ALICE, body)]
    assert not [e for e in heard if isinstance(e, ReportFault)]


def test_a_relay_is_heard_whatever_strangers_announce() -> None:
    announce, pieces, _ = announced(bytes(3000))
    stolen = decode_control(announce)
    assert isinstance(stolen, Announce)
    core = core_of(ALICE)
    core.control(MALLORY, encode_control(stolen._replace(layout=PieceLayout(stolen.layout.size_bytes, 2048))), 0.0)
    for piece in pieces:
        core.relay_piece(BOB, ALICE, piece, 0.1)
    assert [d.body for d in delivered([*core.control(ALICE, announce, 0.2)])] == [bytes(3000)]


def test_a_stranger_names_nobody_to_whom_a_receiver_speaks() -> None:
    announce, pieces, _ = announced(bytes(3000))
    root = decode_control(announce).root
    named = tuple(address(number) for number in range(100, 200))
    core = core_of(BOB)
    core.control(ALICE, announce, 0.0)
    core.control(ALICE, encode_control(Swap(root, b"", 0, named)), 0.0)
    effects = [effect for piece in pieces for effect in core.peer_piece(ALICE, piece, 0.1)]
    assert len(delivered([*effects])) == 1
    assert {e.address for e in effects if isinstance(e, SendControl)} == {ALICE}


def test_parity_of_a_message_that_would_take_long_to_rebuild_is_not_taken() -> None:
    size = PARITY_MESSAGE_BYTES_MAX + 1
    core = core_of(ALICE)
    core.control(ALICE, encode_control(Announce(bytes(32), KEY, KIND, PieceLayout(size, 64 * 1024))), 0.0)
    core.control(ALICE, encode_control(Swap(bytes(32), b"p" * 32, 32, (BOB,))), 0.0)
    [incoming] = core._receiving._incoming.values()
    assert not incoming.assembly.parity_count and incoming.swap == (BOB,)


def test_parity_that_belongs_to_other_data_is_its_senders_fault_however_often_pieces_come() -> None:
    body = bytes(30_000)
    sealed = seal_message(KEY, KIND, body)
    layout = PieceLayout(len(sealed), 1024)
    cut = split_message(sealed, layout)
    lie = make_parity_pieces(cut.pieces[::-1][1:] + cut.pieces[:1], layout, 3)
    core = core_of(ALICE)
    core.control(ALICE, encode_control(Announce(cut.root, KEY, KIND, layout)), 0.0)
    core.control(ALICE, encode_control(Swap(cut.root, lie.root, 3, (BOB,))), 0.0)
    blamed = []
    for number, (data, proof) in enumerate(
        zip(cut.pieces[:-1] + lie.pieces, cut.proofs[:-1] + lie.proofs, strict=True)
    ):
        place = number if number < layout.count - 1 else number + 1
        frame = encode_piece(Piece(cut.root, place, proof.siblings, data))
        blamed += [e for e in core.peer_piece(ALICE, frame, 0.1) if isinstance(e, ReportFault)]
    assert blamed == [ReportFault(ALICE)]


def test_only_what_a_trusted_sender_marked_itself_is_handed_on_and_once() -> None:
    announce, plain, marked = announced(bytes(3000))
    root = decode_control(announce).root
    swap = encode_control(Swap(root, b"", 0, (BOB, CAROL, address(0), ALICE)))

    def passed(core: Multicast, sender: bytes, frame: bytes) -> list[tuple[bytes, bytes]]:
        return sorted(
            (e.address, e.frame) for e in core.peer_piece(sender, frame, 1.0) if isinstance(e, SendPiece)
        )

    core = core_of(ALICE, BOB)
    core.control(ALICE, announce, 0.0)
    core.control(ALICE, swap, 0.0)
    assert passed(core, ALICE, plain[0]) == []
    assert passed(core, BOB, marked[1]) == [], "not by the sender's own hand"
    assert passed(core, ALICE, marked[0]) == [(BOB, plain[0]), (CAROL, plain[0])], "a copy is marked no more"
    assert passed(core, ALICE, marked[0]) == []
    core.control(BOB, encode_control(Done(root)), 1.0)
    assert passed(core, ALICE, marked[1]) == [(CAROL, plain[1])]

    stranger = core_of(BOB)
    stranger.control(ALICE, announce, 0.0)
    stranger.control(ALICE, swap, 0.0)
    assert passed(stranger, ALICE, marked[0]) == []


def test_a_marked_piece_waits_for_the_list_of_those_who_get_it() -> None:
    announce, plain, marked = announced(bytes(3000))
    root = decode_control(announce).root
    core = core_of(ALICE)
    core.control(ALICE, announce, 0.0)
    core.peer_piece(ALICE, marked[0], 0.0)
    effects = core.control(ALICE, encode_control(Swap(root, b"", 0, (BOB,))), 0.1)
    assert [(e.address, e.frame) for e in effects if isinstance(e, SendPiece)] == [(BOB, plain[0])]


def test_a_forged_piece_speaks_against_a_peer_and_silences_relay_and_publisher_together() -> None:
    announce, pieces, _ = announced(bytes(3000))
    core = core_of(ALICE, CAROL)
    core.control(ALICE, announce, 0.0)
    forged = pieces[0][:-1] + b"\xff"
    assert core.peer_piece(MALLORY, forged, 0.0) == [ReportFault(MALLORY)]
    assert core.relay_piece(BOB, ALICE, forged, 0.0) == []
    core.relay_piece(BOB, ALICE, pieces[0], 1.0)
    assert core.counters["pieces_by_relay"] == 0
    core.relay_piece(BOB, ALICE, pieces[0], 100.0)
    core.relay_piece(BOB, CAROL, b"no piece", 1.0)
    assert core.counters["pieces_by_relay"] == 1
    with pytest.raises(DecodeError):
        core.peer_piece(MALLORY, b"no piece", 0.0)


def test_a_sender_whose_pieces_make_no_message_is_blamed_once_and_forgotten() -> None:
    announce, pieces, _ = announced(bytes(3000))
    lie = decode_control(announce)
    assert isinstance(lie, Announce)
    core = core_of(ALICE)
    core.control(ALICE, encode_control(lie._replace(key=b"k" * 32)), 0.0)
    effects = [effect for piece in pieces for effect in core.peer_piece(ALICE, piece, 0.0)]
    assert [e for e in effects if isinstance(e, ReportFault)] == [ReportFault(ALICE)]
    assert not delivered([*effects]) and core.held_bytes == 0


def test_announcements_fill_only_their_bounds() -> None:
    parameters = MulticastParameters(
        incoming_bytes_per_sender_max=50_000, incoming_bytes_max=120_000, incoming_bytes_of_untrusted_max=60_000
    )
    core = core_of(ALICE, BOB, CAROL, parameters=parameters)

    def announce(sender: bytes, number: int, size: int) -> int:
        root = number.to_bytes(32, "big")
        return len(core.control(sender, encode_control(Announce(root, KEY, KIND, PieceLayout(size, 1024))), 0.0))

    assert announce(MALLORY, 1, 40_000) and not announce(MALLORY, 2, 40_000), "one sender"
    assert not announce(address(67), 3, 40_000), "all strangers"
    assert announce(ALICE, 4, 50_000), "a member has room of its own"
    assert not announce(BOB, 5, 50_000) and announce(BOB, 6, 10_000), "all together"
    for number in range(100):
        announce(CAROL, 100 + number, 100)
    assert core.counters["announced"] <= 3 + parameters.incoming_per_sender_max
    core.tick(100.0)
    assert core.held_bytes == 0


def test_what_is_asked_for_is_served_to_receivers_in_bounds() -> None:
    core = core_of(ALICE, BOB)
    members = [Member(ALICE), Member(BOB)]
    sent = core.send(KIND, bytes(100_000), members, {}, key=KEY, now=0.0)
    root = next(decode_control(e.data).root for e in sent if isinstance(e, SendControl))
    want = encode_control(Want(root, (1 << 200) - 1))
    assert core.control(MALLORY, want, 0.0) == []
    served = [len(core.control(ALICE, want, 5.0 + at)) for at in range(10)]
    count = PieceLayout.fit(100_016, 2).count
    assert sum(served) <= 1.5 * count
    other = core_of(ALICE)
    announce, pieces, _ = announced(bytes(3000))
    other.control(ALICE, announce, 0.0)
    other.peer_piece(ALICE, pieces[1], 0.0)
    assert other.control(MALLORY, encode_control(Want(decode_control(announce).root, 7)), 0.0) == []
    other.trusted = frozenset({ALICE, BOB})
    effects = other.control(BOB, encode_control(Want(decode_control(announce).root, 7)), 0.0)
    assert effects == [SendPiece(BOB, pieces[1])]


def test_what_a_connection_was_given_is_not_given_again_before_long_silence() -> None:
    core = core_of(ALICE, BOB)
    sent = core.send(KIND, bytes(100_000), [Member(ALICE), Member(BOB)], {}, key=KEY, now=0.0)
    root = next(decode_control(e.data).root for e in sent if isinstance(e, SendControl))
    passed = [e for e in sent if isinstance(e, SendPiece) and e.address == ALICE]
    assert passed
    want = encode_control(Want(root, (1 << PieceLayout.fit(100_016, 2).count) - 1))
    at = 0.0
    while at < 1.9:
        assert not [e for e in core.tick(at) if isinstance(e, SendPiece)]
        at += 0.02
    assert core.control(ALICE, want, at) == []
    core.pass_failed(ALICE, passed[0].frame)
    assert [e for e in core.control(ALICE, want, at) if isinstance(e, SendPiece)] == passed[:1]
    core.peer_left(BOB)
    core.peer_joined(BOB, at)
    assert len([e for e in core.control(BOB, want, at) if isinstance(e, SendPiece)]) == len(passed) // 2
    assert not [e for e in core.control(ALICE, want, 2 * at) if e in passed[:1]]


def test_each_piece_is_asked_of_one_of_those_whom_a_trusted_sender_names() -> None:
    announce, pieces, _ = announced(bytes(5000))
    root = decode_control(announce).root
    core = core_of(ALICE, BOB, CAROL)
    word = encode_control(Ask(root, ((BOB, 0b111), (address(0), 0b1000), (CAROL, 0b110110))))
    assert core.control(ALICE, word, 0.0) == [], "nothing is announced"
    core.control(ALICE, announce, 0.0)
    core.peer_piece(ALICE, pieces[0], 0.1)
    assert core.control(BOB, word, 0.1) == [], "not of its sender"
    assert core.control(ALICE, word, 0.1) == [
        SendControl(BOB, encode_control(Want(root, 0b110))),
        SendControl(CAROL, encode_control(Want(root, 0b10000))),
    ]
    for _ in range(8):
        core.control(ALICE, word, 0.2)
    assert core.counters["asked"] <= 5, "no more than was to come, and half of it"
    for piece in pieces:
        core.peer_piece(ALICE, piece, 0.3)
    assert core.control(ALICE, word, 0.4) == []

    stranger = core_of(BOB)
    stranger.control(ALICE, announce, 0.0)
    assert stranger.control(ALICE, word, 0.0) == []


def test_those_who_claim_to_have_it_at_once_are_not_believed_before_a_third_does() -> None:
    members = [Member(address(number)) for number in range(1, 10)]
    waiting = frozenset(member.address for member in members[:7])
    core = core_of(*(member.address for member in members))
    sent = core.send(KIND, BODY, members, {address(1001): waiting}, key=KEY, now=0.0)
    root = next(decode_control(e.data).root for e in sent if isinstance(e, SendControl))

    def asking(effects: list[object]) -> list[SendControl]:
        return [e for e in effects if isinstance(e, SendControl) and isinstance(decode_control(e.data), Ask)]

    effects = [*core.tick(0.02)]
    for liar in members[:3]:
        effects += core.control(liar.address, encode_control(Done(root)), 0.03)
    assert not asking([*effects, *core.tick(0.04)])
    told = asking([*core.control(members[3].address, encode_control(Done(root)), 0.05), *core.tick(0.06)])
    assert {tell.address for tell in told} == {member.address for member in members[7:]}
    for tell in told:
        word = decode_control(tell.data)
        assert isinstance(word, Ask)
        assert {source for source, _ in word.sources} == {member.address for member in members[:4]}
        assert sum(bits for _, bits in word.sources) == (1 << PieceLayout.fit(len(BODY) + 16, 9).count) - 1


def test_relays_are_chosen_to_reach_all_with_the_fewest_uploads() -> None:
    near, far, third = (address(number) for number in (1001, 1002, 1003))
    members = [Member(address(number)) for number in range(1, 9)]
    everybody = frozenset(member.address for member in members)
    half = frozenset(sorted(everybody)[:4])

    def plan(routes: dict[bytes, frozenset[bytes]]) -> dict[bytes, list[frozenset[bytes]]]:
        core = core_of(*everybody)
        effects = core.send(KIND, BODY, members, routes, key=KEY, now=0.0)
        return {e.relay: [part for part, _ in e.parts] for e in effects if isinstance(e, Publish)}

    count = PieceLayout.fit(len(BODY) + 16, 8).count
    assert plan({near: everybody}) == {near: [everybody] * count}
    split = plan({near: everybody, far: everybody, third: everybody})
    assert sorted(split) == [near, far] and sum(map(len, split.values())) == count
    apart = plan({near: half, far: everybody - half})
    assert apart == {near: [half] * count, far: [everybody - half] * count}
    assert plan({near: frozenset({members[0].address})}) == {}, "one receiver costs no less by relay"


CONTROLS = st.one_of(
    st.builds(
        Announce,
        st.binary(min_size=32, max_size=32),
        st.binary(min_size=32, max_size=32),
        st.integers(0, 0xDF),
        st.builds(PieceLayout.fit, st.integers(17, 10**6), st.integers(1, 30)),
    ),
    st.builds(Have, st.binary(min_size=32, max_size=32), st.integers(0, 2**256 - 1)),
    st.builds(Done, st.binary(min_size=32, max_size=32)),
    st.builds(
        Swap,
        st.binary(min_size=32, max_size=32),
        st.binary(min_size=32, max_size=32),
        st.integers(1, 32),
        st.lists(st.binary(min_size=20, max_size=20), max_size=SWAP_MEMBERS_MAX).map(tuple),
    ),
    st.builds(Want, st.binary(min_size=32, max_size=32), st.integers(1, 2**256 - 1)),
    st.builds(
        Ask,
        st.binary(min_size=32, max_size=32),
        st.lists(
            st.tuples(st.binary(min_size=20, max_size=20), st.integers(1, 2**256 - 1)), max_size=ASK_SOURCES_MAX
        ).map(tuple),
    ),
)


@given(CONTROLS)
def test_control_messages_come_back_as_they_were(message: Control) -> None:
    data = encode_control(message)
    assert len(data) <= CONTROL_BYTES_MAX
    assert decode_control(data) == message


SENT = st.tuples(st.integers(1, 4), st.one_of(CONTROLS.map(encode_control), st.binary(max_size=80)))


@given(st.lists(SENT, max_size=40))
@settings(max_examples=60, deadline=None)
def test_no_control_message_does_more_than_its_bounds(messages: list[tuple[int, bytes]]) -> None:
    core = core_of(address(1), address(2))
    for at, (sender, data) in enumerate(messages):
        try:
            core.control(address(sender), data, at / 10)
        except DecodeError:
            continue
        core.tick(at / 10)
    assert core.held_bytes <= MulticastParameters().incoming_bytes_max
    core.tick(1000.0)
    assert core.held_bytes == 0


def test_who_asks_is_helped_however_long_its_round_trip_seemed() -> None:
    core = core_of(*(address(number) for number in range(1, 5)))
    members = [Member(address(number), rtt_s=60.0) for number in range(1, 5)]
    waiting = frozenset(member.address for member in members)
    sent = core.send(KIND, bytes(50_000), members, {address(1001): waiting}, key=KEY, now=0.0)
    root = next(decode_control(e.data).root for e in sent if isinstance(e, SendControl))
    for step in range(1, 40):
        assert core.tick(step * 0.02) == []
    assert core.control(ALICE, encode_control(Want(root, 1)), 0.8) == []
    assert {e.address for e in core.tick(0.82) if isinstance(e, SendPiece)} == waiting, (
        "all who waited as long with it"
    )


def test_ticks_are_rare_once_everybody_has_a_message_and_frequent_again_for_the_next() -> None:
    sender, receiver = core_of(BOB), core_of(ALICE)
    members = [Member(ALICE, 0.05, is_connected=True, may_wait=False)]

    def send(body: bytes, now: float) -> None:
        to_receiver = sender.send(KIND, body, members, {}, key=bytes(32), now=now)
        assert sender.pause_s == TICK_S
        while to_receiver:
            back = []
            for effect in to_receiver:
                if isinstance(effect, SendControl):
                    back += receiver.control(BOB, effect.data, now)
                elif isinstance(effect, SendPiece):
                    assert receiver.pause_s == TICK_S
                    back += receiver.peer_piece(BOB, effect.frame, now)
            to_receiver = [
                other
                for told in back
                if isinstance(told, SendControl)
                for other in sender.control(ALICE, told.data, now)
            ]
            now += TICK_S
            to_receiver += sender.tick(now)

    send(bytes(5_000), 1.0)
    assert sender.is_active and receiver.is_active
    assert sender.pause_s == receiver.pause_s == FORGET_S
    late = 1.0 + MulticastParameters().keep_s
    receiver.tick(late)
    assert not receiver.is_active
    sender.tick(late)
    send(bytes(6_000), late + 0.4)  # what passed between rare ticks is not taken for a standstill
    assert sender.pause_s == FORGET_S
