"""Asks a model with trained adapters by transformers and PEFT, in a process of its own.

``python -m testnet.llm.asking MODEL FOLDER`` reads prompts of tokens as JSON from standard input. It prints
the new tokens of each prompt as JSON: the likeliest each time, until an end token.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from node.bench.plain_tuning import plain_weights
from tasks.models.huggingface import place_of
from tasks.models.llama import Model
from tasks.models.opening import open_model
from tasks.programs.operators.scalars import NANO

__all__ = ["NEW_TOKENS"]

NEW_TOKENS: Final = 16
"""Tokens of an answer at most."""
_TIED: Final = "lm_head.weight"


def transformers_model(model: Model) -> Any:
    """Return a model of transformers with the frozen weights, whose values binary32 holds exactly."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = model.shape
    settings = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads,
        head_dim=shape.head_width, max_position_embeddings=shape.context, rms_norm_eps=shape.epsilon_nano / NANO,
        rope_parameters={"rope_type": "default", "rope_theta": float(shape.rotary_base)},
        tie_word_embeddings=shape.tied,
    )  # fmt: skip
    made = LlamaForCausalLM(settings)
    weights = {
        place_of(model.shape, name): torch.from_numpy(values[0] if values.shape[0] == 1 else values)
        for name, values in plain_weights(model.tensors, np.float32).items()
    }
    lacks, others = made.load_state_dict(weights, strict=False)
    if others or set(lacks) - {_TIED}:
        raise AssertionError(f"missing {lacks}, unknown {others}")
    made.tie_weights()
    return made


def main(path: str, folder: str) -> None:
    """Answer the prompts on standard input."""
    import torch
    from peft import PeftModel

    torch.set_num_threads(1)
    prompts = json.load(sys.stdin)
    with open_model(Path(path)) as opened:
        model, ends = opened.load(), sorted(opened.tokeniser().ends)
    asked: Any = PeftModel.from_pretrained(transformers_model(model), folder).eval()
    answers = list[list[int]]()
    for prompt in prompts:
        with torch.no_grad():
            found = asked.generate(
                input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=ends, pad_token_id=ends[0],
            )  # fmt: skip
        answers.append(found[0, len(prompt) :].tolist())
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
