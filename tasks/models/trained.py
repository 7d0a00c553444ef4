"""Folders of models that were trained from scratch, and whether a folder holds what a task's root commits to.

The folder is one that transformers loads: weights in binary32, settings, and the tokeniser where tokens are bytes.
All bytes follow from the weights and the receipt. The receipt has the roots of the optimiser's moments, so the
root of the whole state can be computed from a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

import numpy as np

from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.state import TrainingState
from tasks.models.byte_tokens import BYTES_VOCABULARY, END_TOKEN, tokenizer_files
from tasks.models.errors import FolderInvalid, ModelError
from tasks.models.gpt2 import gpt2_config, is_turned
from tasks.models.huggingface import CONFIG, ENDS, WEIGHTS, place_of
from tasks.models.receipts import FETCH_AGAIN, RECEIPT, json_bytes, root_of, told_root
from tasks.models.safetensors import read_safetensors, write_safetensors
from tasks.models.strict_json import JsonFault, read_object
from tasks.programs.decoder import state_tensors
from tasks.programs.errors import ProgramInvalid
from tasks.programs.generate import whole_shape
from tasks.programs.llama_shape import LAYOUT_MAX, Adapter, LlamaShape, parameters_of
from tasks.programs.looped import has_result, layout_of
from tasks.programs.operators.scalars import NANO
from tasks.programs.states import state_root
from tasks.programs.tensors import TensorType, tensor_root
from tasks.spec import JobSpec

__all__ = [
    "FILES",
    "TrainedReceipt",
    "check_model_folder",
    "check_trained_state",
    "is_of_training",
    "left_model",
    "model_folder",
    "trained_receipt",
]

README: Final = "README.md"
FILES: Final = (WEIGHTS, CONFIG, ENDS, "tokenizer.json", "tokenizer_config.json", README, RECEIPT)
"""Names of a folder's files. Those of a tokeniser are there if tokens are bytes."""
RECEIPT_BYTES_MAX: Final = 4 << 20
STEP_MAX: Final = 1 << 48
_VERSION: Final = 1
_KIND: Final = "train"


