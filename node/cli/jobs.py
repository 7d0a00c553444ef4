"""Job specifications and training states in files: formats for editing, storage and exchange."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from node.cli.files import parse_json
from node.cli.options import read_input
from rpc.methods.jobs import spec_to_json
from state.primitives.address import parse_address
from state.primitives.errors import ConfigError, DecodeError
from tasks.engines.state import StatePlan, TrainingState
from tasks.kinds.adapters import TunedAdapter
from tasks.kinds.classifier import KIND_TRAIN
from tasks.kinds.container import (
    KIND_CONTAINER,
    Checkpoint,
    ContainerPart,
    Image,
    Metering,
    Mount,
    MountForm,
    Process,
    SealTerms,
    Storage,
)
from tasks.kinds.decoder import DecoderModel, DecoderPart, TextRows
from tasks.kinds.embed import KIND_EMBED, EmbedPart, Pooling
from tasks.kinds.evaluate import KIND_EVALUATE, EvaluatePart, LabelledRows
from tasks.kinds.finetune import (
    DECODERS,
    KIND_FINETUNE,
    Adapters,
    BaseModel,
    Packing,
    Preference,
    RateSchedule,
    Recompute,
    RowSet,
    TrainingLoop,
)
from tasks.kinds.generate import (
    KIND_GENERATE,
    SAMPLING_FIELDS,
    Decoding,
    GeneratePart,
    PromptSet,
)
from tasks.kinds.verifiers import ANYBODY, Verifiers
from tasks.programs.generate import ByRow
from tasks.programs.tensors import ElementType
from tasks.spec import (
    SPEC_LIMIT_BYTES,
    ClassifierPart,
    Dataset,
    FinetunePart,
    JobSpec,
    Model,
    Optimiser,
    Part,
    Requirements,
    Schedule,
    decode_spec,
    encode_spec,
)

__all__ = ["FORMATS", "encode_state", "read_spec", "spec_from_json", "spec_to_json", "write_file"]

FILE_LIMIT_BYTES: Final = 16 * SPEC_LIMIT_BYTES
EXPECTED: Final = "a job specification, as `dekube task quote --save FILE` writes it"
DIGITS_MAX: Final = 40
CANONICAL_FIRST: Final = tuple(bytes([first]) for first in range(0x80, 0xA0))
"""First byte of canonical bytes (a CBOR list). UTF-8 text never begins with it."""
_RATES: Final = ("learning_rate_nano", "beta1_nano", "beta2_nano", "epsilon_nano", "weight_decay_nano")


_TOP: Final = {
    "kind", "level", "profile", "seed", "init_root", "schedule", "max_price_per_tera_unit", "requirements",
    "match_ms",
}  # fmt: skip


def spec_from_json(document: Any) -> JobSpec:
    """Return the specification from its JSON form. Raises ConfigError, which names what is wrong."""
    fields, part = _part_of(document) if isinstance(document, dict) else _CLASSIFIED
    top = _fields(
        document, "the specification", {*_TOP, *fields}, optional={"hash", "raw", "step_units", "verifiers"}
    )
    schedule = _fields(top["schedule"], "schedule", set(Schedule._fields))
    requirements = _fields(
        top["requirements"], "requirements", {"gpus", "memory_mib", "rate_min"},
        optional={"gpu_words", "gpu_memory_mib"},
    )  # fmt: skip
    spec = JobSpec(
        kind=_text(top["kind"], "kind"),
        level=_number(top["level"], "level"),
        profile=_text(top["profile"], "profile"),
        part=part(top),
        seed=_hash(top["seed"], "seed"),
        init_root=_hash(top["init_root"], "init_root"),
        schedule=Schedule(*(_number(schedule[name], f"schedule.{name}") for name in Schedule._fields)),
        max_price_per_tera_unit=_number(top["max_price_per_tera_unit"], "max_price_per_tera_unit"),
        requirements=Requirements(
            _number(requirements["gpus"], "requirements.gpus"),
            _number(requirements["memory_mib"], "requirements.memory_mib"),
            _number(requirements["rate_min"], "requirements.rate_min"),
            _texts(requirements.get("gpu_words", []), "requirements.gpu_words"),
            _number(requirements.get("gpu_memory_mib", 0), "requirements.gpu_memory_mib"),
        ),
        match_ms=_number(top["match_ms"], "match_ms"),
        verifiers=_verifiers(top["verifiers"]) if "verifiers" in top else ANYBODY,
    )
    try:
        raw = _checked(encode_spec(spec))
    except UnicodeEncodeError as error:  # JSON can spell halves of characters
        raise ConfigError(f"the job cannot run: {error.reason}") from None
    if "raw" in top and top["raw"] != "0x" + raw.hex():
        raise ConfigError("raw: does not match the other fields; remove it to encode them again")
    return spec


def _classified(top: Mapping[str, Any]) -> ClassifierPart:
    model = _fields(top["model"], "model", {"name", "widths", "activation"})
    dataset = _fields(top["dataset"], "dataset", set(Dataset._fields))
    if not isinstance(model["widths"], list):
        raise ConfigError("model.widths: not a list of numbers")
    return ClassifierPart(
        Model(
            _text(model["name"], "model.name"),
            tuple(_number(width, "model.widths") for width in model["widths"]),
            _text(model["activation"], "model.activation"),
        ),
        Dataset(
            _hash(dataset["blob"], "dataset.blob"),
            _hash(dataset["root"], "dataset.root"),
            *(_number(dataset[name], f"dataset.{name}") for name in ("rows", "samples", "shift")),
        ),
        _number(top["batch"], "batch"),
        _optimiser(top),
    )


def _optimiser(top: Mapping[str, Any]) -> Optimiser:
    found = _fields(top["optimiser"], "optimiser", {"name", *_RATES})
    return Optimiser(
        _text(found["name"], "optimiser.name"), *(_number(found[rate], f"optimiser.{rate}") for rate in _RATES)
    )


def _decoder(top: Mapping[str, Any]) -> DecoderPart:
    model = _fields(top["model"], "model", set(DecoderModel._fields))
    dataset = _fields(top["dataset"], "dataset", set(TextRows._fields))
    return DecoderPart(
        DecoderModel(_text(model["name"], "model.name"), *_numbers(top, "model", DecoderModel._fields[1:])),
        TextRows(
            _hash(dataset["blob"], "dataset.blob"), _hash(dataset["root"], "dataset.root"),
            *_numbers(top, "dataset", TextRows._fields[2:]),
        ),
        _number(top["batch"], "batch"),
        _optimiser(top),
        _rates(top),
        None if top["start"] is None else _adapter(top["start"], "start"),
        _loop(top),
        _recompute(top),
    )  # fmt: skip


def _loop(top: Mapping[str, Any]) -> TrainingLoop:
    _fields(top["loop"], "loop", set(TrainingLoop._fields))
    return TrainingLoop(*_numbers(top, "loop", TrainingLoop._fields))


def _rates(top: Mapping[str, Any]) -> RateSchedule:
    rates = _fields(top["rates"], "rates", set(RateSchedule._fields))
    return RateSchedule(_text(rates["name"], "rates.name"), *_numbers(top, "rates", RateSchedule._fields[1:]))


def _tuned(top: Mapping[str, Any]) -> FinetunePart:
    dataset = _fields(top["dataset"], "dataset", set(RowSet._fields))
    adapters = _fields(top["adapters"], "adapters", set(Adapters._fields))
    if not isinstance(adapters["targets"], list):
        raise ConfigError("adapters.targets: not a list of names")
    return FinetunePart(
        _frozen(top),
        RowSet(
            _hash(dataset["blob"], "dataset.blob"), _hash(dataset["root"], "dataset.root"),
            *_numbers(top, "dataset", RowSet._fields[2:]),
        ),
        Adapters(
            _number(adapters["rank"], "adapters.rank"), _number(adapters["alpha"], "adapters.alpha"),
            tuple(_text(target, "adapters.targets") for target in adapters["targets"]),
        ),
        _number(top["batch"], "batch"),
        _optimiser(top),
        _rates(top),
        _loop(top),
        None if top["start"] is None else _adapter(top["start"], "start"),
        None if top["preference"] is None else _preference(top),
        _recompute(top),
        None if top["packing"] is None else _packing(top),
    )  # fmt: skip


def _recompute(top: Mapping[str, Any]) -> Recompute | None:
    if top["recompute"] is None:
        return None
    _fields(top["recompute"], "recompute", set(Recompute._fields))
    return Recompute(*_numbers(top, "recompute", Recompute._fields))


def _preference(top: Mapping[str, Any]) -> Preference:
    _fields(top["preference"], "preference", set(Preference._fields))
    return Preference(*_numbers(top, "preference", Preference._fields))


def _packing(top: Mapping[str, Any]) -> Packing:
    _fields(top["packing"], "packing", set(Packing._fields))
    return Packing(*_numbers(top, "packing", Packing._fields))


def _numbers(top: Mapping[str, Any], name: str, fields: Sequence[str]) -> list[int]:
    return [_number(top[name][field], f"{name}.{field}") for field in fields]


def _frozen(top: Mapping[str, Any]) -> BaseModel:
    model = _fields(top["model"], "model", set(BaseModel._fields))
    return BaseModel(
        _text(model["name"], "model.name"), _hash(model["blob"], "model.blob"),
        _hash(model["root"], "model.root"), *_numbers(top, "model", BaseModel._fields[3:]),
    )  # fmt: skip


def _generated(top: Mapping[str, Any]) -> GeneratePart:
    names, more = Decoding._fields[:-SAMPLING_FIELDS], Decoding._fields[-SAMPLING_FIELDS:]
    decoding = _fields(top["decoding"], "decoding", set(names), optional=set(more))
    if not isinstance(decoding["ends"], list):
        raise ConfigError("decoding.ends: not a list of tokens")
    return GeneratePart(
        _frozen(top),
        _prompts(top),
        _number(top["batch"], "batch"),
        Decoding(
            _text(decoding["name"], "decoding.name"), _number(decoding["new_tokens"], "decoding.new_tokens"),
            tuple(_number(end, "decoding.ends") for end in decoding["ends"]),
            *(_number(decoding.get(name, 0), f"decoding.{name}") for name in more),
        ),
        None if top["adapter"] is None else _adapter(top["adapter"]),
        None if top["by_row"] is None else _by_row(top),
    )  # fmt: skip


def _by_row(top: Mapping[str, Any]) -> ByRow:
    _fields(top["by_row"], "by_row", set(ByRow._fields))
    return ByRow(*_numbers(top, "by_row", ByRow._fields))


def _adapter(value: Any, name: str = "adapter") -> TunedAdapter:
    found = _fields(value, name, set(TunedAdapter._fields))
    if not isinstance(found["targets"], list):
        raise ConfigError(f"{name}.targets: not a list of names")
    return TunedAdapter(
        _hash(found["blob"], f"{name}.blob"), _hash(found["root"], f"{name}.root"),
        _number(found["rank"], f"{name}.rank"), _number(found["alpha"], f"{name}.alpha"),
        tuple(_text(target, f"{name}.targets") for target in found["targets"]),
        _number(found["step"], f"{name}.step"), _number(found["layout"], f"{name}.layout"),
    )  # fmt: skip


def _prompts(top: Mapping[str, Any]) -> PromptSet:
    dataset = _fields(top["dataset"], "dataset", set(PromptSet._fields))
    return PromptSet(
        _hash(dataset["blob"], "dataset.blob"), _hash(dataset["root"], "dataset.root"),
        *_numbers(top, "dataset", PromptSet._fields[2:]),
    )  # fmt: skip


def _embedded(top: Mapping[str, Any]) -> EmbedPart:
    pooling = _fields(top["pooling"], "pooling", set(Pooling._fields))
    normalised = _number(pooling["normalised"], "pooling.normalised")
    return EmbedPart(
        _frozen(top), _prompts(top), _number(top["batch"], "batch"),
        Pooling(_text(pooling["name"], "pooling.name"), normalised),
        None if top["adapter"] is None else _adapter(top["adapter"]),
    )  # fmt: skip


def _evaluated(top: Mapping[str, Any]) -> EvaluatePart:
    dataset = _fields(top["dataset"], "dataset", set(LabelledRows._fields))
    rows = LabelledRows(
        _hash(dataset["blob"], "dataset.blob"), _hash(dataset["root"], "dataset.root"),
        *_numbers(top, "dataset", LabelledRows._fields[2:]),
    )  # fmt: skip
    adapter = None if top["adapter"] is None else _adapter(top["adapter"])
    return EvaluatePart(_frozen(top), rows, _number(top["batch"], "batch"), adapter)


_CLASSIFIED: Final = (ClassifierPart._fields, _classified)


def _contained(top: Mapping[str, Any]) -> ContainerPart:
    image = _fields(top["image"], "image", {"repository", "digest"}, optional={"blob", "size_bytes"})
    process = _fields(top["process"], "process", set(Process._fields) - {"egress"}, optional={"egress"})
    storage = _fields(top["storage"], "storage", set(Storage._fields))
    metering = _fields(top["metering"], "metering", set(Metering._fields))
    if not isinstance(storage["mounts"], list):
        raise ConfigError("storage.mounts: not a list")
    return ContainerPart(
        Image(
            _text(image["repository"], "image.repository"), _hash(image["digest"], "image.digest"),
            b"" if image.get("blob", "0x") == "0x" else _hash(image["blob"], "image.blob"),
            _number(image.get("size_bytes", 0), "image.size_bytes"),
        ),
        Process(
            _texts(process["command"], "process.command"), _texts(process["environment"], "process.environment"),
            _number(process["user"], "process.user"), _texts(process.get("egress", []), "process.egress"),
        ),
        Storage(
            tuple(_mounted(mount) for mount in storage["mounts"]), _text(storage["output"], "storage.output"),
            _number(storage["output_bytes_max"], "storage.output_bytes_max"),
            _number(storage["disk_mib"], "storage.disk_mib"),
        ),
        _number(top["cores"], "cores"),
        Metering(
            _text(metering["name"], "metering.name"), _number(metering["grace_s"], "metering.grace_s"),
            _number(metering["retries"], "metering.retries"), _number(metering["idle_s"], "metering.idle_s"),
            _text(metering["pattern"], "metering.pattern"), _codes(metering["again"]),
        ),
        None if top["checkpoint"] is None else _stored(top), _number(top["allows"], "allows"),
        None if top["sealed"] is None else _sealed(top),
    )  # fmt: skip


def _codes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ConfigError("metering.again: not a list")
    return tuple(_number(code, "metering.again") for code in value)


def _sealed(top: Mapping[str, Any]) -> SealTerms:
    terms = _fields(top["sealed"], "sealed", set(SealTerms._fields))
    return SealTerms(
        _hash(terms["salt"], "sealed.salt"), _hash(terms["key_hash"], "sealed.key_hash"),
        _hash(terms["results_key"], "sealed.results_key"),
        _number(terms["is_private"], "sealed.is_private"), _hash(terms["blob"], "sealed.blob"),
        _number(terms["size_bytes"], "sealed.size_bytes"),
    )  # fmt: skip


def _stored(top: Mapping[str, Any]) -> Checkpoint:
    folder = _fields(top["checkpoint"], "checkpoint", set(Checkpoint._fields))
    return Checkpoint(
        _text(folder["path"], "checkpoint.path"), *_numbers(top, "checkpoint", Checkpoint._fields[1:])
    )


def _mounted(value: Any) -> Mount:
    mount = _fields(value, "storage.mounts", set(Mount._fields))
    form = _number(mount["form"], "storage.mounts.form")
    if form not in tuple(MountForm):
        raise ConfigError("storage.mounts.form: 0 to 3 expected")
    return Mount(
        _text(mount["path"], "storage.mounts.path"), _hash(mount["blob"], "storage.mounts.blob"),
        _number(mount["size_bytes"], "storage.mounts.size_bytes"), MountForm(form),
    )  # fmt: skip


def _texts(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{name}: not a list of texts")
    return tuple(_text(item, name) for item in value)


_PARTS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], Part]]]] = {
    KIND_FINETUNE: (FinetunePart._fields, _tuned),
    KIND_GENERATE: (GeneratePart._fields, _generated),
    KIND_CONTAINER: (ContainerPart._fields, _contained),
    KIND_EMBED: (EmbedPart._fields, _embedded),
    KIND_EVALUATE: (EvaluatePart._fields, _evaluated),
}
"""Fields that a kind has of its own, and what reads them."""


def _part_of(document: Mapping[str, Any]) -> tuple[tuple[str, ...], Callable[[Mapping[str, Any]], Part]]:
    """Return the fields of a job's kind, and what reads them; the model says what is trained."""
    kind, model = document.get("kind"), document.get("model")
    if kind == KIND_TRAIN and isinstance(model, dict) and model.get("name") in DECODERS:
        return DecoderPart._fields, _decoder
    return _PARTS.get(kind, _CLASSIFIED) if isinstance(kind, str) else _CLASSIFIED


