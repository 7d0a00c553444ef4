"""Answers of gateways for tests of the client, as the methods' schemas have them."""

from __future__ import annotations

from typing import Any

from rpc.client.results import Task, TaskChange, Window, read_result

HASH = "0x" + "ab" * 32
ADDRESS = "0x" + "11" * 20


def at(height: int) -> dict[str, Any]:
    return {"height": height, "hash": f"0x{height:064x}"}


def task_json(phase: str, history: int = 0, final: int = 0) -> dict[str, Any]:
    return {
        "id": HASH, "requester": ADDRESS, "phase": phase, "reason": "because", "created_height": 1,
        "changed_height": 2, "worker": None, "price_per_tera_unit": "5", "windows": 2, "proved_windows": final,
        "final_windows": final, "history": history, "spec": {"raw": "0x"},
    }  # fmt: skip


def task(phase: str) -> Task:
    return read_result(Task, task_json(phase))


def change_json(height: int, after: str, actor: str | None = None) -> dict[str, Any]:
    return {
        "number": height, "height": height, "time_ms": height * 1000, "after": after, "reason": "because",
        "actor": actor,
    }  # fmt: skip


def change(height: int, after: str, actor: bytes) -> TaskChange:
    return read_result(TaskChange, change_json(height, after, "0x" + actor.hex()))


def window_json(number: int, phase: str) -> dict[str, Any]:
    proof = {
        "step_from": 25 * number, "step_to": 25 * number + 25, "state_root_in": HASH, "state_root_out": HASH,
        "segment_root": HASH, "output_blob": HASH,
    }  # fmt: skip
    return {
        "number": number, "phase": phase, "reason": "because", "worker": ADDRESS, "height": 5, "proof": proof,
        "charge": "7", "verifiers": [], "jurors": [], "sampled": [3],
    }  # fmt: skip


def window(number: int, phase: str) -> Window:
    return read_result(Window, window_json(number, phase))
