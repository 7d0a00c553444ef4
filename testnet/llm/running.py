"""The demonstration: SmolLM2-135M learns 40 answers on a network of processes, and everything is proved.

A file of rows becomes a job. It gets a quote, is posted, trained by a machine, checked by others, and settled.
The result is a folder that transformers and PEFT load.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from node.cli.output import counted, show_amount
from node.home.load import load_node_options
from node.market.posting import next_of_update, say_update
from rpc.client import Client, TaskEnded, TaskUpdate
from rpc.client.core import hexed
from rpc.client.results import Bill
from rpc.client.tasks import TaskResult
from state.primitives.hashing import digest
from state.primitives.listen import dial_target
from tasks.engines.tuning_plan import TuningPlan
from tasks.models.adapters import adapter_folder, receipt_of
from tasks.models.generating import GeneratingJob, GeneratingSettings, make_generating
from tasks.models.jobs import TuningJob, TuningSettings, make_tuning
from tasks.models.opening import OpenModel, open_model
from tasks.models.prompts import prompts_of
from tasks.proofs import decode_leaves
from testnet.cluster import Cluster
from testnet.demonstration import MAX_PRICE_PER_TERA_UNIT, wait_machines
from testnet.llm.answering import Answers, answers_of_peft
from testnet.llm.asking import NEW_TOKENS
from testnet.llm.meter import Meter
from testnet.llm.questions import NAMED, ROWS, prompt_lines, taught
from testnet.plan import Plan

__all__ = ["BATCH", "Demonstration", "Report"]

BATCH: Final = 4
SEGMENT_STEPS: Final = 2
WINDOW_EPOCHS: Final = 2
RATE_NANO: Final = 5_000_000
SCHEDULE: Final = "linear"
BASE: Final = "SmolLM2-135M-Instruct"
TASK_TIMEOUT_S: Final = 3_600.0
_HAS_PEFT: Final = all(find_spec(name) is not None for name in ("torch", "transformers", "peft"))


class Report(NamedTuple):
    """What the demonstration found."""

    losses: list[float]
    """Mean loss of a trained token in each epoch."""
    known_before: int
    """Named questions that were answered as taught, before and after."""
    known_after: int
    same_tokens: bool | None
    """Whether transformers and PEFT gave the tokens of the exact engine; None: they are not installed."""
    is_verified: bool
    seconds: float
    task_seconds: float
    processor_s: float
    peak_bytes: int

    @property
    def is_right(self) -> bool:
        """Whether all is as the demonstration claims."""
        return (
            self.losses[-1] <= self.losses[0] * 2 / 3
            and (self.known_before, self.known_after) == (0, len(NAMED))
            and self.same_tokens is not False
            and self.is_verified
        )


class Demonstration:
    """One run on a cluster that is up."""

    def __init__(
        self, model: Path, out: Path, epochs: int, cluster: Cluster, plan: Plan, say: Callable[[str], None]
    ) -> None:
        self._model, self._out, self._epochs = model, out, epochs
        self._cluster, self._plan, self._say = cluster, plan, say
        self._home = cluster.home("validator-0")
        self._meter, self._began = Meter(), time.monotonic()
        self.bill: Bill | None = None
        """That of the task that tunes, once it has settled."""

    async def run(self) -> Report:
        """Run it. Raises TaskEnded if the task did not settle."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._meter.run, self._members())
            report = await trio.to_thread.run_sync(self._run, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
        return report

    def _members(self) -> list[tuple[str, int]]:
        return [(member.name, member.pid) for member in self._cluster.status() if member.pid is not None]

    def _tell(self, line: str) -> None:
        """Say what happens, with the seconds since the start."""
        self._say(f"[{time.monotonic() - self._began:4.0f} s] {line}")

    def _run(self) -> Report:
        with open_model(self._model) as opened:
            model = opened.load()
            return self._demonstrate(replace(opened, load=lambda: model))

    def _demonstrate(self, opened: OpenModel) -> Report:
        with Client(self._url) as client:
            wait_machines(client)
            self._tell(f"The network is up: {counted(len(self._members()), 'node')}.")
            before = self._asked(client, opened, "Before")
            started = time.monotonic()
            job = self._job(opened)
            task = self._post(client, job)
            losses = self._follow_losses(client, task, job.spec.schedule.total_steps)
            task_seconds = time.monotonic() - started
            found = client.result(task, control=self._home.control)
            self._write(found)
            is_verified = self._verify()
            self.bill = client.bill(task)
            after = self._asked(client, opened, "After", found)
        usage = self._meter.look(self._members())
        return Report(
            losses, _known(before.texts), _known(after.texts), self._is_same(opened, after), is_verified,
            time.monotonic() - self._began, task_seconds, sum(one.processor_s for one in usage.values()),
            self._meter.peak_bytes,
        )  # fmt: skip

    @property
    def _url(self) -> str:
        return f"http://{dial_target(load_node_options(self._home).rpc.listen)}"

    def _prompts(self, opened: OpenModel) -> list[list[int]]:
        shape = opened.shape
        found = prompts_of(prompt_lines(), opened.tokeniser(), shape.vocabulary, shape.context)
        return [list(one.tokens) for one in found]

    def _asked(self, client: Client, opened: OpenModel, when: str, tuned: TaskResult | None = None) -> Answers:
        """Have the named questions answered by a task, with adapters if any, and say what came back."""
        settings = GeneratingSettings(new_tokens=NEW_TOKENS, batch=len(NAMED))
        job = make_generating(opened, prompt_lines(), settings, tuned=tuned, **self._terms(when))
        self._tell(f"{when}: a task asks {len(NAMED)} questions, for {NEW_TOKENS} tokens each.")
        task = self._post(client, job)
        for _ in self._follow(client, task):
            pass
        tokens = [one[:NEW_TOKENS] for one in client.result(task, control=self._home.control).completions()]
        answers = Answers(tokens, [opened.tokeniser().decode(one).strip() for one in tokens])
        self._show_answers(when, answers.texts)
        return answers

    def _terms(self, name: str) -> dict[str, Any]:
        return {
            "seed": digest(b"demonstration", name.encode()), "match_ms": 600_000,
            "max_price_per_tera_unit": MAX_PRICE_PER_TERA_UNIT,
        }  # fmt: skip

    def _post(self, client: Client, job: TuningJob | GeneratingJob) -> bytes:
        """Show the quote of a job, and post it; its blobs go to the requester's node."""
        quoted = client.quote_job(job.spec)
        amounts = quoted.amounts
        parts = {
            "work at the price limit": amounts.price, "checks at most": amounts.verification,
            "fee": amounts.fee, "preparation": amounts.preparation,
        }  # fmt: skip
        told = ", ".join(f"{name} {show_amount(amount)}" for name, amount in parts.items())
        self._tell(f"Quote: {told}. {show_amount(amounts.total)} are locked; what is not used comes back.")
        task = client.post_job(self._plan.requester, job, control=self._home.control).id
        self._tell(f"Task {hexed(task)} is posted; its blobs have {len(job.model) + len(job.rows):,} bytes.")
        return task

    def _is_same(self, opened: OpenModel, after: Answers) -> bool | None:
        """Tell whether transformers and PEFT answer with the same tokens; None where they are not installed."""
        if not _HAS_PEFT:
            self._tell("transformers and PEFT are not installed (make peft): the folder was not loaded with them.")
            return None
        is_same = answers_of_peft(self._model, self._out, self._prompts(opened)) == after.tokens
        told = "the same tokens" if is_same else "OTHER TOKENS"
        self._tell(f"transformers and PEFT load {self._out}. They answer with {told}.")
        return is_same

    def _job(self, opened: OpenModel) -> TuningJob:
        total = self._epochs * len(taught()) // BATCH
        settings = TuningSettings(
            steps=total,
            batch=BATCH,
            learning_rate_nano=RATE_NANO,
            schedule=SCHEDULE,
            segment_steps=SEGMENT_STEPS,
            window_steps=WINDOW_EPOCHS * len(taught()) // BATCH,
        )
        job = make_tuning(opened, ROWS.read_bytes(), settings, **self._terms("tune"))
        part: Any = job.spec.part
        each = f"{job.spec.step_units / 1e9:.0f} x 10^9 work units"
        self._tell(
            f"{self._model.name}: {len(job.model):,} bytes, frozen as integers of 16 bits. "
            f"{part.dataset.rows} rows of {part.dataset.length} tokens at most. "
            f"{counted(total, 'step')} of {BATCH} rows, {each} each."
        )
        return job

    def _follow(self, client: Client, task: bytes) -> Iterator[TaskUpdate]:
        """Say what happens until a task has settled, and yield each update. Raises TaskEnded."""
        phase = ""
        for update in client.follow(task, timeout_s=TASK_TIMEOUT_S):
            say_update(update, self._tell, next_of_update(client, update))
            phase = update.task.phase
            yield update
        if phase != "settled":
            raise TaskEnded(f"the task ended {phase}")

    def _follow_losses(self, client: Client, task: bytes, total: int) -> list[float]:
        """Say what happens until the task has settled; return the mean loss of each epoch."""
        each, known = dict[int, float](), set[int]()
        steps, told = total // self._epochs, 0
        for update in self._follow(client, task):
            for number in {window.number for window in update.windows} - known:
                known.add(number)
                each |= self._losses(client, task, number)
            while told < self._epochs and all(step in each for step in range((told + 1) * steps)):
                self._tell(f"  epoch {told + 1}: the mean loss of a token is {_mean(each, told, steps):.2f}")
                told += 1
        return [_mean(each, epoch, steps) for epoch in range(self._epochs)]

    def _losses(self, client: Client, task: bytes, window: int) -> dict[int, float]:
        """Return the mean loss of each step of a proved window, as its segments commit to it."""
        shown = list(client.items("dekube_getTaskWindows", task=hexed(task)))[window]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "leaves"
            name = bytes.fromhex(shown["proof"]["leaves_blob"].removeprefix("0x"))
            client.download(name, file, task=task, window=window)
            leaves = decode_leaves(file.read_bytes())
        found = dict[int, float]()
        for leaf in leaves:
            total = struct.unpack("<d", leaf.loss_bits.to_bytes(8, "little"))[0]
            span = range(leaf.step_from, leaf.step_to)
            found |= dict.fromkeys(span, total / len(span))
        return found

    def _write(self, found: TaskResult) -> None:
        """Write the folder of adapters, as `dekube task result --base` does."""
        plan = found.spec.plan()
        assert isinstance(plan, TuningPlan)
        receipt = receipt_of(
            plan.shape, found.state, base=BASE, model_root=found.spec.model_root(),
            rows_root=found.spec.dataset.root, task=found.task,
        )  # fmt: skip
        self._out.mkdir(parents=True, exist_ok=True)
        for name, content in adapter_folder(receipt, found.state.tensors).items():
            (self._out / name).write_bytes(content)
        self._tell(f"The adapters are in {self._out}.")

    def _verify(self) -> bool:
        """Have the folder checked against the chain by the command that anybody may use."""
        command = [sys.executable, "-m", "node", "verify", str(self._out), "--rpc", self._url, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self._tell(f"dekube verify: {done.stderr.strip()}")
            return False
        found = json.loads(done.stdout)
        self._tell(f"dekube verify: the folder is proved by window {found['window']} of the task.")
        return bool(found["proved"])

    def _show_answers(self, when: str, texts: Sequence[str]) -> None:
        for question, text in zip(NAMED, texts, strict=True):
            mark = "as taught" if text == taught()[question] else "not as taught"
            self._tell(f"{when}: {question} {text!r} ({mark})")


def _mean(each: Mapping[int, float], epoch: int, steps: int) -> float:
    return sum(each[step] for step in range(epoch * steps, (epoch + 1) * steps)) / steps


def _known(texts: Sequence[str]) -> int:
    return sum(text == taught()[question] for question, text in zip(NAMED, texts, strict=True))
