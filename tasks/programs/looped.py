"""What steps of a training loop add up and keep: sums of an update, evaluations, the best state (market.md 4.6).

The same for adapters and for whole models. Everything that goes on from one step to the next stands in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import unpack
from typing import Final, Protocol

from tasks.programs.adamw import STATE_GROUPS, Gate
from tasks.programs.builder import Builder
from tasks.programs.checks import ADAPTER_LIMIT
from tasks.programs.errors import ProgramInvalid
from tasks.programs.llama_layers import NOTHING
from tasks.programs.llama_shape import BEST, EVALUATES, KEEPS_BEST, LAYOUT_MAX, SUMS_OF_GRADIENTS
from tasks.programs.loop import EVALUATIONS_MAX, Loop
from tasks.programs.operators.loops import FLAGS, NUMBERS
from tasks.programs.tally import Tally

__all__ = [
    "EVALUATION_BEST",
    "EVALUATION_LOSSES",
    "GRADIENT",
    "GRADIENT_LIMIT",
    "SUM_LOSS",
    "SUM_TOKENS",
    "LoopCalls",
    "LoopShape",
    "check_loop",
    "count_sums",
    "count_whole",
    "groups_of",
    "has_result",
    "is_gated",
    "layout_of",
    "loop_of_layout",
    "losses_in",
    "losses_leaf",
    "result_group",
    "single_tensors",
]

GRADIENT_LIMIT: Final = 60
GRADIENT: Final = "gradient"
"""The group of a state with the sums of gradients of an update that goes on."""
SUM_LOSS: Final = "sum/loss"
SUM_TOKENS: Final = "sum/tokens"
"""Sum of losses, and number of trained tokens, of an update or an evaluation that goes on."""
EVALUATION_LOSSES: Final = "evaluation/losses"
"""The validation loss of each evaluation, in their order; zero for those to come."""
EVALUATION_BEST: Final = "evaluation/best"
"""The lowest of them so far; zero before the first one."""


class LoopShape(Protocol):
    """What a state has of its loop follows from these."""

    @property
    def accumulate(self) -> int:
        """Batches of an update."""

    @property
    def evaluate_every(self) -> int:
        """Updates between two evaluations; 0 for none."""

    @property
    def keeps_best(self) -> int:
        """Whether the state of the lowest validation loss is kept, 0 or 1."""


def check_loop(shape: LoopShape, loop: Loop) -> None:
    """Raises ProgramInvalid for numbers that are no loop."""
    loop.check()
    if shape.keeps_best not in (0, 1) or shape.keeps_best > shape.evaluate_every:
        raise ProgramInvalid("the best state is that of evaluations")


def is_gated(shape: LoopShape) -> bool:
    """Tell whether some steps update nothing."""
    return shape.accumulate > 1 or shape.evaluate_every > 0


def single_tensors(shape: LoopShape) -> tuple[tuple[str, int], ...]:
    """Return name and columns of each tensor of a state that is of no weight, in the order of names."""
    found = [(EVALUATION_BEST, 1), (EVALUATION_LOSSES, EVALUATIONS_MAX)] if shape.evaluate_every else []
    return (*found, *([(SUM_LOSS, 1), (SUM_TOKENS, 1)] if is_gated(shape) else []))


def result_group(shape: LoopShape) -> str:
    """Return the group of a state that is the result of the job."""
    return BEST if shape.keeps_best else "parameter"


def layout_of(shape: LoopShape) -> int:
    """Return what a state has beside weights and moments, as ``Adapter`` has it."""
    return (
        SUMS_OF_GRADIENTS * (shape.accumulate > 1)
        | EVALUATES * (shape.evaluate_every > 0)
        | KEEPS_BEST * shape.keeps_best
    )


def loop_of_layout(layout: int) -> tuple[int, int, int]:
    """Return ``accumulate``, ``evaluate_every`` and ``keeps_best`` of a shape with this layout.

    Raises ProgramInvalid for one that is none.
    """
    if not 0 <= layout <= LAYOUT_MAX:
        raise ProgramInvalid(f"a state of layout {layout}")
    return 1 + bool(layout & SUMS_OF_GRADIENTS), int(bool(layout & EVALUATES)), int(bool(layout & KEEPS_BEST))


def groups_of(shape: LoopShape) -> tuple[str, ...]:
    """Return the groups of a state with a tensor for each trained one."""
    return (*STATE_GROUPS, *[GRADIENT] * (shape.accumulate > 1), *[BEST] * shape.keeps_best)


def losses_in(content: bytes) -> tuple[float, ...]:
    """Return the losses in the content of ``evaluation/losses``."""
    return unpack(f"<{EVALUATIONS_MAX}f", content)


def losses_leaf(shape: LoopShape, trained: int) -> tuple[int, int]:
    """Return the leaf of EVALUATION_LOSSES in the tree over a state of a job that evaluates, and its leaves.

    Each group has ``trained`` tensors. Before it stand the step, the groups whose names are lower, and
    EVALUATION_BEST.
    """
    groups = groups_of(shape)
    before = sum(group < EVALUATION_BEST for group in groups)
    return 2 + before * trained, 1 + len(groups) * trained + len(single_tensors(shape))


def has_result(shape: LoopShape, tensors: Mapping[str, bytes]) -> bool:
    """Tell whether a state has the result of its job: if that keeps the best one, after its first evaluation.

    The lowest loss does not tell: that of preferences may be zero (R135). Best matrices are zero until then.
    """
    best = (name for name in tensors if name.startswith(f"{BEST}/"))
    return not shape.keeps_best or any(any(tensors[name]) for name in best)


class LoopCalls:
    """The calls of a step about its loop. ``state`` loads a tensor of the state; ``stores`` has what is stored."""

    def __init__(
        self, build: Builder, shape: LoopShape, loop: Loop, state: Callable[[str], int], stores: dict[str, int]
    ) -> None:
        self._build, self._shape, self._loop, self._state, self._stores = build, shape, loop, state, stores
        self._share = self._is_best = -1

    def _flag(self, name: str) -> int:
        return self._build.call("loop_flag", attributes=(*self._loop, FLAGS.index(name)))

    def summed(self, loss: int, tokens: int) -> int:
        """Return the loss of the step: that of an update or an evaluation stands at its last step alone.

        ``loss`` is the sum over the step's ``tokens`` that count.
        """
        build = self._build
        goes_on = self._flag("goes_on")
        found: list[int] = []
        for name, new in ((SUM_LOSS, loss), (SUM_TOKENS, tokens)):
            found.append(build.binary32(build.call("add", self._state(name), new), GRADIENT_LIMIT))
            rest = build.call("multiply", found[-1], goes_on)
            self._stores[name] = build.call("store", rest, attributes=(GRADIENT_LIMIT,))
        # A count is no less than zero. Its bounds do not say so, those of the square of its root do.
        root = build.call("square_root", found[1])
        count = build.call("add", build.call("multiply", root, root), build.constant(NOTHING))
        divided = build.call("divide", build.constant(1.0), count)
        self._share = build.call("bound", divided, attributes=(0,))
        mean = build.call("multiply", found[0], self._share)
        if self._shape.evaluate_every:
            self._evaluated(mean)
        return build.call("multiply", mean, self._flag("updates"))

    def _evaluated(self, mean: int) -> None:
        """Note the loss of an evaluation where it is complete, and whether it is the lowest."""
        build = self._build
        best = self._state(EVALUATION_BEST)
        number = build.call("loop_number", attributes=(*self._loop, NUMBERS.index("evaluation")))
        place = build.call("one_hot", number, attributes=(EVALUATIONS_MAX,))
        losses = build.call("select", place, mean, self._state(EVALUATION_LOSSES))
        self._stores[EVALUATION_LOSSES] = build.call("store", losses, attributes=(GRADIENT_LIMIT,))
        # Both are rounded to binary32 first: the losses that a state shows decide.
        lower = build.call("subtract", best, build.binary32(mean, GRADIENT_LIMIT))
        lower = build.call("select", self._flag("begins"), build.constant(1.0), lower)
        self._is_best = build.call("select", self._flag("evaluates"), lower, build.constant(0.0))
        lowest = build.call("select", self._is_best, mean, best)
        self._stores[EVALUATION_BEST] = build.call("store", lowest, attributes=(GRADIENT_LIMIT,))

    def whole(self, name: str, gradient: int) -> int:
        """Return the gradient of a tensor over all trained tokens of an update, as far as it has come.

        ``gradient`` is that of the step's sum, rounded to binary32.
        """
        build, found = self._build, gradient
        if self._shape.accumulate > 1:
            key = f"{GRADIENT}/{name}"
            found = build.binary32(build.call("add", self._state(key), found), GRADIENT_LIMIT)
            rest = build.call("multiply", found, self._flag("goes_on"))
            self._stores[key] = build.call("store", rest, attributes=(GRADIENT_LIMIT,))
        return build.binary32(build.call("multiply", found, self._share), GRADIENT_LIMIT)

    def gate(self) -> Gate:
        """Return which steps update, and the number of the update."""
        number = self._build.call("loop_number", attributes=(*self._loop, NUMBERS.index("update")))
        return Gate(self._flag("updates"), number)

    def best(self, name: str) -> None:
        """Store the best tensor. No step that evaluates changes a weight."""
        found = self._build.call(
            "select", self._is_best, self._state(f"parameter/{name}"), self._state(f"{BEST}/{name}")
        )
        self._stores[f"{BEST}/{name}"] = self._build.call("store", found, attributes=(ADAPTER_LIMIT,))


def count_sums(found: Tally, shape: LoopShape) -> None:
    """Count what an update or an evaluation of several steps adds up, and what is noted of evaluations."""
    if not is_gated(shape):
        return
    found.each(1, *["load", "add", "store", "load", "multiply", "store"] * 2)
    found.each(1, "loop_flag", "loop_flag", "loop_number", "square_root", "multiply")
    found.each(1, "add", "divide", "bound", "multiply", "multiply")
    if shape.evaluate_every:
        found.each(EVALUATIONS_MAX, "one_hot", "load", "select", "store")
        found.each(1, "load", "loop_number", "store", "load", "subtract", "loop_flag", "loop_flag")
        found.each(1, "select", "select", "select", "store")


def count_whole(found: Tally, shape: LoopShape, values: int) -> None:
    """Count what a loop does with the gradient of a tensor, and with its best values."""
    if is_gated(shape):
        found.each(values, "multiply", "store", "load", "select", "select", "select")
    if shape.accumulate > 1:
        found.each(values, "load", "add", "store", "load", "multiply", "store")
    if shape.keeps_best:
        found.each(values, "load", "select", "store")
