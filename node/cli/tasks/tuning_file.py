"""A file that describes a job of fine-tuning (TOML): a model, rows, and settings that all have a default."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from node.cli.files import read_text
from node.home.files import read_bounded
from state.primitives.errors import ConfigError, DecodeError
from tasks.engines.errors import EngineMissing, UnsupportedJob
from tasks.models.errors import ModelError, RowsInvalid
from tasks.programs.operators.scalars import NANO
from tasks.spec import decode_spec, encode_spec

if TYPE_CHECKING:
    from tasks.models.jobs import TuningJob, TuningSettings

__all__ = ["TuningFile", "make_job", "read_tuning", "told_tuning"]

FILE_BYTES_MAX: Final = 1 << 16
EXPECTED: Final = "a job of fine-tuning in TOML (docs/tasks.md, Fine-tuning)"
_WHOLE: Final = ("epochs", "steps", "batch", "max_length", "warmup_steps", "segment_steps")
_FRACTIONS: Final = ("learning_rate", "weight_decay", "clip")
_TEXTS: Final = ("kind", "model", "data", "long_rows", "schedule")
_LORA: Final = ("rank", "alpha", "targets")
_INTEGER_MAX: Final = 1 << 31
_OTHER_NAMES: Final = {
    "q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output", "gate_proj": "gate",
    "up_proj": "up", "down_proj": "down",
}  # fmt: skip
"""What PEFT calls them."""
_TARGETS: Final = tuple(_OTHER_NAMES.values())


class TuningFile(NamedTuple):
    """A file that was read: where the model and the rows lie, and what is to be done with them."""

    file: Path
    model: Path
    data: Path
    settings: TuningSettings


class _Fields:
    """The fields of a file, each read with its type; errors name file and line."""

    def __init__(self, file: Path, text: str) -> None:
        """Raises ConfigError."""
        self._file, self._lines = file, text.splitlines()
        try:
            self._values: dict[str, Any] = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
            raise ConfigError(f"{file}: not valid TOML ({error}); expected {EXPECTED}") from None
        lora = self._values.pop("lora", {})
        if not isinstance(lora, dict):
            raise self.wrong("lora", f"a table expected: [lora] with {', '.join(_LORA)}")
        for values, known, table in ((self._values, (*_TEXTS, *_WHOLE, *_FRACTIONS), ""), (lora, _LORA, "lora.")):
            for name in values:
                if name not in known:
                    raise self.wrong(name, f"{table}{name} is no field; there are {', '.join(known)}")
        self._values |= lora

    def wrong(self, name: str, what: str) -> ConfigError:
        """Return the error about a field, with its line."""
        pattern = re.compile(rf"\s*\[?\s*[\"']?{re.escape(name)}[\"']?\s*[]=]")
        line = next((number for number, text in enumerate(self._lines, 1) if pattern.match(text)), None)
        place = "" if line is None else f" line {line}:"
        return ConfigError(f"{self._file}:{place} {what}")

    def text(self, name: str, otherwise: str | None = None) -> str:
        value = self._values.get(name, otherwise)
        if value is None:
            raise ConfigError(f"{self._file}: {name} is missing; expected {EXPECTED}")
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.wrong(name, f"{name}: a text expected, in quotes")
        return value

    def whole(self, name: str, otherwise: int, least: int = 1) -> int:
        value = self._values.get(name, otherwise)
        if type(value) is not int or not (least <= value < _INTEGER_MAX or value == otherwise):
            raise self.wrong(name, f"{name}: a whole number of {least} or more expected")
        return int(value)

    def nano(self, name: str, otherwise: int) -> int:
        value = self._values.get(name)
        if value is None:
            return otherwise
        if type(value) not in (int, float) or not 0 <= value <= 1_000:
            raise self.wrong(name, f"{name}: a number from 0 to 1000 expected")
        found = round(value * NANO)
        if abs(found - value * NANO) > 1e-3:
            raise self.wrong(name, f"{name}: at most nine digits after the point")
        return int(found)

    def choice(self, name: str, choices: Sequence[str], otherwise: str) -> str:
        if (value := self.text(name, otherwise)) not in choices:
            raise self.wrong(name, f"{name}: {', '.join(choices)} expected, not {value[:40]!r}")
        return value

    def targets(self, otherwise: tuple[str, ...]) -> tuple[str, ...]:
        value = self._values.get("targets")
        if value is None:
            return otherwise
        named = (
            [_OTHER_NAMES.get(one, one) for one in value if isinstance(one, str)] if type(value) is list else []
        )
        if (
            not named
            or len(named) != len(value)
            or not set(named) <= set(_TARGETS)
            or len(set(named)) < len(named)
        ):
            raise self.wrong("targets", f"targets: a list of some of {', '.join(_TARGETS)} expected")
        return tuple(named)

    def both(self, one: str, other: str) -> bool:
        return one in self._values and other in self._values


def read_tuning(file: Path) -> TuningFile:
    """Return what a file describes. Paths in it start at its folder. Raises ConfigError, naming file and line."""
    from tasks.models.jobs import TuningSettings
    from tasks.models.rows import LONG_ROWS
    from tasks.programs.operators.schedules import SCHEDULES

    fields, usual = _Fields(file, read_text(file, FILE_BYTES_MAX, EXPECTED)), TuningSettings()
    if fields.text("kind", "finetune") != "finetune":
        raise fields.wrong("kind", "kind: only finetune is described so; use --spec for other jobs")
    if fields.both("epochs", "steps"):
        raise fields.wrong("steps", "steps and epochs: give one of them")
    settings = TuningSettings(
        epochs=fields.whole("epochs", usual.epochs),
        steps=fields.whole("steps", usual.steps),
        batch=fields.whole("batch", usual.batch),
        max_length=fields.whole("max_length", usual.max_length),
        long_rows=fields.choice("long_rows", LONG_ROWS, usual.long_rows),
        rank=fields.whole("rank", usual.rank),
        alpha=fields.whole("alpha", usual.alpha),
        targets=fields.targets(usual.targets),
        learning_rate_nano=fields.nano("learning_rate", usual.learning_rate_nano),
        weight_decay_nano=fields.nano("weight_decay", usual.weight_decay_nano),
        schedule=fields.choice("schedule", SCHEDULES, usual.schedule),
        warmup_steps=fields.whole("warmup_steps", usual.warmup_steps, least=0),
        clip_nano=fields.nano("clip", usual.clip_nano),
        segment_steps=fields.whole("segment_steps", usual.segment_steps),
    )
    folder = file.parent
    return TuningFile(file, folder / fields.text("model"), folder / fields.text("data"), settings)


def make_job(found: TuningFile, *, seed: bytes, max_price_per_tera_unit: int, match_ms: int) -> TuningJob:
    """Return the job of a file, with its blobs. Raises ConfigError, naming file and line where there is one."""
    from tasks.models.jobs import make_tuning
    from tasks.models.opening import open_model
    from tasks.models.rows import FILE_BYTES_MAX as ROWS_FILE_BYTES_MAX

    try:
        data = read_bounded(found.data, ROWS_FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(
            f"{found.data}: {error.strerror}; data in {found.file} names a file of JSON lines"
        ) from None
    try:
        with open_model(found.model) as opened:
            job = make_tuning(
                opened, data, found.settings, seed=seed, max_price_per_tera_unit=max_price_per_tera_unit,
                match_ms=match_ms,
            )  # fmt: skip
        decode_spec(encode_spec(job.spec))
    except RowsInvalid as error:
        raise ConfigError(f"{found.data}: {error}") from None
    except ModelError as error:
        raise ConfigError(f"{found.model}: {error}") from None
    except (UnsupportedJob, DecodeError) as error:
        raise ConfigError(f"{found.file}: the job cannot run: {error}") from None
    except EngineMissing as error:
        raise ConfigError(str(error)) from None
    return job


def told_tuning(job: TuningJob) -> Mapping[str, str]:
    """Return what a person sees of a job before it is posted."""
    part: Any = job.spec.part
    rows = part.dataset
    return {
        "rows": f"{rows.rows} of {rows.length} tokens, {rows.slots} of them trained at most",
        "blobs": f"{len(job.rows)} bytes of rows, {len(job.model)} bytes of the model",
    }
