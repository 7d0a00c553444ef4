"""What a person sees of a job before it is posted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from billing.prices import work_price_up
from node.cli.output import counted, show_amount
from tasks.executor.resource_needs import needs_of
from tasks.kinds.classifier import KIND_TRAIN
from tasks.kinds.container import KIND_CONTAINER, MachineLimit
from tasks.kinds.embed import KIND_EMBED
from tasks.kinds.evaluate import KIND_EVALUATE
from tasks.kinds.finetune import KIND_FINETUNE
from tasks.kinds.generate import KIND_GENERATE
from tasks.programs.operators.scalars import NANO
from tasks.spec import JobSpec, Requirements, container_of

if TYPE_CHECKING:
    from rpc.client.containers import ContainerJob
    from rpc.client.making import MadeJob
    from tasks.kinds.adapters import TunedAdapter
    from tasks.models.embedding import EmbeddingJob
    from tasks.models.evaluating import EvaluatingJob
    from tasks.models.generating import GeneratingJob
    from tasks.models.jobs import TuningJob
    from tasks.models.training import TrainingJob

__all__ = [
    "COMPARED", "UNPROVEN", "decoding_told", "told_container", "told_container_part", "told_embedding",
    "told_evaluating", "told_generating", "told_job", "told_training", "told_tuning",
]  # fmt: skip

COMPARED: Final = (
    "1: machines of different owners run it, and what two of them left counts; the others are not paid"
)
UNPROVEN: Final = "none: nobody checks what the machine runs; you pay for seconds, and stop it"


def told_training(job: TrainingJob) -> Mapping[str, str]:
    """Return what is trained, and on what."""
    part: Any = job.spec.part
    rows, model = part.dataset, part.model
    return {
        **_told_left(part.start, "goes on from"),
        "model": f"{counted(model.layers, 'layer')}, width {model.width}, {counted(model.heads, 'head')}, "
        f"vocabulary {model.vocabulary}: {job.spec.plan().parameters:,} weights",
        "rows": f"{rows.samples} of {counted(rows.length, 'token')}, {part.batch} a step",
        **_told_loop(job.spec),
        "memory": _told_memory(job.spec),
        "blobs": f"{len(job.rows)} bytes of rows",
    }


def told_tuning(job: TuningJob) -> Mapping[str, str]:
    """Return what is trained."""
    part: Any = job.spec.part
    plan: Any = job.spec.plan()
    loop = plan.loop
    batch = f"{counted(part.batch, 'row')}" if loop.accumulate == 1 else f"{loop.accumulate} x {part.batch} rows"
    return {
        **_told_left(part.start, "goes on from"),
        **_told_rows(part),
        "updates": f"{loop.updates}, {batch} each; {counted(loop.steps, 'step')}",
        **_told_validation(job.spec),
        "memory": _told_memory(job.spec),
        "blobs": f"{len(job.rows)} bytes of rows, {len(job.model)} bytes of the model",
    }


def _told_memory(spec: JobSpec) -> str:
    """Return what the process of a job needs, and whether layers are computed again."""
    part: Any = spec.part
    again = "; layers are computed again in the way back" if part.recompute else ""
    return f"{-(-needs_of(spec, open_windows_max=1).process >> 20)} MiB for the process of the job{again}"


def _told_loop(spec: JobSpec) -> Mapping[str, str]:
    """Return how many updates a training from scratch has, where not every step is one."""
    part: Any = spec.part
    plan: Any = spec.plan()
    loop = plan.loop
    if not plan.shape.is_gated:
        return {}
    return {
        "updates": f"{loop.updates}, {loop.accumulate} x {part.batch} rows each; {counted(loop.steps, 'step')}",
        **_told_validation(spec),
    }


def _told_validation(spec: JobSpec) -> Mapping[str, str]:
    """Return how a job evaluates, if it does, and when it ends early."""
    part: Any = spec.part
    plan: Any = spec.plan()
    rows, loop, told = part.dataset, plan.loop, dict[str, str]()
    if loop.evaluate_every:
        kept = "the best state is kept" if part.loop.keeps_best else "the last state is kept"
        told["validation"] = (
            f"{counted(rows.rows - rows.samples, 'row')}, {counted(loop.evaluations, 'evaluation')}, one every "
            f"{counted(loop.evaluate_every, 'update')}; {kept}"
        )
        if patience := part.loop.patience:
            told["ends early"] = f"after {counted(patience, 'evaluation')} in a row without a lower loss"
    return told


def _told_rows(part: Any) -> Mapping[str, str]:
    rows = part.dataset
    told = f"{rows.samples} of {rows.length} tokens, {rows.slots} of them trained at most"
    if part.preference is None:
        return {"rows": told}
    return {"pairs": f"{told}; by DPO with beta {part.preference.beta_nano / NANO:g}"}


def decoding_told(
    name: str, temperature: int = 0, top_p: int = 0, top_k: int = 0, **_others: Any
) -> str:  # fmt: skip
    """Return how tokens are chosen; units are those of a specification."""
    if not temperature:
        return name
    words = [f"{name} with temperature {temperature / NANO:g}"]
    words += [f"top_p {top_p / NANO:g}"] * (top_p < NANO) + [f"top_k {top_k}"] * (top_k > 0)
    return ", ".join(words)


def told_generating(job: GeneratingJob) -> Mapping[str, str]:
    """Return what is continued, and how."""
    part: Any = job.spec.part
    rows, decoding = part.dataset, part.decoding
    ends = ", ".join(map(str, decoding.ends)) or "none"
    return {
        **_told_left(part.adapter),
        "prompts": f"{counted(rows.rows, 'row')} of {counted(rows.length, 'token')} at most, "
        f"{part.batch} at a time",
        "completions": f"{counted(decoding.new_tokens, 'token')} a row at most; end tokens: {ends}",
        "tokens": decoding_told(**decoding._asdict()) if part.by_row is None else "as each line says",
        "blobs": f"{len(job.rows)} bytes of prompts, {len(job.model) or len(job.adapter)} bytes of the model",
    }


def _told_left(adapter: TunedAdapter | None, name: str = "adapters") -> Mapping[str, str]:
    """Return what a job takes of a task that has trained."""
    if adapter is None:
        return {}
    after = f"after {counted(adapter.step, 'step')}"
    if not adapter.rank:
        return {"model" if name == "adapters" else name: f"the model of the task that trained it, {after}"}
    return {name: f"rank {adapter.rank}, {after}"}


def told_container(job: ContainerJob) -> Mapping[str, str]:
    """Return what is run, and what an hour of it costs at most."""
    return {"assurance": COMPARED if job.spec.is_quorum else UNPROVEN, **told_container_part(job.spec)}


def told_container_part(spec: JobSpec) -> Mapping[str, str]:
    """Return what a container runs, for how long, and what an hour of it costs at most."""
    part = container_of(spec)
    command = " ".join(part.process.command) or "that of the image"
    mounts = ", ".join(f"{mount.path} ({mount.size_bytes} bytes)" for mount in part.storage.mounts) or "none"
    output = part.storage.output
    wanted = spec.requirements
    return {
        "image": part.image.reference
        + (f", an archive of {part.image.size_bytes} bytes" if part.image.blob else ""),
        "command": command,
        "environment": f"{counted(len(part.process.environment), 'value')}, public on the chain",
        "mounts": mounts,
        "network": ", ".join(part.process.egress) or "none",
        "output": f"{output}, {part.storage.output_bytes_max} bytes at most" if output else "none",
        "machine": f"{counted(part.cores, 'core')}, {counted(wanted.gpus, 'GPU')}{_card(wanted)}, "
        f"{wanted.memory_mib} MiB, "
        f"rate {wanted.rate_min} to {spec.rate_max}"
        + (", user 0 (clusters have none)" if part.refused & MachineLimit.NO_ROOT else ""),
        "isolation": "by machines alone that keep it from networks"
        if part.refused & MachineLimit.UNISOLATED
        else "not needed: clusters are asked too where it may reach their network",
        "time": f"{counted(spec.windows, 'tick')} of {counted(spec.tick_s, 'second')} at most",
        "an hour costs, at most": show_amount(
            work_price_up(3_600 * spec.step_units, spec.max_price_per_tera_unit)
        ),
    }


def _card(wanted: Requirements) -> str:
    if not wanted.orders_card:
        return ""
    least = f", {wanted.gpu_memory_mib} MiB or more" if wanted.gpu_memory_mib else ""
    return f" ({' '.join(wanted.gpu_words) or 'any model'}{least})"


def told_embedding(job: EmbeddingJob) -> Mapping[str, str]:
    """Return what becomes a vector, and how."""
    part: Any = job.spec.part
    rows, scaled = part.dataset, ", of length 1" if part.pooling.normalised else ""
    return {
        **_told_left(part.adapter),
        "texts": f"{counted(rows.rows, 'row')} of {counted(rows.length, 'token')} at most, {part.batch} at a time",
        "vectors": f"{part.model.width} numbers each, pooling {part.pooling.name}{scaled}",
        "blobs": f"{len(job.rows)} bytes of texts, {len(job.model) or len(job.adapter)} bytes of the model",
    }


def told_evaluating(job: EvaluatingJob) -> Mapping[str, str]:
    """Return what is evaluated."""
    part: Any = job.spec.part
    rows = part.dataset
    return {
        **_told_left(part.adapter),
        "rows": f"{rows.rows} of {rows.length} tokens, {rows.slots} of them counted at most",
        "blobs": f"{len(job.rows)} bytes of rows, {len(job.model) or len(job.adapter)} bytes of the model",
    }


TOLD: Final[Mapping[str, Callable[[Any], Mapping[str, str]]]] = {
    KIND_TRAIN: told_training,
    KIND_FINETUNE: told_tuning,
    KIND_GENERATE: told_generating,
    KIND_CONTAINER: told_container,
    KIND_EMBED: told_embedding,
    KIND_EVALUATE: told_evaluating,
}
"""What is told of a job of each kind."""


def told_job(job: MadeJob) -> Mapping[str, str]:
    """Return what a person sees of a job before it is posted."""
    return TOLD[job.spec.kind](job)
