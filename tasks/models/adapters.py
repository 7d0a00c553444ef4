"""Folders of trained adapters in the layout of PEFT, and whether a folder holds what a task's root commits to.

All bytes of a folder follow from the adapters and the receipt: whoever computed them, the folder is the same. The
receipt has the roots of the optimiser's moments. So the root of the whole state can be computed from a folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import numpy as np

from tasks.engines.state import TrainingState
from tasks.models.errors import FolderInvalid, ModelError
from tasks.models.gpt2 import GPT2_MODULES, GPT2_PREFIX
from tasks.models.huggingface import MODULES
from tasks.models.receipts import FETCH_AGAIN, RECEIPT, json_bytes, root_of, told_root
from tasks.models.safetensors import read_safetensors, write_safetensors
from tasks.models.strict_json import JsonFault, read_object
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import FinetuneShape, state_tensors
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.looped import has_result, result_group
from tasks.programs.states import state_root
from tasks.programs.tensors import TensorType, tensor_root

__all__ = [
    "ADAPTERS",
    "BASE",
    "FILES",
    "Receipt",
    "adapter_folder",
    "check_folder",
    "check_state",
    "parameters_of",
    "receipt_of",
]

ADAPTERS: Final = "adapter_model.safetensors"
SETTINGS: Final = "adapter_config.json"
README: Final = "README.md"
FILES: Final = (ADAPTERS, SETTINGS, README, RECEIPT)
"""Names of a folder's files. Others in a folder are not checked."""
RECEIPT_BYTES_MAX: Final = 4 << 20
STEP_MAX: Final = 1 << 48
_VERSION: Final = 1
_KIND: Final = "finetune"
BASE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
"""Name or path of the model that loads adapters."""
_LATER: Final = ("preference", "recompute", "packed")
"""Fields of a shape that came with later versions."""
_MATRICES: Final = {"a": "lora_A", "b": "lora_B"}


@dataclass(frozen=True)
class Receipt:
    """Where adapters come from. ``base`` is the model's name for its users, ``task`` is None outside of a chain.

    ``moments`` are the roots of the state's other tensors by name.
    """

    task: bytes | None
    base: str
    model_root: bytes
    rows_root: bytes
    step: int
    state_root: bytes
    shape: FinetuneShape
    moments: Mapping[str, bytes]

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        shape = asdict(self.shape) | {"targets": list(self.shape.targets)}
        for later in _LATER:  # receipts of before have none
            if not shape[later]:
                del shape[later]
        return json_bytes({
            "version": _VERSION, "kind": _KIND, "task": None if self.task is None else told_root(self.task),
            "base": self.base, "model_root": told_root(self.model_root), "rows_root": told_root(self.rows_root),
            "step": self.step, "state_root": told_root(self.state_root), "shape": shape,
            "moments": {name: told_root(root) for name, root in self.moments.items()},
        })  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> Receipt:
        """Read a receipt. Raises FolderInvalid."""
        if len(data) > RECEIPT_BYTES_MAX:
            raise FolderInvalid(f"a file of {len(data)} bytes, at most {RECEIPT_BYTES_MAX}", file=RECEIPT)
        try:
            value = read_object(data.decode("utf-8"))
        except (UnicodeDecodeError, JsonFault):
            raise FolderInvalid("not valid JSON", file=RECEIPT, remedy=FETCH_AGAIN) from None
        match value:
            case {
                "version": 1, "kind": "finetune", "task": (str() | None) as task, "base": str(base),
                "model_root": model, "rows_root": rows, "step": int(step), "state_root": state,
                "shape": dict(shape), "moments": dict(moments),
            } if (
                len(value) == 10 and type(step) is int and 0 <= step < STEP_MAX and BASE.fullmatch(base)
            ):  # fmt: skip
                found = cls(
                    None if task is None else root_of(task), base, root_of(model), root_of(rows), step,
                    root_of(state), _shape(shape), {name: root_of(root) for name, root in moments.items()},
                )  # fmt: skip
            case _:
                raise FolderInvalid("not the receipt of adapters", file=RECEIPT, remedy=FETCH_AGAIN)
        others = {name for name in state_tensors(found.shape) if not _is_result(found.shape, name)}
        if found.moments.keys() != others:
            raise FolderInvalid("moments of other tensors than the shape has", file=RECEIPT, remedy=FETCH_AGAIN)
        return found


