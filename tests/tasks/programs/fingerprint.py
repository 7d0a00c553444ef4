"""``python -m tests.tasks.programs.fingerprint ENGINE``: hashes of small runs of programs.

Under other settings of threads and instruction sets, and with other engines, it must print the same lines.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from hashlib import blake2b

from tasks.engines.training import Trainer, initial_state
from tasks.programs.arrays import Arrays
from tasks.programs.classifier import ACTIVATIONS
from tasks.programs.operators import Context
from tasks.programs.program import SourceKind
from tasks.programs.running import Runner
from tests.tasks.engines.helpers import SILU, made_up_dataset
from tests.tasks.programs.engines import engine

STEPS = 12


def fingerprint(arrays: Arrays) -> dict[str, str]:
    """Return, for each activation, the program's hash, what a segment commits to, and a hash of a trace."""
    data, found = made_up_dataset(), dict[str, str]()
    for activation in ACTIVATIONS:
        plan = replace(SILU, activation=activation)
        trainer = Trainer(plan, data, arrays, initial_state(plan))
        result = trainer.run_segment(STEPS)
        runner = Runner(plan.program, arrays)
        state = runner.load(SourceKind.STATE, trainer.state().tensors)
        sources = runner.sources(state, runner.load(SourceKind.DATA, data.contents))
        trace = blake2b(digest_size=16)
        for content in runner.trace(sources, Context(STEPS, plan.seed)):
            trace.update(content)
        found[f"{activation}_program"] = plan.program.hash.hex()
        found[f"{activation}_state_root"] = result.state_root.hex()
        found[f"{activation}_work_digest"] = result.work_digest.hex()
        found[f"{activation}_loss_bits"] = f"{result.loss_bits:016x}"
        found[f"{activation}_trace"] = trace.hexdigest()
        found[f"{activation}_right"] = str(trainer.evaluate().right)
    return found


if __name__ == "__main__":
    for key, value in fingerprint(engine(sys.argv[1])).items():
        print(key, value)
