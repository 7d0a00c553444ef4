"""A job specification as JSON, for answers and for files that people write."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from state.primitives.address import format_address
from tasks.kinds.verifiers import Verifiers
from tasks.spec import JobSpec

__all__ = ["spec_to_json"]


def spec_to_json(spec: JobSpec) -> dict[str, Any]:
    """Return ``spec`` as ``dekube_getTask`` shows it, without its hash and bytes."""
    return {
        "kind": spec.kind,
        "level": spec.level,
        "profile": spec.profile,
        **{name: _json(value) for name, value in spec.part._asdict().items()},
        "seed": "0x" + spec.seed.hex(),
        "init_root": "0x" + spec.init_root.hex(),
        "schedule": spec.schedule._asdict(),
        "max_price_per_tera_unit": str(spec.max_price_per_tera_unit),
        "requirements": _json(spec.requirements),
        "match_ms": spec.match_ms,
        **({"verifiers": _verifiers(spec.verifiers)} if spec.verifiers.is_chosen else {}),
    }


def _verifiers(chosen: Verifiers) -> dict[str, Any]:
    return {"bond_min": str(chosen.bond_min), "names": [format_address(name) for name in chosen.names]}


def _json(value: Any) -> Any:
    """Return a field of a part as JSON: hashes as hex, lists for tuples, objects for tuples with names."""
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, tuple):
        named = getattr(value, "_asdict", None)
        if named is not None:
            return {name: _json(item) for name, item in named().items()}
        return [_json(item) for item in value]
    return int(value) if isinstance(value, IntEnum) else value
