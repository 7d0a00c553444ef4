"""A file that describes a job of one's own model and data (TOML); ``kind`` says of which kind it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from node.cli.files import read_text
from node.cli.tasks.generating_file import GeneratingFile, generating_of, told_generating
from node.cli.tasks.job_fields import EXPECTED, JobFields
from node.cli.tasks.tuning_file import TuningFile, told_tuning, tuning_of
from node.home.files import read_bounded
from state.primitives.errors import ConfigError, DecodeError
from tasks.engines.errors import EngineMissing, UnsupportedJob
from tasks.kinds.finetune import KIND_FINETUNE
from tasks.kinds.generate import KIND_GENERATE
from tasks.models.errors import ModelError, RowsInvalid
from tasks.spec import decode_spec, encode_spec

if TYPE_CHECKING:
    from tasks.models.generating import GeneratingJob
    from tasks.models.jobs import TuningJob

    MadeJob: TypeAlias = TuningJob | GeneratingJob

__all__ = ["make_job", "read_job", "told_job"]

FILE_BYTES_MAX: Final = 1 << 16
_KINDS: Final[Mapping[str, Callable[[JobFields], TuningFile | GeneratingFile]]] = {
    KIND_FINETUNE: tuning_of,
    KIND_GENERATE: generating_of,
}


def read_job(file: Path) -> TuningFile | GeneratingFile:
    """Return what a file describes. Raises ConfigError, naming file and line."""
    fields = JobFields(file, read_text(file, FILE_BYTES_MAX, EXPECTED))
    kind = fields.text("kind", KIND_FINETUNE)
    if kind not in _KINDS:
        raise fields.wrong("kind", f"kind: {' or '.join(_KINDS)} expected; use --spec for other jobs")
    return _KINDS[kind](fields)


def make_job(
    found: TuningFile | GeneratingFile, *, seed: bytes, max_price_per_tera_unit: int, match_ms: int
) -> MadeJob:
    """Return the job of a file, with its blobs. Raises ConfigError, naming file and line where there is one."""
    from tasks.models.generating import make_generating
    from tasks.models.jobs import make_tuning
    from tasks.models.opening import open_model
    from tasks.models.rows import FILE_BYTES_MAX as ROWS_FILE_BYTES_MAX

    try:
        data = read_bounded(found.data, ROWS_FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(
            f"{found.data}: {error.strerror}; data in {found.file} names a file of JSON lines"
        ) from None
    job: MadeJob
    try:
        with open_model(found.model) as opened:
            if isinstance(found, GeneratingFile):
                job = make_generating(
                    opened, data, found.settings, seed=seed, max_price_per_tera_unit=max_price_per_tera_unit,
                    match_ms=match_ms,
                )  # fmt: skip
            else:
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


def told_job(job: MadeJob) -> Mapping[str, str]:
    """Return what a person sees of a job before it is posted."""
    from tasks.models.generating import GeneratingJob

    return told_generating(job) if isinstance(job, GeneratingJob) else told_tuning(job)
