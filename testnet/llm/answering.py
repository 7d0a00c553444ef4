"""Answers of a model with or without adapters: by the exact engine here, and by transformers and PEFT."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from node.bench.plain_tuning import plain_weights
from rpc.client.tasks import TaskResult
from tasks.engines.arrays import NumpyArrays
from tasks.engines.tuning_plan import TuningPlan
from tasks.models.decoding import Decoder
from tasks.models.llama import Model, frozen
from tasks.models.tokens import Tokeniser
from tasks.programs.finetune import state_tensors
from tasks.programs.llama_shape import exponents_of
from testnet.llm.asking import NEW_TOKENS

__all__ = ["Answers", "answers_here", "answers_of_peft"]


class Answers(NamedTuple):
    """New tokens of each prompt, with the end token, and their texts."""

    tokens: list[list[int]]
    texts: list[str]


def answers_here(
    model: Model, tokens: Tokeniser, prompts: Sequence[Sequence[int]], found: TaskResult | None
) -> Answers:
    """Return the answers of the exact engine, with the adapters of a result in the weights."""
    asked = model if found is None else _merged(model, found)
    decoded = Decoder(asked, NumpyArrays()).decode(prompts, NEW_TOKENS, tokens.ends).tokens
    return Answers(decoded, [tokens.decode(one).strip() for one in decoded])


def _merged(model: Model, found: TaskResult) -> Model:
    plan = found.spec.plan()
    assert isinstance(plan, TuningPlan)
    shape, kinds, tensors = plan.shape, state_tensors(plan.shape), dict(model.tensors)
    for name in list(tensors):
        at = f"parameter/{name}"
        if f"{at}/a" in kinds:
            a, b = (
                np.frombuffer(found.state.tensors[key], dtype="<f4")
                .reshape(kinds[key].rows, kinds[key].columns)
                .astype(np.float64)
                for key in (f"{at}/a", f"{at}/b")
            )
            scales = exponents_of(name)
            whole = plain_weights({name: tensors[name], scales: tensors[scales]}, np.float64)[name]
            tensors[name], tensors[scales] = frozen(whole + shape.alpha / shape.rank * b @ a)
    return Model(model.shape, tensors)


def answers_of_peft(path: Path, folder: Path, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the new tokens that transformers and PEFT give with a folder of adapters."""
    command = [sys.executable, "-m", "testnet.llm.asking", str(path), str(folder)]
    done = subprocess.run(command, input=json.dumps(prompts), stdout=subprocess.PIPE, text=True, check=True)
    found: list[list[int]] = json.loads(done.stdout)
    return found
