"""The loss of a task: points under the root of a proof, a line of blocks, a picture; exit statuses by its end."""

from __future__ import annotations

import math
import struct
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from node.cli import exit_status
from node.cli.tasks.metrics import picture
from node.cli.tasks.watch import SPARK_WIDTH, expect_settled, sparkline
from rpc.client import ResultMismatch, TaskEnded
from rpc.client.metrics import LossPoint, points_of
from state.primitives.errors import DecodeError
from tasks.proofs import SegmentLeaf, encode_leaves, segment_root

HASH = b"h" * 32
LOSSES = (12.0, 6.0)
LEAVES = [
    SegmentLeaf(at, 4 * at, 4 * at + 4, HASH, HASH, int.from_bytes(struct.pack(">d", loss), "big"), HASH, HASH)
    for at, loss in enumerate(LOSSES)
]


def window(root: bytes, phase: str = "final") -> Any:
    return SimpleNamespace(number=3, phase=phase, proof=SimpleNamespace(segment_root=root))


def test_points_are_the_mean_loss_of_a_segments_steps_and_are_those_of_the_proof() -> None:
    data, root = encode_leaves(LEAVES), segment_root(LEAVES)
    assert points_of(window(root), data) == [LossPoint(3, 0, 4, 3.0, True), LossPoint(3, 4, 8, 1.5, True)]
    assert not points_of(window(root, "proved"), data)[0].is_final
    with pytest.raises(ResultMismatch, match="window 3"):
        points_of(window(bytes(32)), data)
    with pytest.raises(DecodeError):
        points_of(window(root), b"\x80")


def test_a_sparkline_has_the_course_in_a_bounded_line() -> None:
    assert sparkline([8, 7, 6, 5, 4, 3, 2, 1]) == "█▇▆▅▄▃▂▁"
    assert sparkline([1.0, math.nan, 3.0]) == "▁x█"
    assert sparkline([2.0]) == "▁" and sparkline([]) == ""
    long = sparkline([float(n) for n in range(1000)])
    assert len(long) == SPARK_WIDTH and long == "".join(sorted(long))


def test_a_picture_is_an_svg_with_a_place_for_each_finite_point() -> None:
    points = [LossPoint(0, at, at + 1, loss, True) for at, loss in enumerate([4.0, math.inf, 1.0])]
    root = ElementTree.fromstring(picture(points))
    line = next(item for item in root if item.tag.endswith("polyline")).attrib["points"].split()
    assert len(line) == 2 and picture(points) == picture(points)
    xs, ys = zip(*(map(float, place.split(",")) for place in line), strict=True)
    assert xs[0] < xs[1] and ys[0] < ys[1]  # the loss falls
    ElementTree.fromstring(picture([]))


@pytest.mark.parametrize(("phase", "status"), [("failed", 3), ("cancelled", 4), ("expired", 5)])
def test_the_exit_status_says_how_a_task_ended(phase: str, status: int) -> None:
    with pytest.raises(TaskEnded) as caught:
        expect_settled(HASH, phase)
    assert exit_status(caught.value) == status
    expect_settled(HASH, "settled")
    assert exit_status(TaskEnded("not in time")) == 1
