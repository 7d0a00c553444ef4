"""GPT-2 as the field shares it: names of its tensors, and its settings (R154).

Its weights lie inputs by outputs in safetensors files, and outputs by inputs in files of llama.cpp.
"""

from __future__ import annotations

import re
from typing import Any, Final

from tasks.models.errors import ModelInvalid, ModelUnsupported
from tasks.models.settings import CONFIG, Settings
from tasks.programs.errors import ProgramInvalid
from tasks.programs.llama_shape import FUSED, GPT2_PROJECTIONS, LlamaShape
from tasks.programs.operators.scalars import NANO

__all__ = [
    "GPT2", "GPT2_CONSTANTS", "GPT2_MODULES", "GPT2_PREFIX", "gpt2_config", "gpt2_place", "gpt2_shape",
    "is_turned",
]  # fmt: skip

GPT2: Final = "gpt2"
GPT2_PREFIX: Final = "transformer."
"""What names begin with in files of a model with its head."""
GPT2_MODULES: Final = {FUSED: "attn.c_attn", "output": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}
"""Names of a layer's weights in the field."""
GPT2_CONSTANTS: Final = re.compile(r"(transformer\.)?h\.[0-9]{1,3}\.attn\.(masked_)?bias")
"""Tensors of old files that say which places a token sees."""
_NORMS: Final = {"attention_norm": "ln_1", "hidden_norm": "ln_2"}
_OUTER: Final = {
    "embedding": "wte.weight",
    "positions": "wpe.weight",
    "norm": "ln_f.weight",
    "norm_bias": "ln_f.bias",
}
_HEAD: Final = "lm_head.weight"
_GELU: Final = ("gelu_new", "gelu_pytorch_tanh")
"""Names of the tanh form."""
_EPSILON: Final = 1e-5
"""Of a file that does not say it."""


def gpt2_place(name: str) -> str:
    """Return what the field calls a weight or vector."""
    if name == "head":
        return _HEAD
    if name in _OUTER:
        return GPT2_PREFIX + _OUTER[name]
    _, layer, part = name.split("/")
    own = part.removesuffix("_bias")
    return f"{GPT2_PREFIX}h.{layer}.{_NORMS.get(own) or GPT2_MODULES[own]}.{'weight' if own == part else 'bias'}"


def is_turned(name: str) -> bool:
    """Tell whether a weight lies inputs by outputs in safetensors files."""
    return name.rsplit("/", 1)[-1] in GPT2_PROJECTIONS


def gpt2_shape(settings: Settings) -> LlamaShape:
    """Return the shape of a model. Raises ModelInvalid, and ModelUnsupported for what no program computes."""
    settings.refuse("activation_function", *_GELU)
    settings.refuse("scale_attn_weights", True)
    settings.refuse("scale_attn_by_inverse_layer_idx", False)
    settings.refuse("reorder_and_upcast_attn", False)
    settings.refuse("add_cross_attention", False)
    heads, width = settings.number("n_head"), settings.number("n_embd")
    if width % heads:
        raise ModelInvalid(f"{width} columns in {heads} heads", file=CONFIG)
    try:
        return LlamaShape(
            vocabulary=settings.number("vocab_size"),
            width=width,
            layers=settings.number("n_layer"),
            heads=heads,
            key_heads=heads,
            head_width=width // heads,
            hidden=settings.number("n_inner", 4 * width),
            context=settings.number("n_positions"),
            rotary_base=0,
            epsilon_nano=settings.nano("layer_norm_epsilon", _EPSILON),
            tied=settings.truth("tie_word_embeddings", otherwise=True),
        )
    except ProgramInvalid as error:
        raise ModelUnsupported(str(error), file=CONFIG) from None


def gpt2_config(model: LlamaShape) -> dict[str, Any]:
    """Return the settings of a model."""
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": GPT2, "vocab_size": model.vocabulary,
        "n_embd": model.width, "n_layer": model.layers, "n_head": model.heads, "n_inner": model.hidden,
        "n_positions": model.context, "activation_function": _GELU[0], "scale_attn_weights": True,
        "layer_norm_epsilon": model.epsilon_nano / NANO, "tie_word_embeddings": model.tied,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
    }  # fmt: skip
