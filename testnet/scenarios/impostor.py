"""``python -m testnet.scenarios.impostor PART ...`` is ``dekube ...`` of a machine that cheats. For tests only."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from node.cli import main
from node.daemon.running import RunningNode
from node.market.duties import DutyService
from node.market.inputs import JobInputs
from node.market.verifier import TaskVerifier
from tasks.executor.results import Verdict
from tasks.proofs import Code, SegmentLeaf
from tasks.spec import JobSpec
from testnet.scenarios.copying import CopiersDuties
from testnet.scenarios.parts import COARSE, COPIER, FAST, LAZY, LIAR, SKIPPER, SWINDLER
from testnet.scenarios.swindle import SwindlersDuties

__all__ = ["PARTS", "CoarseDuties", "FastDuties", "LyingDuties", "SkippingDuties"]


class LyingDuties(DutyService):
    """Its jobs compute a lie: as worker, as verifier, and in the games about it."""

    child_module = "testnet.scenarios.lying_child"


class LazyVerifier(TaskVerifier):
    """Computes nothing. It says what the worker published, and guesses what the worker hides."""

    async def _check_segment(
        self, task: bytes, spec: JobSpec, inputs: JobInputs, leaf: SegmentLeaf, state: bytes, claimed: bytes
    ) -> Verdict:
        guess = secrets.token_bytes(32)
        return Verdict(leaf.segment, Code.COMPUTED, guess, leaf.state_root_after, leaf.loss_bits, ())


class LazyDuties(DutyService):
    """Re-runs nothing."""

    verifier_type = LazyVerifier


class FastDuties(DutyService):
    """Trains with twice the learning rate."""

    child_module = "testnet.scenarios.rate_child"


class CoarseDuties(DutyService):
    """Reads frozen weights of 4 bits."""

    child_module = "testnet.scenarios.coarse_child"


class SkippingDuties(DutyService):
    """Leaves steps out."""

    child_module = "testnet.scenarios.skipping_child"


PARTS: Final[Mapping[str, type[DutyService]]] = {
    LIAR: LyingDuties, LAZY: LazyDuties, SWINDLER: SwindlersDuties, FAST: FastDuties, COARSE: CoarseDuties,
    SKIPPER: SkippingDuties, COPIER: CopiersDuties,
}  # fmt: skip


def run(arguments: Sequence[str]) -> None:
    """Run the command line with the duties of a cheat."""
    RunningNode.duties_type = PARTS[arguments[1]]
    sys.argv = [arguments[0], *arguments[2:]]
    main()


if __name__ == "__main__":
    run(sys.argv)
