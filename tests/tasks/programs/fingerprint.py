"""``python -m tests.tasks.programs.fingerprint ENGINE``: hashes of small runs of programs.

Under other settings of threads and instruction sets, and with other engines, it must print the same lines.
"""

from __future__ import annotations

import sys
from hashlib import blake2b

from tasks.programs.arrays import Arrays
from tasks.programs.classifier import ACTIVATIONS, ClassifierShape, Rates, classifier_program
from tasks.programs.operators import Context
from tasks.programs.program import SourceKind
from tasks.programs.running import Runner
from tasks.programs.states import state_root
from tasks.programs.tensors import TensorType, tensor_root
from tests.tasks.engines.helpers import SEED, made_up_dataset
from tests.tasks.programs.engines import engine
from tests.tasks.programs.models import contents_of, first_state

STEPS = 12


def fingerprint(arrays: Arrays) -> dict[str, str]:
    """Return, for each activation, the program's hash, the state's root and hashes of trace and loss."""
    data, found = made_up_dataset(), dict[str, str]()
    for activation in ACTIVATIONS:
        shape = ClassifierShape((12, 20, 9, 4), activation, 10, data.rows, data.train_rows, data.shift)
        program = classifier_program(shape, Rates(5_000_000, weight_decay_nano=1_000_000))
        runner = Runner(program, arrays)
        state = runner.load(SourceKind.STATE, first_state(program))
        rows = runner.load(SourceKind.DATA, contents_of(data))
        for step in range(STEPS):
            result = runner.run(runner.sources(state, rows), Context(step, SEED))
            state = result.stores
        tensors: dict[str, tuple[TensorType, bytes]] = {}
        for name, number in program.stores.items():
            kind = program.types[number]
            tensors[name] = (kind, tensor_root(kind, arrays.content(state[name], "f4")))
        trace = blake2b(digest_size=16)
        for content in runner.trace(runner.sources(state, rows), Context(STEPS, SEED)):
            trace.update(content)
        found[f"{activation}_program"] = program.hash.hex()
        found[f"{activation}_state_root"] = state_root(STEPS, tensors).hex()
        found[f"{activation}_trace"] = trace.hexdigest()
        found[f"{activation}_loss_bits"] = arrays.content(result.loss, "f8")[::-1].hex()
    return found


if __name__ == "__main__":
    for key, value in fingerprint(engine(sys.argv[1])).items():
        print(key, value)
