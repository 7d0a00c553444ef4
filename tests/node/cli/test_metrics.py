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
from node.cli.tasks.watch import SPARK_WIDTH, expect_settled, sparkline, told_evaluations
from rpc.client import ResultMismatch, TaskEnded
from rpc.client.metrics import LossPoint, points_of
from rpc.client.tensorboard import Scalar, event_file
from state.primitives.crc32c import masked_crc32c
from state.primitives.errors import DecodeError
from tasks.evaluations import Evaluation
from tasks.kinds.finetune import TrainingLoop
from tasks.proofs import SegmentLeaf, encode_leaves, segment_root
from tests.tasks.executor.helpers import make_spec
from tests.tasks.tuned import tuned

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
    spec = make_spec()
    assert points_of(window(root), data, spec) == [LossPoint(3, 0, 4, 3.0, True), LossPoint(3, 4, 8, 1.5, True)]
    assert not points_of(window(root, "proved"), data, spec)[0].is_final
    with pytest.raises(ResultMismatch, match="window 3"):
        points_of(window(bytes(32)), data, spec)
    with pytest.raises(DecodeError):
        points_of(window(root), b"\x80", spec)


def test_points_of_fine_tuning_are_the_mean_loss_of_updates() -> None:
    """Two batches an update, and an evaluation of a step after each second one: 2 + 2 + 1 steps."""
    spec, _, _ = tuned(updates=4, samples=3, loop=TrainingLoop(2, 2, 0))
    assert spec.schedule.total_steps == 10
    leaves = [*LEAVES, LEAVES[1]._replace(segment=2, step_from=8, step_to=10)]
    found = points_of(window(segment_root(leaves)), encode_leaves(leaves), spec)
    assert [point.loss for point in found] == [12.0 / 2, 6.0 / 1, 6.0 / 1]
    none = [LEAVES[0]._replace(step_to=1)]
    assert points_of(window(segment_root(none)), encode_leaves(none), spec) == []


def test_evaluations_are_a_second_curve_with_the_lowest_named() -> None:
    evaluations = [Evaluation(10, 12, 2.0), Evaluation(20, 24, 1.0), Evaluation(30, 36, 3.0)]
    assert told_evaluations(evaluations) == "validation ▅▁█ 3.0000, lowest 1.0000 after update 20"
    root = ElementTree.fromstring(picture([LossPoint(0, 0, 36, 4.0, True)], evaluations))
    lines = [item.attrib["points"].split() for item in root if item.tag.endswith("polyline")]
    assert [len(line) for line in lines] == [1, 3]


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


def test_losses_are_an_event_file_that_tensorboard_reads() -> None:
    """Records of TFRecord with masked sums. The whole file stands here: TensorBoard 2.21 has read these bytes."""
    content = event_file([Scalar("loss/train", 300, 0.5), Scalar("loss/train", 301, math.nan)])
    records, at = [], 0
    while at < len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        head, event = content[at : at + 8], content[at + 12 : at + 12 + size]
        assert struct.unpack_from("<I", content, at + 8) == (masked_crc32c(head),)
        assert struct.unpack_from("<I", content, at + 12 + size) == (masked_crc32c(event),)
        records.append(event)
        at += 16 + size
    assert records == [
        b"\x09" + struct.pack("<d", 0.0) + b"\x10\x00\x1a\x0dbrain.Event:2",
        b"\x09"
        + struct.pack("<d", 300.0)
        + b"\x10\xac\x02\x2a\x13\x0a\x11\x0a\x0aloss/train\x15"
        + struct.pack("<f", 0.5),
    ]


@pytest.mark.parametrize("value", [1e39, -1e300, 3.4028235677973366e38, math.inf])
def test_a_number_that_a_container_reports_may_be_too_large_for_tensorboard(value: float) -> None:
    """Attack: a container reports any float64, and its requester's command ended with a traceback."""
    assert event_file([Scalar("load", 1, value)]) == event_file([])
    largest = (2.0 - 2.0**-23) * 2.0**127
    assert event_file([Scalar("load", 1, largest)]).count(struct.pack("<f", largest)) == 1
