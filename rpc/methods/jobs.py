"""A job specification as JSON, for answers and for files that people write."""

from __future__ import annotations

from typing import Any

from tasks.spec import JobSpec

__all__ = ["spec_to_json"]


def spec_to_json(spec: JobSpec) -> dict[str, Any]:
    """Return ``spec`` as ``dekube_getTask`` shows it, without its hash and bytes."""
    return {
        "kind": spec.kind,
        "level": spec.level,
        "profile": spec.profile,
        "model": {
            "name": spec.model.name,
            "widths": list(spec.model.widths),
            "activation": spec.model.activation,
        },
        "dataset": {
            "blob": "0x" + spec.dataset.blob.hex(),
            "root": "0x" + spec.dataset.root.hex(),
            "rows": spec.dataset.rows,
            "samples": spec.dataset.samples,
            "shift": spec.dataset.shift,
        },
        "batch": spec.batch,
        "optimiser": spec.optimiser._asdict(),
        "seed": "0x" + spec.seed.hex(),
        "init_root": "0x" + spec.init_root.hex(),
        "schedule": spec.schedule._asdict(),
        "max_price_per_tera_unit": str(spec.max_price_per_tera_unit),
        "requirements": spec.requirements._asdict(),
        "match_ms": spec.match_ms,
    }
