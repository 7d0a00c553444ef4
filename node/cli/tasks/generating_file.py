"""A job of decoding in a file (TOML): a model, prompts, and settings that all have a default (market.md R77)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from node.cli.output import counted
from node.cli.tasks.job_fields import JobFields
from tasks.programs.operators.decoding import ENDS_MAX

if TYPE_CHECKING:
    from tasks.models.generating import GeneratingJob, GeneratingSettings

__all__ = ["GeneratingFile", "generating_of", "told_generating"]

_FIELDS: Final = ("kind", "model", "data", "new_tokens", "batch", "segment_steps", "ends")


class GeneratingFile(NamedTuple):
    """A file that was read: where the model and the prompts lie, and what is to be done with them."""

    file: Path
    model: Path
    data: Path
    settings: GeneratingSettings


def generating_of(fields: JobFields) -> GeneratingFile:
    """Return what a file describes. Paths in it start at its folder. Raises ConfigError, naming file and line."""
    from tasks.models.generating import GeneratingSettings

    usual = GeneratingSettings()
    fields.expect(_FIELDS)
    settings = GeneratingSettings(
        new_tokens=fields.whole("new_tokens", usual.new_tokens),
        batch=fields.whole("batch", usual.batch),
        ends=_ends(fields),
        segment_steps=fields.whole("segment_steps", usual.segment_steps),
    )
    folder = fields.file.parent
    return GeneratingFile(fields.file, folder / fields.text("model"), folder / fields.text("data"), settings)


def _ends(fields: JobFields) -> tuple[int, ...] | None:
    value = fields.listed("ends")
    if value is None:
        return None
    tokens = {one for one in value if type(one) is int and one >= 0}
    if len(tokens) != len(value) or len(value) > ENDS_MAX:
        raise fields.wrong("ends", f"ends: a list of {ENDS_MAX} token numbers at most expected, each once")
    return tuple(sorted(tokens))


def told_generating(job: GeneratingJob) -> Mapping[str, str]:
    """Return what a person sees of a job before it is posted."""
    part: Any = job.spec.part
    rows, decoding = part.dataset, part.decoding
    ends = ", ".join(map(str, decoding.ends)) or "none"
    return {
        "prompts": f"{counted(rows.rows, 'row')} of {counted(rows.length, 'token')} at most, "
        f"{part.batch} at a time",
        "completions": f"{counted(decoding.new_tokens, 'token')} a row at most; end tokens: {ends}",
        "blobs": f"{len(job.rows)} bytes of prompts, {len(job.model)} bytes of the model",
    }