def _is_result(shape: FinetuneShape, name: str) -> bool:
    """Tell whether a tensor of a state is a matrix of the result."""
    return name.startswith(f"{result_group(shape)}/")


def _shape(value: dict[str, Any]) -> FinetuneShape:
    try:
        model = value.pop("model")
        targets = value.pop("targets")
        value = dict.fromkeys(_LATER, 0) | value
        for kind, found in ((LlamaShape, model), (FinetuneShape, value)):
            for field in fields(kind):
                wanted = {"bool": bool, "int": int}.get(str(field.type))
                if wanted is not None and type(found[field.name]) is not wanted:
                    raise TypeError(field.name)
        return FinetuneShape(model=LlamaShape(**model), targets=tuple(targets), **value)
    except (KeyError, TypeError, ProgramInvalid) as error:
        raise FolderInvalid(f"shape: {str(error)[:80]}", file=RECEIPT, remedy=FETCH_AGAIN) from None


def receipt_of(
    shape: FinetuneShape,
    state: TrainingState,
    *,
    base: str,
    model_root: bytes,
    rows_root: bytes,
    task: bytes | None,
) -> Receipt:
    """Return the receipt of a state.

    Raises FolderInvalid for a name of a model that no file can carry, and for a state before the first evaluation
    of a job that keeps the best one.
    """
    if not has_result(shape, state.tensors):
        raise FolderInvalid(f"no evaluation was complete after {state.step} steps, so no state is the best yet")
    if not BASE.fullmatch(base):
        raise FolderInvalid(f"{base[:40]!r} is not the name of a model: letters, digits and ._/- are allowed")
    roots = {name: tensor_root(kind, state.tensors[name]) for name, kind in state_tensors(shape).items()}
    return Receipt(
        task, base, model_root, rows_root, state.step, _state_root(shape, state.step, roots), shape,
        {name: root for name, root in roots.items() if not _is_result(shape, name)},
    )  # fmt: skip


def _state_root(shape: FinetuneShape, step: int, roots: Mapping[str, bytes]) -> bytes:
    return state_root(step, {name: (kind, roots[name]) for name, kind in state_tensors(shape).items()})


def _places(shape: FinetuneShape) -> dict[str, tuple[str, TensorType]]:
    """Return name in the state and type of every matrix, by its name in PEFT."""
    found = dict[str, tuple[str, TensorType]]()
    for name, kind in state_tensors(shape).items():
        if _is_result(shape, name):
            _, _, layer, target, matrix = name.split("/")
            layers = f"{GPT2_PREFIX}h" if shape.model.is_gpt2 else "model.layers"
            module = _modules(shape.model)[target]
            place = f"base_model.model.{layers}.{layer}.{module}.{_MATRICES[matrix]}.weight"
            found[place] = name, kind
    return found


def _modules(model: LlamaShape) -> Mapping[str, str]:
    return GPT2_MODULES if model.is_gpt2 else MODULES


def _targets(shape: FinetuneShape) -> list[str]:
    """Return what PEFT calls the weights that have adapters; it looks for names that end so."""
    names = [_modules(shape.model)[target] for target in shape.targets]
    last = [name.rpartition(".")[2] for name in names]
    every = [name.rpartition(".")[2] for name in _modules(shape.model).values()]
    whole = (last.count(one) == every.count(one) for one in last)
    return sorted({short if is_all else name for name, short, is_all in zip(names, last, whole, strict=True)})


