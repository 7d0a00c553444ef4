"""Job specifications that a requester can post as they are: models and settings that were tried."""

from __future__ import annotations

from tasks import spec as specs
from tasks.engines.datasets import Dataset
from tasks.engines.training import initial_state
from tasks.executor.job import Job

__all__ = ["digits_spec"]


def digits_spec(
    dataset: Dataset,
    *,
    dataset_blob: bytes,
    seed: bytes,
    max_price_per_tera_unit: int,
    widths: tuple[int, ...] = (64, 256, 128, 10),
    total_steps: int = 600,
    segment_steps: int = 10,
    window_steps: int = 200,
    match_ms: int = 600_000,
) -> specs.JobSpec:
    """Return the training of a classifier of handwritten digits, right for about 98 % of the test split.

    Three windows of twenty segments; about 3 s on one processor core. ``dataset_blob`` is the content address of
    ``dataset.encode()``. Raises UnsupportedJob for sizes beyond the engine's limits.
    """
    unrooted = specs.classifier_job(
        kind=specs.KIND_TRAIN,
        level=specs.LEVEL_EXACT,
        profile=specs.PROFILE_EXACT_2,
        model=specs.Model(specs.MODEL_MLP, widths, "relu"),
        dataset=specs.Dataset(dataset_blob, dataset.root(), dataset.rows, dataset.train_rows, dataset.shift),
        batch=64,
        optimiser=specs.Optimiser(specs.OPTIMISER_ADAMW, 2_000_000, 900_000_000, 999_000_000, 10, 10_000_000),
        seed=seed,
        init_root=bytes(32),
        schedule=specs.Schedule(total_steps, segment_steps, window_steps),
        max_price_per_tera_unit=max_price_per_tera_unit,
        requirements=specs.Requirements(gpus=0, memory_mib=0, rate_min=0),
        match_ms=match_ms,
    )
    plan = specs.classifier_plan(unrooted)
    spec = unrooted._replace(init_root=initial_state(plan).root(plan))
    Job.of(spec)
    return spec
