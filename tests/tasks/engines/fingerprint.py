"""``python -m tests.tasks.engines.fingerprint ENGINE``: hashes of everything that the exact profile promises.

Run under other settings of threads and instruction sets, and with other engines, it must print the same lines.
"""

from __future__ import annotations

import sys
from hashlib import blake2b, shake_256

import numpy as np

from tasks.engines import exact
from tasks.engines.arrays import Array, Arrays, NumpyArrays
from tasks.engines.torch_arrays import TorchArrays
from tasks.engines.training import Trainer, initial_state
from tests.tasks.engines.helpers import RELU, SILU, made_up_dataset


def engine(name: str) -> Arrays:
    return NumpyArrays() if name == "numpy" else TorchArrays("cuda" if name == "torch-cuda" else "cpu")


def noise(label: bytes, rows: int, columns: int) -> np.ndarray:
    """Numbers of both signs over many magnitudes."""
    words = np.frombuffer(shake_256(label).digest(8 * rows * columns), dtype="<u4").reshape(2, rows, columns)
    mantissa = words[0].astype(np.float64) / 2.0**31 - 1.0
    return np.asarray(np.ldexp(mantissa, (words[1] % 24).astype(np.int64) - 12))


def fingerprint(arrays: Arrays) -> dict[str, str]:
    """Return a hash for each operation and, for two small runs, the roots after their steps."""

    def hashed(values: Array) -> str:
        return blake2b(arrays.store(values).astype("<f8").tobytes(), digest_size=16).hexdigest()

    wide, tall = arrays.load(noise(b"a", 33, 300)), arrays.load(noise(b"b", 300, 65))
    positive = arrays.load(np.abs(noise(b"c", 64, 64)) + 1e-9)
    found = {
        "contract": hashed(exact.contract(arrays, wide, tall)),
        "contract_transposed": hashed(exact.contract(arrays, tall.T, wide.T)),
        "contract_long": hashed(
            exact.contract(arrays, arrays.load(noise(b"d", 3, 20_000)), arrays.load(noise(b"e", 20_000, 5)))
        ),
        "total_rows": hashed(exact.total(arrays, wide, 1)),
        "total_columns": hashed(exact.total(arrays, tall, 0)),
        "exp": hashed(exact.exp(arrays, 0.0 - positive)),
        "log": hashed(exact.log(arrays, positive)),
        "sigmoid": hashed(exact.sigmoid(arrays, wide)),
        "sqrt": hashed(arrays.sqrt(positive)),
        "storable": hashed(exact.storable(arrays, wide * 2.0**-95)),
    }
    for name, plan in (("relu", RELU), ("silu", SILU)):
        trainer = Trainer(plan, made_up_dataset(), arrays, initial_state(plan))
        for steps in (1, 19):
            result = trainer.run_segment(steps)
            found[f"{name}_{trainer.step}_state_root"] = result.state_root.hex()
            found[f"{name}_{trainer.step}_work_digest"] = result.work_digest.hex()
            found[f"{name}_{trainer.step}_loss_bits"] = f"{result.loss_bits:016x}"
    return found


if __name__ == "__main__":
    for key, value in fingerprint(engine(sys.argv[1])).items():
        print(key, value)