def adapter_folder(receipt: Receipt, parameters: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a folder by name, given the adapters of a state by their names in it."""
    matrices = {
        place: np.frombuffer(parameters[name], dtype="<f4").reshape(kind.rows, kind.columns)
        for place, (name, kind) in _places(receipt.shape).items()
    }
    shape = receipt.shape
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": receipt.base, "r": shape.rank,
        "lora_alpha": shape.alpha, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": shape.model.is_gpt2,
        "inference_mode": True, "init_lora_weights": True, "use_rslora": False, "use_dora": False,
        "target_modules": _targets(shape),
    }  # fmt: skip
    return {
        ADAPTERS: write_safetensors(matrices, {"format": "pt"}), SETTINGS: json_bytes(settings),
        README: _readme(receipt), RECEIPT: receipt.encode(),
    }  # fmt: skip


def _readme(receipt: Receipt) -> bytes:
    task = "none" if receipt.task is None else told_root(receipt.task)
    kept = "of the lowest validation loss" if receipt.shape.keeps_best else "after the last step"
    return f"""---
base_model: {receipt.base}
library_name: peft
---
# Adapters (LoRA) for {receipt.base}

Load them with transformers and PEFT, from the folder that holds this file:

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{receipt.base}")
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{receipt.base}"), ".")
```

`dekube verify .` checks this folder against the chain.

| What | Value |
|---|---|
| Task | {task} |
| Steps | {receipt.step} |
| Adapters | {kept} |
| Root of the state | {told_root(receipt.state_root)} |
| Root of the frozen model | {told_root(receipt.model_root)} |
| Root of the rows | {told_root(receipt.rows_root)} |
""".encode()


def check_folder(files: Mapping[str, bytes]) -> Receipt:
    """Return the receipt of a folder whose files all agree with it. Raises FolderInvalid, which names the file."""
    for name in FILES:
        if name not in files:
            raise FolderInvalid("the file is missing", file=name, remedy=FETCH_AGAIN)
    receipt = Receipt.decode(files[RECEIPT])
    parameters = _parameters(receipt.shape, files[ADAPTERS])
    kinds = state_tensors(receipt.shape)
    roots = dict(receipt.moments) | {name: tensor_root(kinds[name], one) for name, one in parameters.items()}
    if _state_root(receipt.shape, receipt.step, roots) != receipt.state_root:
        raise FolderInvalid(
            f"its values are not those of the state in {RECEIPT}", file=ADAPTERS, remedy=FETCH_AGAIN
        )
    for name, content in adapter_folder(receipt, parameters).items():
        if files[name] != content:
            raise FolderInvalid(f"other bytes than {RECEIPT} asks for", file=name, remedy=FETCH_AGAIN)
    return receipt


def parameters_of(shape: FinetuneShape, data: bytes) -> dict[str, tuple[TensorType, bytes]]:
    """Return type and bytes of the matrices in a file of a folder, by name in the state. Raises FolderInvalid."""
    kinds = state_tensors(shape)
    return {name: (kinds[name], content) for name, content in _parameters(shape, data).items()}


def _parameters(shape: FinetuneShape, data: bytes) -> dict[str, bytes]:
    places = _places(shape)
    try:
        file = read_safetensors(data)
    except ModelError as error:
        raise FolderInvalid(error.text, file=ADAPTERS, remedy=FETCH_AGAIN) from None
    if file.tensors.keys() != places.keys():
        raise FolderInvalid("other tensors than the shape has", file=ADAPTERS, remedy=FETCH_AGAIN)
    found = dict[str, bytes]()
    for place, (name, kind) in places.items():
        held = file.tensors[place]
        if (held.rows, held.columns, held.dtype) != (kind.rows, kind.columns, "F32"):
            raise FolderInvalid(f"tensor {place} has another shape or type", file=ADAPTERS, remedy=FETCH_AGAIN)
        found[name] = file.content_of(place)
    return found


def check_state(receipt: Receipt, state: TrainingState) -> None:
    """Check that a whole state is that of a receipt. Raises FolderInvalid."""
    roots = {name: tensor_root(kind, state.tensors[name]) for name, kind in state_tensors(receipt.shape).items()}
    if (state.step, _state_root(receipt.shape, state.step, roots)) != (receipt.step, receipt.state_root):
        raise FolderInvalid("the state is not the one that the receipt names", file=RECEIPT, remedy=FETCH_AGAIN)
