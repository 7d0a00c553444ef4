"""Reading a request: ``kind`` says of which kind of job it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, TypeAlias

from state.primitives.amounts import format_amount
from tasks.kinds.classifier import KIND_TRAIN
from tasks.kinds.container import KIND_CONTAINER
from tasks.kinds.embed import KIND_EMBED
from tasks.kinds.evaluate import KIND_EVALUATE
from tasks.kinds.finetune import KIND_FINETUNE
from tasks.kinds.generate import KIND_GENERATE
from tasks.requests.arrays import NAME, NAME_LENGTH_MAX, STEPS, STEPS_MAX, Member, members_of, steps_named
from tasks.requests.containing import ContainerRequest, containing_of
from tasks.requests.embedding import EmbeddingRequest, embedding_of
from tasks.requests.errors import RequestInvalid
from tasks.requests.evaluating import EvaluatingRequest, evaluating_of
from tasks.requests.fields import FieldPath, JobFields
from tasks.requests.generating import GeneratingRequest, generating_of
from tasks.requests.terms import TERMS, Terms, amount_field, terms_of
from tasks.requests.training import TrainingRequest, training_of
from tasks.requests.tuning import TuningRequest, tuning_of
from tasks.requests.yaml_text import read_yaml

__all__ = [
    "KINDS", "JobFile", "Request", "Step", "kind_of", "read_file", "read_request", "request_of",
    "request_of_member",
]  # fmt: skip

_TERMS: Final = ", ".join(TERMS)
Request: TypeAlias = (
    TrainingRequest | TuningRequest | GeneratingRequest | ContainerRequest | EmbeddingRequest | EvaluatingRequest
)
KINDS: Final[Mapping[str, Callable[[JobFields], Request]]] = {
    KIND_TRAIN: training_of,
    KIND_FINETUNE: tuning_of,
    KIND_GENERATE: generating_of,
    KIND_CONTAINER: containing_of,
    KIND_EMBED: embedding_of,
    KIND_EVALUATE: evaluating_of,
}
"""What reads the fields of a kind. A request says its kind."""


class Step(NamedTuple):
    """The tasks of a step, the steps that they use, and what they may cost together (None: not said)."""

    name: str
    members: tuple[Member, ...]
    after: tuple[str, ...] = ()
    budget: int | None = None


class JobFile(NamedTuple):
    """What a file asks for, and on which terms."""

    terms: Terms
    steps: tuple[Step, ...]
    model_of: Callable[[str], str] = str
    """Returns the path of a model: a file may name one that its reader knows."""

    @property
    def is_single(self) -> bool:
        """Whether it is one job, neither an array nor several steps."""
        return len(self.steps) == 1 and not self.steps[0].members[0].varied

    @property
    def request(self) -> Request:
        """What is asked for by the only job, or the first one."""
        return self.request_of(self.steps[0].members[0])

    def request_of(self, member: Member, tasks: Mapping[str, str] | None = None) -> Request:
        """Return what a task asks for; ``tasks`` are those of the steps that it names. Raises RequestInvalid."""
        request = request_of_member(member, tasks)
        if isinstance(request, ContainerRequest) or not request.model:
            return request
        return request._replace(model=self.model_of(request.model))


def request_of_member(member: Member, tasks: Mapping[str, str] | None = None) -> Request:
    """Return what a task of a file asks for; ``tasks`` are those of the steps that it names."""
    return read_request(member.fields(tasks or {}))


def read_file(text: str, file: str) -> JobFile:
    """Return what the text of a file (YAML) asks for. Raises RequestInvalid, naming file and line."""
    document = read_yaml(text, file)
    fields = JobFields(document.values, file=file, lines=document.lines)
    terms = terms_of(fields)
    rest = {name: value for name, value in document.values.items() if name not in TERMS}
    if not fields.has(STEPS):
        steps = [Step("", members_of(rest, file=file, lines=document.lines, place=()))]
        steps_named(fields, rest, {})
    else:
        steps = _steps(fields, rest, file, document.lines)
    for step in steps:
        for member in step.members:
            request_of_member(member)
    given = sum(step.budget or 0 for step in steps)
    if terms.budget is not None and given > terms.budget:
        most = format_amount(terms.budget)
        text = f"the budgets of the jobs are {format_amount(given)} together, the budget {most}"
        raise RequestInvalid(text, file=file, line=document.lines.get(("budget",)), field="budget")
    return JobFile(terms, tuple(steps))


def _steps(fields: JobFields, rest: Mapping[str, Any], file: str, lines: Mapping[FieldPath, int]) -> list[Step]:
    for name in rest:
        if name != STEPS:
            raise fields.wrong(
                name, f"{name} belongs into one of the jobs; beside jobs there are {', '.join(TERMS)}"
            )
    table = fields.value(STEPS)
    if not isinstance(table, dict) or not 0 < len(table) <= STEPS_MAX:
        raise fields.wrong(STEPS, f"jobs: 1 to {STEPS_MAX} names with the fields of a job each expected")
    inner = JobFields(table, file=file, lines=lines, place=(STEPS,))
    found: list[Step] = []
    for name, values in table.items():
        if not NAME.fullmatch(name):
            raise inner.wrong(
                name, f"{name}: the name of a job has letters, digits and -_, {NAME_LENGTH_MAX} at most"
            )
        if not isinstance(values, dict):
            raise inner.wrong(name, f"{name}: the fields of a job expected")
        one = JobFields(values, file=file, lines=lines, place=(STEPS, name))
        budget = amount_field(one, "budget", None)
        job = {field: value for field, value in values.items() if field != "budget"}
        after = steps_named(one, job, {step.name: len(step.members) for step in found})
        members = members_of(job, file=file, lines=lines, place=(STEPS, name))
        found.append(Step(name, members, after, budget))
    return found


def read_request(fields: JobFields) -> Request:
    """Return what the fields ask for. Raises RequestInvalid."""
    kind = fields.text("kind")
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, 1)
        what = f"did you mean {near[0]}?" if near else f"{', '.join(KINDS)} expected"
        raise fields.wrong("kind", f"kind: {kind[:40]!r} is not known; {what}")
    return KINDS[kind](fields)


def kind_of(request: Request) -> str:
    """Return the kind of job that is asked for."""
    return request.kind


def request_of(values: Mapping[str, Any]) -> Request:
    """Return what the fields of a program ask for, with the names of a job file. Raises RequestInvalid."""
    return read_request(JobFields(values))
