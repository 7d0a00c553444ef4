"""Decoders of disputes and keys, and the game itself: no move of either side does more than lose."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from random import Random

from tasks.custody.errors import WrapInvalid
from tasks.custody.keys import input_key_name, window_key_name
from tasks.custody.wraps import unwrap_keys, unwrap_share
from tasks.dispute.commitments import Question
from tasks.dispute.errors import MoveRefused
from tasks.dispute.game import Game, Side, begin, play, turn_of
from tasks.dispute.moves import Move, Name, Partials, PickTerms, decode_move, encode_move
from tasks.dispute.players import Accused, Challenger
from tasks.dispute.records import decode_game, encode_game
from tasks.programs.errors import ProgramInvalid
from tasks.programs.tensors import ElementType, TensorType, unpack_leaf
from tests.fuzz.targets.base import Target, canonical
from tests.tasks.dispute.toys import Segment, influential, random_program, random_sources

_SECRET = b"\x07" * 32
_SHARE_WRAP = bytes.fromhex(
    "98ed5908554e8b84e3ec39d5e9b13877dd281594750783141015491d196b685ea11b5db32c987b866e3117b3ecc5c2fa"
    "a81f451c01192ed90c91b341c993d95c2cf9ff35c5d521bdb050d1f80ffbf3358c3e9f2672c2cb1960ae992198dfb582"
    "8d3d9982df0b"
)
_WRAP = bytes.fromhex(
    "f543e606fa4d67c88f5f4672051c72f323ecc50572fd3fc0528102ccf516130c12ca0d24d188510ecf8c95cf9c286413"
    "2f99f066e3f5dbd657188dfd28dc894f56a7990976d7a76cdaaf5915df21f93617fe4029d2e37d0be4b528b8c6e10e94"
    "2f887fa48f7ce7f0b87dff79013358868cf7230b3ddc99680a2f26"
)
"""Two keys, wrapped once: a wrap has random bytes, and a sample is the same in each process."""
_KIND = TensorType(ElementType.BINARY64, 2, 17)


def _changed(content: bytes, is_wrong: bool) -> bytes:
    return bytes([*content[:-3], content[-3] ^ 1, *content[-2:]]) if is_wrong else content


@cache
def _game(seed: int) -> tuple[Question, tuple[Game, ...], tuple[Move, ...]]:
    """Return a whole game that is played on chain: each of its states, and its moves."""
    random = Random(seed)
    program = random_program(random)
    sources = random_sources(program, random)
    honest = Segment(program, 5, 17, sources)
    wrong = max(number for number in influential(program) if program.types[number].element.size == 8)
    liar = Segment(program, 5, 17, sources, {3: lambda number, content: _changed(content, number == wrong)})
    question = liar.question()
    accused, challenger = Accused(question, liar.witness()), Challenger(question, honest.witness())
    games, moves = [begin(question)], list[Move]()
    while (side := turn_of(games[-1])) is not None:
        move = accused.move(games[-1]) if side is Side.ACCUSED else challenger.move(games[-1], moves)
        games.append(play(question, games[-1], side, move))
        moves.append(move)
    return question, tuple(games), tuple(moves)


def _play_everywhere(data: bytes) -> None:
    """Make one move in every state of a game, whoever is to move there."""
    move = decode_move(data)
    assert encode_move(move) == data
    question, games, _ = _game(4)
    for game in games:
        side = turn_of(game)
        if side is None:
            continue
        try:
            after = play(question, game, side, move)
        except MoveRefused:
            continue
        assert after.moves == game.moves + 1


def _samples(seed: int) -> tuple[bytes, ...]:
    moves = _game(seed)[2]
    openings = next(move.openings for move in moves if isinstance(move, Name))
    folds = (Partials((1, -2, 1 << 62), openings), PickTerms(3, openings), PickTerms(0, ()))
    return tuple(encode_move(move) for move in (*moves, *folds))


def targets() -> Iterator[tuple[str, Target]]:
    _, games, _ = _game(4)
    yield (
        "move of a dispute",
        Target(
            _play_everywhere,
            _samples(4),
            (
                "tasks.dispute.moves:decode_move",
                "tasks.dispute.moves:_openings",
                "tasks.dispute.moves:_leaf",
                "tasks.dispute.commitments:hashes",
                "tasks.dispute.commitments:record_of",
            ),
            memory=400,
        ),
    )
    yield (
        "game",
        Target(
            canonical(decode_game, encode_game),
            tuple(encode_game(game) for game in games),
            ("tasks.dispute.records:decode_game", "tasks.dispute.records:_interval"),
        ),
    )
    names = [window_key_name(2), input_key_name(0)]
    yield (
        "share in a wrap",
        Target(
            lambda data: unwrap_share(data, _SECRET, task=bytes(32), worker=bytes(20)),
            (_SHARE_WRAP,),
            ("tasks.custody.wraps:unwrap_share",),
            (WrapInvalid,),
            cost=4,
        ),
    )
    yield (
        "wrapped keys",
        Target(
            lambda data: unwrap_keys(data, _SECRET, names, task=bytes(32), holder=bytes(20)),
            (_WRAP,),
            ("tasks.custody.wraps:unwrap_keys", "tasks.custody.wraps:_open"),
            (WrapInvalid,),
            cost=4,
        ),
    )
    yield (
        "leaf of a tensor",
        Target(
            lambda data: unpack_leaf(_KIND, 1, data), (bytes(8),), ("tasks.programs.tensors:unpack_leaf",),
            (ProgramInvalid,),
        ),
    )  # fmt: skip
