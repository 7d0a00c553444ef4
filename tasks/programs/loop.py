"""The training loop: which rows a step takes, when weights change, and when they are evaluated (market.md R86).

An epoch has every training row once. Its last batch may have fewer rows. ``accumulate`` steps make one update; the
last update of an epoch may have fewer. After every ``evaluate_every`` updates, and after the last one, steps go
through the validation rows and change no weight. All of it follows from the number of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from tasks.programs.errors import ProgramInvalid
from tasks.programs.permutation import COUNT_MAX

__all__ = ["ACCUMULATE_MAX", "EVALUATIONS_MAX", "UPDATES_MAX", "Loop", "Moment", "updates_of"]

UPDATES_MAX: Final = 1 << 32
ACCUMULATE_MAX: Final = 1 << 16
EVALUATIONS_MAX: Final = 128
"""Evaluations of a job: their losses are one leaf of a state, and stand in proofs."""
_HELD: Final = 4_096


class Moment(NamedTuple):
    """What one step does.

    ``update`` is the number of the update that it belongs to, from 0; of an evaluation the last one before it.
    ``first`` is the place of its first row in the epoch, or among the validation rows; ``counted`` rows count.
    ``ends`` tells that an update or an evaluation is complete with it. ``evaluation`` is the number of the
    evaluation, -1 for a step that trains.
    """

    update: int
    epoch: int
    first: int
    counted: int
    ends: bool
    evaluation: int = -1


class Loop(NamedTuple):
    """The numbers that a training loop follows from. ``evaluate_every`` 0 does not evaluate.

    Of ``rows`` rows the first ``train_rows`` are for training, the others for validation.
    """

    batch: int
    rows: int
    train_rows: int
    accumulate: int = 1
    evaluate_every: int = 0
    updates: int = 1

    def check(self) -> Loop:
        """Return itself. Raises ProgramInvalid for numbers that are no loop."""
        if not (1 <= self.batch <= COUNT_MAX and 1 <= self.train_rows <= self.rows <= COUNT_MAX):
            raise ProgramInvalid(f"a batch of {self.batch} out of {self.train_rows} of {self.rows} rows")
        if not 1 <= self.accumulate <= ACCUMULATE_MAX or not 1 <= self.updates <= UPDATES_MAX:
            raise ProgramInvalid(f"{self.updates} updates of {self.accumulate} batches")
        if not 0 <= self.evaluate_every <= UPDATES_MAX:
            raise ProgramInvalid(f"an evaluation every {self.evaluate_every} updates")
        if self.evaluate_every and self.train_rows == self.rows:
            raise ProgramInvalid("an evaluation without validation rows")
        if self.evaluations > EVALUATIONS_MAX:
            raise ProgramInvalid(f"{self.evaluations} evaluations, at most {EVALUATIONS_MAX}")
        return self

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch without evaluations."""
        return -(-self.train_rows // self.batch)

    @property
    def epoch_updates(self) -> int:
        """Updates of an epoch."""
        return -(-self.epoch_steps // self.accumulate)

    @property
    def evaluation_steps(self) -> int:
        """Steps of one evaluation."""
        return -(-(self.rows - self.train_rows) // self.batch) if self.evaluate_every else 0

    @property
    def evaluations(self) -> int:
        """Evaluations of the whole job."""
        return -(-self.updates // self.evaluate_every) if self.evaluate_every else 0

    @property
    def steps(self) -> int:
        """Steps of the whole job."""
        return self.trained(self.updates) + self.evaluations * self.evaluation_steps

    def trained(self, updates: int) -> int:
        """Return the steps that train before update ``updates``."""
        epochs, rest = divmod(updates, self.epoch_updates)
        return epochs * self.epoch_steps + rest * self.accumulate

    def evaluated_at(self, evaluation: int) -> int:
        """Return the steps after which an evaluation is complete."""
        updates = min((evaluation + 1) * self.evaluate_every, self.updates)
        return self.trained(updates) + (evaluation + 1) * self.evaluation_steps

    def evaluated_by(self, steps: int) -> int:
        """Return how many evaluations are complete after so many steps."""
        low, high = 0, self.evaluations
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.evaluated_at(middle - 1) <= steps else (low, middle - 1)
        return low

    def ended_by(self, steps: int, losses: Sequence[float], patience: int) -> int:
        """Return the steps after which a job ends early, of those that are done; 0 if it goes on (R87).

        It ends with the first evaluation that is the last of ``patience`` in a row without a loss below the lowest
        one before them. ``losses`` are those of the evaluations, of which those count that are complete after
        ``steps``. The job's own last evaluation ends nothing early. ``patience`` 0 never ends.
        """
        best = 0
        for number in range(min(self.evaluated_by(steps), self.evaluations - 1) if patience else 0):
            if losses[number] < losses[best]:
                best = number
            if number - best >= patience:
                return self.evaluated_at(number)
        return 0

    def updated_by(self, steps: int) -> int:
        """Return how many updates are complete after so many steps."""
        if steps <= 0:
            return 0
        moment = self.at(steps - 1)
        return moment.update + int(moment.ends or moment.evaluation >= 0)

    def steps_between(self, updates: int) -> int:
        """Return how many steps each ``updates`` updates take, with the evaluations after them.

        0 where they do not take as many each time: epochs or evaluations end in between.
        """
        is_even = self.epoch_steps % self.accumulate == 0 or updates % self.epoch_updates == 0
        if not is_even or (self.evaluate_every and updates % self.evaluate_every):
            return 0
        return self.trained(updates) + (updates // self.evaluate_every if self.evaluate_every else 0) * (
            self.evaluation_steps
        )

    def at(self, step: int) -> Moment:
        """Return what a step does, from 0. A step after the last one does what the last one does."""
        return _moment(self, step)


@lru_cache(maxsize=_HELD)
def _moment(loop: Loop, step: int) -> Moment:
    step = max(0, min(step, loop.steps - 1))
    past = loop.evaluated_by(step)
    before = loop.evaluated_at(past - 1) if past else 0
    first = loop.trained(past * loop.evaluate_every) if past else 0
    last = min((past + 1) * loop.evaluate_every, loop.updates) if loop.evaluate_every else loop.updates
    rest = step - before
    if rest < loop.trained(last) - first:
        epoch, batch = divmod(first + rest, loop.epoch_steps)
        update = epoch * loop.epoch_updates + batch // loop.accumulate
        ends = batch + 1 == loop.epoch_steps or (batch + 1) % loop.accumulate == 0
        place = batch * loop.batch
        return Moment(update, epoch, place, min(loop.batch, loop.train_rows - place), ends)
    batch = rest - (loop.trained(last) - first)
    place, rows = batch * loop.batch, loop.rows - loop.train_rows
    ends = batch + 1 == loop.evaluation_steps
    epoch = (last - 1) // loop.epoch_updates
    return Moment(last - 1, epoch, place, min(loop.batch, rows - place), ends, past)


def updates_of(loop: Loop, steps: int) -> int:
    """Return the updates of a loop of so many steps. Raises ProgramInvalid where an update would be incomplete."""
    low, high = 1, min(max(steps, 1), UPDATES_MAX)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if loop._replace(updates=middle).steps >= steps else (middle + 1, high)
    if (found := loop._replace(updates=low)).steps != steps:
        raise ProgramInvalid(f"{steps} steps end within an update or an evaluation; {found.steps} do not")
    return low
