"""The scenarios: which member cheats and how, and what must have come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from testnet.scenarios.parts import COARSE, COPIER, FAST, LAZY, LIAR, OVERLOADER, SKIPPER, SWINDLER

__all__ = ["STORIES", "Story"]

VALIDATORS: Final = 4
WORKERS: Final = 2
QUICK: Final[Mapping[str, int]] = {
    "chain.block_interval_ms_min": 300,
    "consensus.block_interval_ms": 300,
    "consensus.idle_ms": 200,
    # The task is a second of work. Its worker's bond must pay the gas of moves and the checks that it made vain.
    "chain.base_fee_initial": 10_000,
    "chain.base_fee_min": 10_000,
    "tasks.check_fee_min": 10**12,
    # Each cheat is to be seen in one run.
    "tasks.audit_bps": 10_000,
    "tasks.draw_blocks": 2,
    "tasks.dispute_move_ms": 20_000,
    "tasks.dispute_side_ms": 120_000,
    "tasks.dispute_resume_ms": 4_000,
}
"""Short blocks, and short clocks for who says nothing."""


@dataclass(frozen=True)
class Story:
    """One scenario. ``late`` members start when the task has its first machine, so that it is the cheat's."""

    name: str
    told: str
    cheat: str
    part: str = ""
    """The part that the cheat's machine plays, if the cheat has one."""
    late: tuple[str, ...] = ()
    cuts_line: bool = False
    """Whether the machine of the accused is paused in mid-game, until its clock has run out."""
    overload: int = 0
    """How many jobs the cheat posts at once, whose segments take long to check."""
    parameters: Mapping[str, int] = field(default_factory=dict)
    workers: int = WORKERS
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Roles of members, where they have others than usual."""
    first: str = ""
    """The machine that does the same job before the cheat has it, and again where the cheat is found."""
    tunes: bool = False
    """Whether the task fine-tunes a model; else it trains a classifier."""
    requester: str = ""
    """The member whose account posts the task, which is private then."""
    is_offline: bool = False
    """Whether the requester leaves when others keep shares of the key, and returns when the task has settled."""

    @property
    def all_parameters(self) -> dict[str, int]:
        """Chain parameters of the network."""
        return {**QUICK, **self.parameters}


_ALL_VERIFY: Final = {"tasks.verifiers": 5, "tasks.verifiers_sure": 5}
"""Every machine checks every window, so the cheat is drawn."""
_MACHINES: Final = {
    "worker-0": ("compute",), "worker-1": ("compute",),
    **{f"worker-{number}": ("storage",) for number in (2, 3, 4)},
    **{f"validator-{number}": ("validator", "verify") for number in range(VALIDATORS)},
}  # fmt: skip
"""Two machines that run jobs, and three that keep outputs and shares of keys."""


def _tuning(name: str, told: str, part: str) -> Story:
    """Return the story of a worker that cheats in a fine-tuning, and of one that does the job after it."""
    return Story(name, f"a model learns a text; worker-0 {told}", "worker-0", part, ("worker-1",), tunes=True)


STORIES: Final[Mapping[str, Story]] = {
    story.name: story
    for story in (
        Story(
            "cheating-worker",
            "worker-0 changes one weight in some steps of each segment",
            "worker-0", LIAR, late=("worker-1",),
        ),
        _tuning("finetune", "changes one value of an adapter in some steps", LIAR),
        _tuning("other-rate", "trains with twice the learning rate", FAST),
        _tuning("coarse-weights", "computes with weights of 4 bits", COARSE),
        _tuning("skipped-steps", "leaves every fourth step out", SKIPPER),
        Story(
            "copied-result",
            "worker-1 does a job; worker-0 gets the same job, and publishes what worker-1 has left",
            "worker-0", COPIER, late=("worker-0",), tunes=True, first="worker-1",
        ),
        Story(
            "false-challenger",
            "validator-3 claims another result than the honest worker's, and plays for it",
            "validator-3", LIAR, parameters=_ALL_VERIFY,
        ),
        Story(
            "cut-line",
            "validator-3 disputes right work and cuts the worker's line, so that it misses its clock",
            "validator-3", LIAR, cuts_line=True,
            parameters={**_ALL_VERIFY, "tasks.dispute_move_ms": 6_000, "tasks.dispute_resume_ms": 120_000},
        ),
        Story(
            "overload",
            "a requester posts jobs of two long segments, which verifiers cannot check at once",
            OVERLOADER, overload=6,
        ),
        Story(
            "lazy-verifier",
            "validator-3 re-runs nothing: it copies what is public and guesses what is sealed",
            "validator-3", LAZY, parameters=_ALL_VERIFY,
        ),
        Story(
            "garbage-custody",
            "worker-0 keeps the result of a private task to itself, and puts garbage into custody",
            "worker-0", SWINDLER, late=("worker-1",), workers=5, roles=_MACHINES,
            requester="validator-3",
        ),
        Story(
            "offline-requester",
            "the requester of a private task is offline from its creation until it has settled",
            "", late=("worker-0", "worker-1"), workers=5, roles=_MACHINES,
            requester="validator-3", is_offline=True,
        ),
    )
}  # fmt: skip
