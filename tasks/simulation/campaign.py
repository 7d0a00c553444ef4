"""A campaign: all jobs of a plan on some processes, resumable, with a report.

What is done is kept in a file of lines, one for each job. The file belongs to the code that made it. With other
code it is set aside, and the campaign starts from the beginning.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, Final

from tasks.simulation.power import Pair, choose, pairs, verdict
from tasks.simulation.report import judge, markdown
from tasks.simulation.rules import WITHOUT
from tasks.simulation.search import (
    CONFIRM_FROM,
    REPEAT_FROM,
    Job,
    Plan,
    Score,
    best,
    evaluate,
    explore,
    score_from,
)
from tasks.simulation.strategies import JUDGED, Strategy

__all__ = ["PLANS", "Campaign"]

_PACKAGES: Final = ("billing", "state", "tasks")
PLANS: Final = {
    plan.name: plan
    for plan in (
        # settings, markets, narrowed on, best, confirmed; settings, markets, confirmed of absent rules; repeated
        Plan("sample", 1, 1, 0, 0, 1, 1, 1, 1, 1, 1),
        Plan("quick", 8, 2, 0, 0, 1, 16, 1, 3, 12, 32),
        Plan("short", 24, 2, 6, 6, 2, 20, 3, 4, 16, 128),
        Plan("nightly", 200, 2, 20, 10, 3, 60, 12, 8, 60, 400),
    )
}


@cache
def _code_digest() -> str:
    root = Path(__file__).resolve().parents[2]
    hashed = blake2b(digest_size=16)
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            hashed.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()


class Campaign:
    """One plan in one directory: ``state.jsonl`` is what is done, ``report.json`` and ``.md`` what it came to."""

    def __init__(
        self, plan: Plan, directory: Path, *, strategies: Sequence[Strategy] = JUDGED,
        rules: Iterable[str] = tuple(WITHOUT), processes: int = 1,
    ) -> None:  # fmt: skip
        self._plan = plan
        self._strategies = strategies
        self._rules = tuple(rules)
        self._processes = processes
        self._directory = directory
        self._path = directory / "state.jsonl"
        self._done: dict[str, Score] = {}
        self.set_aside: Path | None = None
        """Where the results of other code, or of another plan, were put."""
        directory.mkdir(parents=True, exist_ok=True)
        self._load({"plan": list(plan), "code": _code_digest()})

    def _load(self, head: dict[str, Any]) -> None:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        records = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except ValueError:  # torn by a crash: nothing after it counts
                break
        if records and records[0] == head:
            for key, score in records[1:]:
                self._done[key] = score_from(score)
        elif len(records) > 1:
            numbers = (self._path.with_name(f"{self._path.name}.{number}") for number in count(1))
            self.set_aside = next(path for path in numbers if not path.exists())
            self._path.rename(self.set_aside)
            records = []
        kept = records if records and records[0] == head else [head]
        self._path.write_text("".join(json.dumps(record) + "\n" for record in kept))

    def run(self, on_job: Callable[[int, int], None] = lambda _done, _of: None) -> dict[str, Any]:
        """Play what is missing and return the report; ``on_job`` hears how many jobs of a round are done.

        One strategy is played to its end after the other. The report stands after each of them.
        """
        explored: list[tuple[Job, Score]] = []
        confirmed: list[tuple[Job, Score]] = []
        for strategy in self._strategies:
            tried, chosen = self._search(strategy, on_job)
            explored += tried
            confirmed += chosen
            self._write(judge(self._plan.name, explored, confirmed))
        report = judge(self._plan.name, explored, confirmed, without=self._without(on_job))
        self._write(report)
        return report

    def _search(
        self, strategy: Strategy, on_job: Callable[[int, int], None]
    ) -> tuple[list[tuple[Job, Score]], list[tuple[Job, Score]]]:
        """Return what was tried of a strategy, and what of that was played on other markets."""
        plan = self._plan
        explored = self._play(explore([strategy], "", plan.settings, plan.markets), on_job)
        narrowed = self._play(
            [
                job._replace(first=plan.markets, markets=plan.narrowed_markets)
                for job in best(explored, plan.narrowed)
            ],
            on_job,
        )
        last = narrowed or explored
        chosen = [*best(last, plan.best), *best(last, 1, by_damage=True)]
        confirmed = self._play(list({_key(job): job for job in _confirming(chosen, plan)}.values()), on_job)
        doubted = [(job, score) for job, score in confirmed if score.gains]
        repeated = self._play(
            [job._replace(first=REPEAT_FROM, markets=plan.repeated) for job, _ in doubted], on_job
        )
        settled = [one for one in confirmed if one not in doubted]
        return explored + narrowed + doubted, settled + repeated

    def _write(self, report: Mapping[str, Any]) -> None:
        (self._directory / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        (self._directory / "report.md").write_text(markdown(report))

    def _without(self, on_job: Callable[[int, int], None]) -> dict[str, Any]:
        """Return what each chosen rule prevents."""
        found: dict[str, Any] = {}
        for name in self._rules:
            rule, plan = WITHOUT[name], self._plan
            tried = pairs(rule, plan.absent_settings, 0, plan.absent_markets)
            chosen = choose([(pair, *scores) for pair, scores in self._play_pairs(tried, on_job)], plan.best)
            confirming = [
                (Pair(*(job._replace(first=CONFIRM_FROM, markets=plan.absent_confirmed) for job in pair)), figure)
                for pair, figure in chosen
            ]
            played = self._play_pairs([pair for pair, _ in confirming], on_job)
            found[name] = verdict(
                rule,
                [(pair, figure, *scores) for (pair, figure), (_, scores) in zip(confirming, played, strict=True)],
            )
        return found

    def _play_pairs(
        self, tried: Sequence[Pair], on_job: Callable[[int, int], None]
    ) -> list[tuple[Pair, tuple[Score, Score]]]:
        jobs = list({_key(job): job for pair in tried for job in pair}.values())
        scores = {_key(job): score for job, score in self._play(jobs, on_job)}
        return [(pair, (scores[_key(pair.without)], scores[_key(pair.present)])) for pair in tried]

    def _play(self, jobs: Sequence[Job], on_job: Callable[[int, int], None]) -> list[tuple[Job, Score]]:
        missing = [job for job in jobs if _key(job) not in self._done]
        done = len(jobs) - len(missing)
        with self._path.open("a") as state:
            for job, score in self._scores(missing):
                state.write(json.dumps([_key(job), list(score)]) + "\n")
                state.flush()
                os.fsync(state.fileno())
                self._done[_key(job)] = score
                done += 1
                on_job(done, len(jobs))
        return [(job, self._done[_key(job)]) for job in jobs]

    def _scores(self, jobs: Sequence[Job]) -> Iterable[tuple[Job, Score]]:
        if self._processes == 1:
            for job in jobs:
                yield job, evaluate(job)
            return
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._processes, mp_context=context) as pool:
            yield from zip(jobs, pool.map(evaluate, jobs), strict=True)


def _confirming(jobs: Iterable[Job], plan: Plan) -> list[Job]:
    return [job._replace(first=CONFIRM_FROM, markets=plan.confirmed) for job in jobs]


def _key(job: Job) -> str:
    return json.dumps([job.strategy, job.rule, dict(sorted(job.setting.items())), job.first, job.markets])