def read_spec(path: Path) -> bytes:
    """Return the canonical bytes of the job in a file with those bytes or with their JSON form.

    Raises ConfigError.
    """
    data = read_input(path, FILE_LIMIT_BYTES)
    is_canonical = data[:1] in CANONICAL_FIRST
    document = None if is_canonical else parse_json(data, str(path), EXPECTED)
    try:
        if is_canonical:
            return _checked(data)
        # The answer of dekube_getTask and of `dekube task show --json` may be taken as it is.
        for outer in ("task", "spec"):
            if isinstance(document, dict) and isinstance(document.get(outer), dict):
                document = document[outer]
        return encode_spec(spec_from_json(document))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _checked(raw: bytes) -> bytes:
    try:
        decode_spec(raw)
    except DecodeError as error:
        raise ConfigError(f"the job cannot run: {error}") from None
    return raw


def _fields(value: Any, where: str, names: set[str], *, optional: set[str] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: not a JSON object")
    missing, unknown = names - value.keys(), value.keys() - names - (optional or set())
    if missing or unknown:
        what = f"{sorted(missing)[0]} is missing" if missing else f"unknown field {sorted(unknown)[0]}"
        raise ConfigError(f"{where}: {what}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: not a text")
    return value


def _number(value: Any, where: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        if len(value) >= DIGITS_MAX:
            raise ConfigError(f"{where}: number too large ({len(value)} digits)")
        return int(value)  # amounts beyond what other JSON readers take as integers
    if type(value) is not int or value < 0:
        raise ConfigError(f"{where}: not a whole number of 0 or more: {json.dumps(value)[:80]}")
    return value


def _hash(value: Any, where: str) -> bytes:
    try:
        found = bytes.fromhex(_text(value, where).removeprefix("0x"))
    except ValueError:
        found = b""
    if len(found) != 32:
        raise ConfigError(f"{where}: not 64 hex digits")
    return found


def _verifiers(value: Any) -> Verifiers:
    found = _fields(value, "verifiers", set(Verifiers._fields))
    names = found["names"]
    try:
        if not isinstance(names, list):
            raise ConfigError("verifiers.names: a list expected")
        addresses = tuple(parse_address(_text(name, "verifiers.names")) for name in names)
    except DecodeError as error:
        raise ConfigError(f"verifiers.names: {error}") from None
    return Verifiers(_number(found["bond_min"], "verifiers.bond_min"), addresses)


# Training states

_DTYPES: Final = {ElementType.BINARY32: "<f4", ElementType.INT16: "<i2", ElementType.INT32: "<i4"}
_SAFE: Final = {ElementType.BINARY32: "F32", ElementType.INT16: "I16", ElementType.INT32: "I32"}


def _npz(state: TrainingState, plan: StatePlan) -> bytes:
    import numpy as np

    arrays: dict[str, Any] = {
        name: np.frombuffer(state.tensors[name], dtype=_DTYPES[kind.element]).reshape(kind.rows, kind.columns)
        for name, kind in plan.tensors().items()
    }
    with io.BytesIO() as file:
        np.savez(file, step=np.int64(state.step), **arrays)
        return file.getvalue()


def _safetensors(state: TrainingState, plan: StatePlan) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"step": str(state.step)}}
    at, parts = 0, []
    for name, kind in plan.tensors().items():
        content = state.tensors[name]
        header[name] = {
            "dtype": _SAFE[kind.element],
            "shape": [kind.rows, kind.columns],
            "data_offsets": [at, at + len(content)],
        }
        at += len(content)
        parts.append(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def _canonical(state: TrainingState, _plan: StatePlan) -> bytes:
    return state.encode()


FORMATS: Final[Mapping[str, Callable[[TrainingState, StatePlan], bytes]]] = {
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".state": _canonical,
}
"""Encoders of a training state by file suffix: NumPy, safetensors, the chain's canonical bytes."""


def encode_state(state: TrainingState, plan: StatePlan, suffix: str) -> bytes:
    """Return ``state`` in the format of a file suffix. Raises ConfigError for an unknown suffix."""
    encoder = FORMATS.get(suffix)
    if encoder is None:
        raise ConfigError(f"{suffix or 'no suffix'}: the file's name must end in {', '.join(FORMATS)}")
    return encoder(state, plan)


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically. Raises ConfigError."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            beside = Path(file.name)
            try:
                file.write(data)
                file.flush()
                beside.chmod(0o644)
                os.replace(beside, path)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