@dataclass(frozen=True)
class TrainedReceipt:
    """Where a model comes from; ``task`` is None outside of a chain.

    ``moments`` are the roots of the state's other tensors by name. ``layout`` says which groups there are, as that
    of ``Adapter``: with the best weights, those are the model.
    """

    task: bytes | None
    rows_root: bytes
    step: int
    state_root: bytes
    model: LlamaShape
    moments: Mapping[str, bytes]
    layout: int = 0

    @property
    def tensors(self) -> dict[str, TensorType]:
        """Names and types of the tensors of the state."""
        return state_tensors(self.model, whole_shape(self.model, self._adapter))

    @property
    def weights(self) -> dict[str, str]:
        """Names in the state of the weights of the model, by their own names."""
        group = self._adapter.group
        return {name: f"{group}/{name}" for name in parameters_of(self.model)}

    @property
    def _adapter(self) -> Adapter:
        return Adapter(0, 0, (), self.step, self.layout)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return json_bytes({
            "version": _VERSION, "kind": _KIND, "task": None if self.task is None else told_root(self.task),
            "rows_root": told_root(self.rows_root), "step": self.step, "state_root": told_root(self.state_root),
            "model": asdict(self.model), "moments": {name: told_root(root) for name, root in self.moments.items()},
            **({"layout": self.layout} if self.layout else {}),
        })  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> TrainedReceipt:
        """Read a receipt. Raises FolderInvalid."""
        value = _object(data)
        layout = value.pop("layout", None)
        if layout is not None and (type(layout) is not int or not 0 < layout <= LAYOUT_MAX):
            raise FolderInvalid("layout: not that of a state", file=RECEIPT, remedy=FETCH_AGAIN)
        match value:
            case {
                "version": 1, "kind": "train", "task": None | str() as task, "rows_root": rows,
                "step": int(step), "state_root": root, "model": dict(model), "moments": dict(moments),
            } if len(value) == 8 and type(step) is int and 0 <= step < STEP_MAX:  # fmt: skip
                pass
            case _:
                raise FolderInvalid("not a receipt of a trained model", file=RECEIPT, remedy=FETCH_AGAIN)
        found = cls(
            None if task is None else root_of(task),
            root_of(rows),
            step,
            root_of(root),
            _shape(model),
            {},
            layout or 0,
        )
        try:
            expected = sorted(found.tensors.keys() - set(found.weights.values()))
        except ProgramInvalid as error:
            raise FolderInvalid(f"layout: {error}", file=RECEIPT, remedy=FETCH_AGAIN) from None
        if moments.keys() != set(expected):
            raise FolderInvalid("roots of other tensors than its shape has", file=RECEIPT, remedy=FETCH_AGAIN)
        return replace(found, moments={name: root_of(moments[name]) for name in expected})


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > RECEIPT_BYTES_MAX:
        raise FolderInvalid(f"a file of {len(data)} bytes, at most {RECEIPT_BYTES_MAX}", file=RECEIPT)
    try:
        return read_object(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise FolderInvalid("not UTF-8 text", file=RECEIPT, remedy=FETCH_AGAIN) from None
    except JsonFault as fault:
        raise FolderInvalid(str(fault), file=RECEIPT, remedy=FETCH_AGAIN) from None


def is_of_training(data: bytes) -> bool:
    """Tell whether a receipt is one of a model that was trained from scratch. Raises FolderInvalid."""
    return _object(data).get("kind") == _KIND


def _shape(value: dict[str, Any]) -> LlamaShape:
    try:
        for field in fields(LlamaShape):
            if type(value[field.name]) is not {"bool": bool, "int": int}[str(field.type)]:
                raise TypeError(field.name)
        found = LlamaShape(**value)
    except (KeyError, TypeError, ProgramInvalid) as error:
        raise FolderInvalid(f"model: {str(error)[:80]}", file=RECEIPT, remedy=FETCH_AGAIN) from None
    if found.biased:
        raise FolderInvalid("model: biased: false expected", file=RECEIPT, remedy=FETCH_AGAIN)
    return found


def trained_receipt(
    model: LlamaShape, state: TrainingState, *, rows_root: bytes, task: bytes | None, layout: int = 0
) -> TrainedReceipt:  # fmt: skip
    """Return the receipt of a state. Raises FolderInvalid for one that has no best weights yet."""
    bare = TrainedReceipt(task, rows_root, state.step, b"", model, {}, layout)
    if not has_result(whole_shape(model, bare._adapter), state.tensors):
        raise FolderInvalid(
            "no evaluation was complete, so there is no best model yet",
            remedy="Fetch the result of a later window",
        )
    roots = {name: tensor_root(kind, state.tensors[name]) for name, kind in bare.tensors.items()}
    weights = set(bare.weights.values())
    moments = {name: root for name, root in roots.items() if name not in weights}
    return replace(bare, state_root=_state_root(bare, roots), moments=moments)


def _state_root(receipt: TrainedReceipt, roots: Mapping[str, bytes]) -> bytes:
    return state_root(receipt.step, {name: (kind, roots[name]) for name, kind in receipt.tensors.items()})


def _places(receipt: TrainedReceipt) -> dict[str, tuple[str, TensorType]]:
    """Return name in the state and type of every weight, by what the field calls it."""
    names, model = receipt.weights, receipt.model
    return {place_of(model, name): (names[name], kind) for name, kind in sorted(parameters_of(model).items())}


def model_folder(receipt: TrainedReceipt, parameters: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a folder by name, given the weights of a state by their names in it."""
    model, weights = receipt.model, dict[str, np.ndarray]()
    for place, (name, kind) in _places(receipt).items():
        values = np.frombuffer(parameters[name], dtype="<f4")
        if not name.endswith(("norm", "bias")):
            values = values.reshape(kind[1:])
        weights[place] = values.T if model.is_gpt2 and is_turned(name) else values
    is_bytes = model.vocabulary == BYTES_VOCABULARY
    end: dict[str, Any] = {"eos_token_id": END_TOKEN} if is_bytes else {}
    config = (gpt2_config if model.is_gpt2 else _llama_config)(model)
    config |= {"torch_dtype": "float32", "bos_token_id": None, "eos_token_id": None, **end}
    return {
        WEIGHTS: write_safetensors(weights, {"format": "pt"}), CONFIG: json_bytes(config),
        ENDS: json_bytes({"do_sample": False, **end}), README: _readme(receipt), RECEIPT: receipt.encode(),
        **(tokenizer_files(model.context) if is_bytes else {}),
    }  # fmt: skip


def _llama_config(model: LlamaShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": model.vocabulary,
        "hidden_size": model.width, "num_hidden_layers": model.layers, "num_attention_heads": model.heads,
        "num_key_value_heads": model.key_heads, "head_dim": model.head_width, "intermediate_size": model.hidden,
        "max_position_embeddings": model.context, "rope_theta": float(model.rotary_base),
        "rms_norm_eps": model.epsilon_nano / NANO, "tie_word_embeddings": model.tied, "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip


def left_model(spec: JobSpec, state: TrainingState, task: bytes | None) -> dict[str, bytes] | None:
    """Return the files of the model that a task has left; None for a task that trains no whole model.

    Raises FolderInvalid for a state that has no best weights yet.
    """
    plan = spec.plan()
    if not isinstance(plan, DecoderPlan):
        return None
    receipt = trained_receipt(
        plan.shape.model, state, rows_root=spec.dataset.root, task=task, layout=layout_of(plan.shape)
    )
    return model_folder(receipt, state.tensors)


def _readme(receipt: TrainedReceipt) -> bytes:
    task = "none" if receipt.task is None else told_root(receipt.task)
    return f"""---
library_name: transformers
---
# A decoder that was trained from scratch

Load it with transformers, from the folder that holds this file:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")
```

`dekube verify .` checks this folder against the chain.

| What | Value |
|---|---|
| Task | {task} |
| Steps | {receipt.step} |
| Root of the state | {told_root(receipt.state_root)} |
| Root of the rows | {told_root(receipt.rows_root)} |
""".encode()


def check_model_folder(files: Mapping[str, bytes]) -> TrainedReceipt:
    """Return the receipt of a folder whose files all agree with it. Raises FolderInvalid, which names the file."""
    if RECEIPT not in files:
        raise FolderInvalid("the file is missing", file=RECEIPT, remedy=FETCH_AGAIN)
    receipt = TrainedReceipt.decode(files[RECEIPT])
    if WEIGHTS not in files:
        raise FolderInvalid("the file is missing", file=WEIGHTS, remedy=FETCH_AGAIN)
    kinds, parameters = receipt.tensors, _parameters(receipt, files[WEIGHTS])
    roots = dict(receipt.moments) | {name: tensor_root(kinds[name], one) for name, one in parameters.items()}
    if _state_root(receipt, roots) != receipt.state_root:
        raise FolderInvalid(
            f"its values are not those of the state in {RECEIPT}", file=WEIGHTS, remedy=FETCH_AGAIN
        )
    for name, content in model_folder(receipt, parameters).items():
        if name not in files:
            raise FolderInvalid("the file is missing", file=name, remedy=FETCH_AGAIN)
        if files[name] != content:
            raise FolderInvalid(f"other bytes than {RECEIPT} asks for", file=name, remedy=FETCH_AGAIN)
    return receipt


def _parameters(receipt: TrainedReceipt, data: bytes) -> dict[str, bytes]:
    places = _places(receipt)
    try:
        file = read_safetensors(data)
    except ModelError as error:
        raise FolderInvalid(error.text, file=WEIGHTS, remedy=FETCH_AGAIN) from None
    if file.tensors.keys() != places.keys():
        raise FolderInvalid("other tensors than the shape has", file=WEIGHTS, remedy=FETCH_AGAIN)
    found = dict[str, bytes]()
    for place, (name, kind) in places.items():
        held, turned = file.tensors[place], receipt.model.is_gpt2 and is_turned(name)
        size = (kind.columns, kind.rows) if turned else (kind.rows, kind.columns)
        if (held.rows, held.columns, held.dtype) != (*size, "F32"):
            raise FolderInvalid(f"tensor {place} has another shape or type", file=WEIGHTS, remedy=FETCH_AGAIN)
        found[name] = file.content_of(place)
        if turned:
            found[name] = np.frombuffer(found[name], dtype="<f4").reshape(size).T.tobytes()
    return found


def check_trained_state(receipt: TrainedReceipt, state: TrainingState) -> None:
    """Check that a whole state is that of a receipt. Raises FolderInvalid."""
    found = trained_receipt(
        receipt.model, state, rows_root=receipt.rows_root, task=receipt.task, layout=receipt.layout
    )
    if found != receipt:
        raise FolderInvalid("the state is not the one that the receipt names", file=RECEIPT, remedy=FETCH_AGAIN)
