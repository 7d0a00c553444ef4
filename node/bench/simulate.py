"""`dekube bench simulate`: simulated consensus schedules per second, and how many violated a property."""

from __future__ import annotations

import time
from collections.abc import Callable

from consensus.simulation.scenarios import run_scenario

__all__ = ["run"]


def run(
    *, scenarios: int = 400, first_seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> dict[str, float]:
    """Run ``scenarios`` seeds on one core and return the figures; ``progress`` is called with the number done.

    Violations are always counted; ``first_violating_seed`` has the first seed. In runs with more faulty weight
    than the protocol tolerates, a fork is no violation if the evidence convicts enough seats. Campaigns on all
    cores are ``python -m node.simulation``.
    """
    events = violations = forks = epochs = 0
    first_violating_seed = -1
    worst_recovery_ms = 0
    begun_s = time.perf_counter()
    for done, seed in enumerate(range(first_seed, first_seed + scenarios), start=1):
        try:
            outcome = run_scenario(seed)
        except Exception:
            violations += 1
            first_violating_seed = seed if first_violating_seed < 0 else first_violating_seed
        else:
            events += outcome.events
            epochs += outcome.epochs
            forks += outcome.is_forked
            if outcome.kind != "above_f":  # with that many faults nobody promises life
                worst_recovery_ms = max(worst_recovery_ms, outcome.recovery_ms)
        if progress is not None:
            progress(done, scenarios)
    elapsed_s = time.perf_counter() - begun_s
    figures: dict[str, float] = {
        "scenarios": scenarios,
        "scenarios_per_s": round(scenarios / elapsed_s, 2),
        "events_per_s": round(events / elapsed_s),
        "events_per_scenario": round(events / max(1, scenarios)),
        "violations": violations,
        "worst_recovery_ms": worst_recovery_ms,
        "epochs_per_scenario": round(epochs / max(1, scenarios), 2),
        "forks_with_culprits_named": forks,
    }
    if violations:
        figures["first_violating_seed"] = first_violating_seed
    return figures
