"""What holds for processes of every job with a decoder: orders, and windows with their proofs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from state.primitives.errors import DecodeError
from tasks.engines.errors import UnsupportedJob
from tasks.executor.job import Job, Train, decode_parent_frame, encode_frame
from tasks.executor.resource_needs import needs_of
from tasks.executor.results import WindowResult, make_leaves, make_window_proof, segment_salts
from tasks.executor.service import Executor
from tasks.proofs import Code, SegmentLeaf, check_leaves
from tasks.spec import JobSpec


def check_orders(spec: JobSpec, data: bytes, step_to: int, model: bytes) -> None:
    """Check that a job and the order to run it come back as they were, and that no changed byte gives them too."""
    job = Job.of(spec)
    assert Job.decode(job.encode()) == job
    order = Train(job, data, None, step_to, False, model)
    body = encode_frame(order)[4:]
    assert decode_parent_frame(body, model) == order and len(body) < len(data) + 1_000
    for other in (b"", model[:-1]) if model else (b"model",):
        with pytest.raises(DecodeError):
            decode_parent_frame(body, other)
    raw = job.encode()
    for at in range(len(raw)):
        try:
            assert Job.decode(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]) != job
        except (DecodeError, UnsupportedJob):
            pass
    with pytest.raises(UnsupportedJob):
        replace(job, model_root=b"" if model else bytes(32))
    assert needs_of(spec, open_windows_max=2).process > 8 * len(model)


class Windows:
    """Leaves and states of the windows that a worker proved, each checked as the chain does."""

    def __init__(self, task: bytes, spec: JobSpec) -> None:
        self._task, self._spec = task, spec
        self.found = list[tuple[tuple[SegmentLeaf, ...], list[bytes]]]()

    async def hand_on(self, result: WindowResult) -> None:
        count = len(result.segments)
        states = [result.load_state(number) for number in range(count + 1)]
        salts = segment_salts(b"s" * 32, self._task, result.window, count)
        leaves = make_leaves(result, salts, [b"b" * 32] * count)
        proof = make_window_proof(self._task, result, leaves, leaves_blob=b"l" * 32, output_blob=b"o" * 32)
        check_leaves(self._spec, proof, leaves)
        self.found.append((leaves, states))

    async def check_second(self, verifier: Executor, data: bytes, model: bytes) -> None:
        """Check that a verifier finds a segment of the second window right, and a false state root wrong."""
        leaves, states = self.found[1]
        right = await verifier.verify_segment(self._task, self._spec, data, leaves[1], states[1], model=model)
        assert (right.code, right.mismatches) == (Code.COMPUTED, ())
        false = leaves[1]._replace(state_root_after=bytes(32))
        wrong = await verifier.verify_segment(self._task, self._spec, data, false, states[1], model=model)
        assert wrong.mismatches == ("state_root_after",)
