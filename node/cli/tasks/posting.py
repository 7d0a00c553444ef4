"""``dekube task quote`` and ``create``: a job, its locked price, and the source of its data set."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from node.cli.arguments import AMOUNT, OUTPUT_FILE, PathName, WholeNumber
from node.cli.blobs import show_progress
from node.cli.commands import next_command
from node.cli.confirm import send_signed, yes_option
from node.cli.files import check_overwrite, overwrite_option
from node.cli.jobs import read_spec, spec_to_json, write_file
from node.cli.option_conflicts import not_with, only_with, refuse_given
from node.cli.output import counted, json_option, show, show_amount, show_fields, show_span
from node.cli.prices import PER_TERA_UNIT
from node.cli.session import Session, reading_options, session_options
from node.cli.tasks.adapters import rows_of, tuned_of
from node.cli.tasks.container_live import live_lines
from node.cli.tasks.expected import expected_lines, expected_of
from node.cli.tasks.group import (
    MEMBERS_MAX,
    check_seats,
    group_document,
    group_lines,
    post_group,
    seats_price,
    tell_posted,
)
from node.cli.tasks.job_file import read_job
from node.cli.tasks.keeping import CustodyAsk, plain_dataset
from node.cli.tasks.private import (
    KeptContainer,
    PrivateTask,
    check_budget,
    kept_input,
    reading_machines,
    seat_terms,
    send_ask,
)
from node.cli.tasks.quote_lines import told_custody, told_prices, told_time, told_work
from node.cli.tasks.told import told_job
from node.cli.tasks.verifying import count_verifiers, told_verifiers
from node.cli.tasks.watch import WATCH_TIMEOUT_S, expect_settled, record_of, say, watch_to_end
from node.cli.workflows import create_all, quote_all
from node.market.posting import DIGITS_BLOB, DIGITS_FACTS, Job, make_digits_job, put_digits_of
from node.market.private_jobs import INPUTS, put_private
from rpc.client import Client, JobRefused
from rpc.client.containers import ContainerJob, seal_job, with_sealing
from rpc.client.core import hexed
from rpc.client.jobs import JobQuote, at_price, blobs_of, make_job
from rpc.client.results import Receipt, TaskQuote
from rpc.client.sealing import Sealing
from rpc.client.stores import is_remote
from state.primitives.amounts import DECIMALS, format_units
from state.primitives.errors import ConfigError, DekubeError
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction
from tasks.custody.keys import public_key_root
from tasks.custody.secrets import NO_SECRETS
from tasks.custody.shares import HOLDERS_MAX
from tasks.engines.errors import UnsupportedJob
from tasks.ledger.custody_quotes import CUSTODY_TOO_DEAR, FEW_CUSTODIANS
from tasks.ledger.quorum_records import SEATS, SEATS_FIRST
from tasks.ledger.screening import dataset_objections
from tasks.ledger.transitions import CREATE_TASK, task_id_of
from tasks.requests.terms import Terms
from tasks.spec import PRICE_MAX, STEPS_MAX, JobSpec, container_of, decode_spec, encode_spec

if TYPE_CHECKING:
    from rpc.client.making import MadeJob

__all__ = ["DIGITS_ENDS", "create", "quote"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

MAX_PRICE_DEFAULT: Final = 5 * 10**15
MATCH_S_DEFAULT: Final = 600
SEGMENT_STEPS: Final = 10
DIGITS_ENDS: Final = (64, 10)
"""Features and classes of the built-in data set. A worker refuses a job with other widths, after the fee is
paid."""
STEPS_DEFAULT: Final = 600
WINDOWS_DEFAULT: Final = 3


RECIPE: Final = ("--data", "--steps", "--windows", "--widths", "--max-price", "--match-s", "--seed")
"""Defaults for a job without a file."""
_SAID_BY_FILE: Final = ("--data", "--steps", "--windows", "--widths")
"""Those of them that a file of a job says itself."""


_ONE_PRICE: Final = ("--max-price", "--match-s", "--seed", "--members", "--spares")
_ONE_TASK: Final = (
    *_ONE_PRICE, "--custody", "--no-custody", "--private", "--keep-input", "--holders", "--threshold",
)  # fmt: skip
"""Options of a single task; a file of several tasks says the terms of all."""


_PROVEN_ONLY: Final = ("--custody", "--keep-input", "--dataset", "--members", "--spares")
"""Options of jobs whose windows are proven."""


class _Recipe(NamedTuple):
    spec_file: Path | None
    job_file: Path | None
    data: str
    steps: int
    windows: int
    widths: str
    max_price: int | None
    match_s: int | None
    seed: str


def _recipe_options(function: _Function) -> _Function:
    def wrapped(
        spec_file: Path | None, job_file: Path | None, data: str, steps: int, windows: int, widths: str,
        max_price: int | None, match_s: int | None, seed: str, **arguments: Any,
    ) -> Any:  # fmt: skip
        recipe = _Recipe(spec_file, job_file, data, steps, windows, widths, max_price, match_s, seed)
        return function(recipe=recipe, **arguments)

    wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
    wrapped.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--seed", default="", metavar="TEXT",
                     help="Seed of the weights and the sample order; equal seeds give equal results. "
"Default: random."),
        click.option("--match-s", default=None, show_default=str(MATCH_S_DEFAULT), type=WholeNumber(1, 86_400),
                     help="Seconds to search for a worker before the task expires."),
        click.option("--max-price", default=None, type=AMOUNT,
                     show_default=format_units(MAX_PRICE_DEFAULT, DECIMALS),
                     help="Highest price per 10^12 work units, in DKB."),
        click.option("--widths", default="64,256,128,10", show_default=True, metavar="N,N,...",
                     help="Units of the model's layers, from features to classes."),
        click.option("--windows", default=WINDOWS_DEFAULT, show_default=True, type=WholeNumber(1, 10_000),
                     help="Number of windows. Each is proved, verified and paid separately."),
        click.option("--steps", default=STEPS_DEFAULT, show_default=True, type=WholeNumber(1, STEPS_MAX),
                     help=f"Number of training steps: a multiple of {SEGMENT_STEPS} for each window."),
        click.option("--data", default="digits", show_default=True, type=click.Choice(["digits"]),
                     help="Built-in data set: handwritten digits of scikit-learn."),
        click.option("--file", "-f", "job_file", type=PathName(), metavar="FILE",
                     help="Read the job from FILE (YAML): see `dekube templates`."),
        click.option("--spec", "spec_file", type=PathName(), metavar="FILE",
                     help="Read the job from FILE: canonical bytes or JSON (see `task quote --save`)."),
    ):  # fmt: skip
        option(wrapped)
    return wrapped  # type: ignore[return-value]


class _Unposted(NamedTuple):
    """The canonical bytes of a job, and what was made of a file: its blobs are not uploaded yet."""

    raw: bytes
    made: MadeJob | None = None
    terms: Terms = Terms()


def _job(session: Session, client: Client, recipe: _Recipe, *, has_custody: bool) -> _Unposted:
    """Return the job, of which nothing is uploaded yet."""
    if recipe.spec_file is not None:
        return _Unposted(read_spec(recipe.spec_file))
    if recipe.max_price is not None and not 0 < recipe.max_price <= PRICE_MAX:
        most = show_amount(PRICE_MAX)
        raise click.BadParameter(f"the price must be above 0 DKB and at most {most}", param_hint="--max-price")
    if recipe.job_file is not None:
        return _job_of_file(session, client, recipe, recipe.job_file, has_custody=has_custody)
    seed = _seed(recipe.seed)
    if recipe.steps % recipe.windows or recipe.steps // recipe.windows % SEGMENT_STEPS:
        raise click.UsageError(
            f"{counted(recipe.steps, 'step')} in {counted(recipe.windows, 'window')}: the steps of each window "
            f"must be a multiple of {SEGMENT_STEPS}; change --steps or --windows"
        )
    try:
        widths = tuple(int(width) for width in recipe.widths.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{recipe.widths!r}: not numbers separated by commas; write 64,32,10", param_hint="--widths"
        ) from None
    if (widths[0], widths[-1]) != DIGITS_ENDS:
        begin, end = DIGITS_ENDS
        raise click.BadParameter(
            f"{recipe.widths!r}: the first must be {begin} and the last {end} for this data set",
            param_hint="--widths",
        )
    try:
        job = _digits_job(client, recipe, widths, seed)
    except UnsupportedJob as error:
        raise click.BadParameter(f"{recipe.widths!r}: {error}", param_hint="--widths") from None
    raw = encode_spec(job.spec)
    try:
        decode_spec(raw)
    except DekubeError as error:
        raise ConfigError(f"the job cannot run: {error}") from None
    return _Unposted(raw)


def _seed(text: str | None) -> bytes:
    return digest(b"task-seed", text.encode()) if text else secrets.token_bytes(HASH_BYTES)


def _job_of_file(session: Session, client: Client, recipe: _Recipe, file: Path, *, has_custody: bool) -> _Unposted:
    """Return the job of a file; options of the command line come before its terms."""
    found = read_job(file, session.home)
    if not found.is_single:
        raise ConfigError(f"{file}: several tasks; `dekube task create -f FILE` posts them")
    terms, request = found.terms, found.request
    if is_remote(request):
        request = client.fetch_blobs(request, control=session.control(), progress=show_progress("Fetching"))
    tuned = tuned_of(client, request, session.control())
    price = recipe.max_price if recipe.max_price is not None else terms.max_price
    match_ms = recipe.match_s * 1000 if recipe.match_s is not None else terms.match_ms
    made = make_job(
        request, seed=_seed(recipe.seed or terms.seed), max_price_per_tera_unit=price or MAX_PRICE_DEFAULT,
        match_ms=match_ms or MATCH_S_DEFAULT * 1000, tuned=tuned, data=rows_of(client, request, session.control()),
        progress=show_progress("Fetching"), verifiers=terms.verifiers,
    )  # fmt: skip
    for note in made.notes:
        say(f"Note: {note}.")
    if terms.budget is not None:
        is_kept = has_custody and terms.custody is not False
        within = client.price_within([made.spec], terms.budget, most=price, has_custody=is_kept)
        made = at_price(made, within.per_tera_unit)
    return _Unposted(encode_spec(made.spec), made, terms)


def _digits_job(client: Client, recipe: _Recipe, widths: tuple[int, ...], seed: bytes) -> Job:
    return make_digits_job(
        client,
        control=None,
        key=None,
        seed=seed,
        max_price_per_tera_unit=recipe.max_price or MAX_PRICE_DEFAULT,
        widths=widths,
        total_steps=recipe.steps,
        segment_steps=SEGMENT_STEPS,
        window_steps=recipe.steps // recipe.windows,
        match_ms=(recipe.match_s or MATCH_S_DEFAULT) * 1000,
    )


@only_with(("--yes",), "--save")
@not_with((*RECIPE, "--file"), "--spec")
@not_with(_SAID_BY_FILE, "--file")
@only_with(("--spares",), "--members")
@click.command()
@reading_options
@_recipe_options
@click.option("--members", default=1, show_default=True, type=WholeNumber(1, MEMBERS_MAX),
              help="Quote a group of so many tasks.")  # fmt: skip
@click.option("--spares", type=WholeNumber(0, MEMBERS_MAX),
              help="With --members: machines that stand by. Default: one for eight.")  # fmt: skip
@click.option("--save", type=OUTPUT_FILE, metavar="FILE", help="Write the job to FILE (JSON).")
@overwrite_option
@json_option
def quote(
    session: Session,
    recipe: _Recipe,
    members: int,
    spares: int | None,
    save: Path | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Show what creating a task would lock; nothing is sent.

    The whole price is locked, and the unused part is refunded.

    \b
    Examples:
      dekube task quote --members 8
      dekube task quote --steps 1200 --windows 6 --max-price 0.0025
      dekube task quote -f finetune.yaml
      dekube task quote --save job.json    # edit it, then: dekube task create --spec job.json
    """
    if recipe.job_file is not None and not (several := read_job(recipe.job_file, session.home)).is_single:
        refuse_given((*_ONE_PRICE, "--save"), "the file has several tasks")
        quote_all(session, several, recipe.job_file, as_json=as_json)
        return
    check_overwrite(save, yes=yes, option="--save")
    standing = check_seats(members, spares)
    if not (recipe.seed or recipe.spec_file or recipe.job_file):  # the command that posts it names it
        recipe = recipe._replace(seed=secrets.token_hex(8))
    with session.client() as client:
        raw, made, terms = _job(session, client, recipe, has_custody=True)
        quoted = client.quote_job(decode_spec(raw))
        chosen = quoted.spec.verifiers
        checking = 0 if quoted.spec.is_metered else count_verifiers(client.items("dekube_getNodes"), chosen)
    job, amounts = quoted.spec, quoted.amounts
    kept = terms.custody is not False
    objections = [*_objections(quoted), *(_noticed(amounts, CUSTODY_TOO_DEAR) if kept else ())]
    spec = spec_to_json(job)
    if save is not None:
        import json

        write_file(save, (json.dumps(spec, indent=2) + "\n").encode())
    if as_json:
        parts = (
            "price",
            "verification",
            "fee",
            "preparation",
            "custody",
            "custody_lines",
            "total",
            "limit",
            "checks",
            "calls",
            "notices",
            "machines",
            "reported",
        )
        told = [{"code": code, "text": text} for code, text in objections]
        readers = (
            {"machines_reading": reading_machines(job)}
            if job.is_metered
            else {"machines_verifying": checking, "machines_reading": checking + 1}
        )
        group = {} if members == 1 else {"group": group_document(amounts, members, standing)}
        show(
            {
                **{name: amounts.document[name] for name in parts},
                **group,
                **readers,
                "expected": None if (hoped := expected_of(job, amounts)) is None else hoped.document(),
                "objections": told,
                "spec": spec,
            }
        )
        if objections:
            raise JobRefused(objections)
        return
    show_fields(
        {
            **({} if made is None else told_job(made)),
            **(
                told_time(job, amounts)
                if job.is_metered
                else told_work(job, amounts) | told_verifiers(chosen, checking)
            ),
            "protocol fee": show_amount(amounts.fee),
            "preparation": show_amount(amounts.preparation),
            **told_custody(amounts),
            "locked in all": show_amount(amounts.total),
            **expected_lines(expected_of(job, amounts)),
            **({} if members == 1 else group_lines(amounts, members, standing)),
            **({} if terms.budget is None else {"budget": show_amount(terms.budget)}),
            "price limit": f"{show_amount(amounts.limit)} {PER_TERA_UNIT}",
            **told_prices(amounts),
        },
        as_json=False,
        title="Quote",
    )
    if save is not None:
        create = next_command("task", "create", "--spec", save)
        if made is not None:  # that uploads its blobs too
            create = next_command("task", "create", "--file", recipe.job_file or "", *_terms(recipe))
        click.echo(f"\nThe job is in {save}. Post it: {create}")
    _tell_notices(amounts, with_data=recipe.spec_file is not None)
    if objections:
        raise JobRefused(objections)


def _size(spec: JobSpec) -> str:
    """Return how much a job is, and of a container what stands for it."""
    if not spec.is_metered:
        return f"{counted(spec.schedule.total_steps, 'step')} in {counted(spec.windows, 'window')}"
    how = f"on {SEATS_FIRST} or {SEATS} machines that must agree" if spec.is_quorum else "nothing of it proven"
    return f"a container for {show_span(1000 * spec.schedule.total_steps)} at most, {how}"


def _terms(recipe: _Recipe) -> tuple[object, ...]:
    """Return the options that were given beside the file."""
    price = () if recipe.max_price is None else ("--max-price", format_units(recipe.max_price, DECIMALS))
    match_s = () if recipe.match_s is None else ("--match-s", recipe.match_s)
    return *price, *match_s, *(("--seed", recipe.seed) if recipe.seed else ())


def _objections(quoted: JobQuote) -> list[tuple[str, str]]:
    """Return the obstacles to a job; the gateway's node may not hold the built-in data set yet."""
    found = list(quoted.objections)
    if not quoted.spec.is_metered and quoted.spec.dataset.blob == DIGITS_BLOB:
        here = dataset_objections(quoted.spec, DIGITS_FACTS)
        found += [(code, text) for code, text in here if code not in dict(found)]
    return found


def _noticed(quoted: TaskQuote, code: str) -> list[tuple[str, str]]:
    """Return a notice that is an obstacle to what is asked for."""
    return [(item.code, item.text) for item in quoted.notices if item.code == code]


def _tell_notices(quote: TaskQuote, *, with_data: bool) -> None:
    """Print why a job may have to wait, and the workers' messages; a data set that will be uploaded is not
    reported.
    """
    for item in quote.notices:
        if item.code == CUSTODY_TOO_DEAR:
            continue  # where custody is asked for it is an obstacle
        if with_data or item.code not in ("dataset_not_held", "model_not_held"):
            say(f"Note: {item.text}.")
    if (report := quote.reported) is not None:
        times = "a worker has" if report.times == 1 else f"{report.times} workers have"
        say(
            f"Note: {times} given this very job up, the last one at height {report.height}: "
            f"{report.reason.replace('_', ' ')} (task {hexed(report.task)})."
        )


@not_with(("--no-custody",), "--private", "--keep-input", "--holders")
@only_with(("--spares",), "--members")
@only_with(("--name",), "--file")
@not_with(("--keep-input",), "--members")
@not_with((*RECIPE, "--file"), "--spec")
@not_with((*_SAID_BY_FILE, "--dataset"), "--file")
@click.command()
@session_options
@_recipe_options
@click.option("--custody/--no-custody", "is_kept", default=None,
              help="Have drawn machines keep the outputs. Default: if the chain has custody.")  # fmt: skip
@click.option("--private", "is_private", is_flag=True,
              help="Encrypt the data set and the outputs. Implies --custody.")  # fmt: skip
@click.option("--keep-input", "keeps_input", is_flag=True,
              help="Have drawn machines keep the data set too. --holders implies it.")  # fmt: skip
@click.option("--dataset", type=PathName(), metavar="FILE",
              help="With --spec and --private or --keep-input: the plain data set.")  # fmt: skip
@click.option("--holders", default=0, show_default=True, type=WholeNumber(0, HOLDERS_MAX),
              help="Machines that keep a container, or shares of a key, while you are away.")  # fmt: skip
@click.option("--threshold", type=WholeNumber(1, HOLDERS_MAX),
              help="Shares that make the key. Default: more than half.")  # fmt: skip
@click.option("--members", default=1, show_default=True, type=WholeNumber(1, MEMBERS_MAX),
              help="Tasks with seeds of their own, on machines of like speed.")  # fmt: skip
@click.option("--spares", type=WholeNumber(0, MEMBERS_MAX),
              help="With --members: machines that stand by. Default: one for eight.")  # fmt: skip
@click.option("--watch", "watches", is_flag=True, help="Follow the task until it ends.")
@click.option("--anyway", is_flag=True, help="Create the task even if no machine can run it now.")
@click.option("--name", metavar="TEXT",
              help="With a file of several tasks: the workflow's name. Default: the file's.")  # fmt: skip
@yes_option
@json_option
def create(
    session: Session, recipe: _Recipe, is_kept: bool | None, is_private: bool, keeps_input: bool,
    dataset: Path | None, holders: int, threshold: int | None, members: int, spares: int | None, watches: bool,
    anyway: bool, name: str | None, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Create a task: lock its price and let the chain assign a worker.

    Default: train a classifier of handwritten digits in 600 steps. The data set is uploaded to the node in
    --home. With --rpc, or without that node, a gateway receives it, signed with --key. Workers download it
    from there.

    For --spec, the command warns before payment if the node lacks the data set. It refuses an impossible
    job before anything is locked. A job is impossible if the data set or init_root does not match. It is
    impossible also if no machine meets its requirements.

    With --file the job is that of a file with a model, data and settings. Model and data are read and
    checked here, and uploaded with the task. `dekube templates` shows files for each kind.

    On a chain with custody drawn machines keep the outputs, unless you give --no-custody. Then nobody but
    the worker answers for them.

    A file may have an array or steps: then all its tasks are posted. If the command is interrupted, run it again.

    With --private the data set, the states and the outputs are encrypted. Of a container these are its mounts,
    checkpoints, output and log. The node in --home hands the key to the worker. With --holders that many
    machines keep shares of the key. They keep what a container reads and makes, too. Drawn machines keep the
    data set. Then your node may be offline after this command. For a public task --keep-input does the same.

    With --members N the job is done N times, each time with another seed. All N get machines at once, or none.

    \b
    Examples:
      dekube task create --watch
      dekube task create --members 4 --watch
      dekube task create -f finetune.yaml --watch
      dekube task create --private --holders 3
      dekube task create --steps 1200 --windows 6 --max-price 0.0025 --seed mine
      dekube task create --spec job.json --rpc http://127.0.0.1:8545 --key wallet.json
    """
    if recipe.job_file is not None and not (job := read_job(recipe.job_file, session.home)).is_single:
        refuse_given(_ONE_TASK, "the file has several tasks")
        create_all(session, job, recipe.job_file, name, anyway=anyway, yes=yes, watches=watches, as_json=as_json)
        return
    wanted = _Wanted(is_kept, is_private, keeps_input, dataset, holders, threshold, members, spares, anyway)
    key = session.key()
    with session.client() as client:
        order = _order(session, client, key, recipe, wanted)
        if members > 1:
            posted = _post_members(session, order, yes=yes)
            tell_posted(client, *posted, watches=watches, as_json=as_json)
            return
        _tell_created(client, *_post_one(session, order, yes=yes), session if watches else None, as_json=as_json)


class _Wanted(NamedTuple):
    """The options of one task beside its job."""

    is_kept: bool | None
    is_private: bool
    keeps_input: bool
    dataset: Path | None
    holders: int
    threshold: int | None
    members: int
    spares: int | None
    anyway: bool

    @property
    def needs_dataset(self) -> bool:
        """Whether the plain data set of a proven job is needed here."""
        return bool(self.is_private or self.keeps_input or self.holders)

    @property
    def keeps_data(self) -> bool:
        """Whether drawn machines are to keep the data set."""
        return bool(self.keeps_input or self.holders)


class _Order(NamedTuple):
    """A task that is about to be posted: quoted, without an obstacle, and nothing of it is uploaded."""

    client: Client
    key: SecretKey
    job: _Unposted
    spec: JobSpec
    quoted: TaskQuote
    wanted: _Wanted
    is_kept: bool | None
    private: PrivateTask | None
    sealed: KeptContainer | None
    plain: bytes | None
    standing: int
    locked: int
    what: dict[str, str]
    """What the owner is told before it is signed."""

    @property
    def raw(self) -> bytes:
        """The canonical bytes of the specification."""
        return self.job.raw


def _order(session: Session, client: Client, key: SecretKey, recipe: _Recipe, wanted: _Wanted) -> _Order:
    """Read and quote the job. Raises JobRefused for an obstacle, unless the task is wanted anyway."""
    job = _job(session, client, recipe, has_custody=wanted.is_kept is not False)
    made, spec = job.made, decode_spec(job.raw)
    is_kept = job.terms.custody if wanted.is_kept is None else wanted.is_kept
    plain = private = sealed = None
    if spec.is_metered:
        refuse_given(_PROVEN_ONLY, "a container has neither custody nor groups")
        is_kept = False
        job, sealed = _sealed(session, client, key, job, wanted)
        made, spec = job.made, decode_spec(job.raw)
    elif wanted.needs_dataset:
        plain = plain_dataset(spec, wanted.dataset) if made is None else made.rows
    if wanted.is_private and plain is not None:
        private = PrivateTask(session, client, key, spec, plain, wanted.holders, wanted.threshold)
        spec = private.job.spec
        job = job._replace(raw=encode_spec(spec))
    if made is None and not spec.is_metered and spec.dataset.blob != DIGITS_BLOB:
        for given in spec.inputs()[0 if private is None else 1 :]:
            _tell_of_data(client, given.blob)
    if private is None:
        found = client.quote_job(spec)
        quoted, objections = found.amounts, _objections(found)
    else:
        quoted = client.quote_task(job.raw)
        objections = private.objections(quoted)
    if wanted.keeps_data and sealed is None:
        objections += _noticed(quoted, FEW_CUSTODIANS)
    if is_kept is not False:
        objections += _noticed(quoted, CUSTODY_TOO_DEAR)
    if objections and not wanted.anyway:
        raise JobRefused(objections)
    for _, text in objections:
        say(f"Note: {text}.")
    _tell_notices(quoted, with_data=False)
    standing = check_seats(wanted.members, wanted.spares)
    locked = quoted.total if wanted.members == 1 else seats_price(quoted, wanted.members, standing)
    return _Order(
        client, key, job, spec, quoted, wanted, is_kept, private, sealed, plain, standing, locked,
        _told_before(spec, locked, wanted.members),
    )  # fmt: skip


def _sealed(
    session: Session, client: Client, key: SecretKey, job: _Unposted, wanted: _Wanted
) -> tuple[_Unposted, KeptContainer | None]:
    """Seal a container that asks for it. Raises ConfigError, UsageError."""
    made = job.made
    if not isinstance(made, ContainerJob):
        if container_of(decode_spec(job.raw)).sealed is not None or wanted.is_private:
            raise click.UsageError("mounts and secrets are sealed from the job's own file: give it with --file")
        return job, _kept(session, client, key, decode_spec(job.raw), wanted)
    if wanted.is_private and (made.sealing is None or not made.sealing.is_private):
        secrets = NO_SECRETS if made.sealing is None else made.sealing.secrets
        made = with_sealing(made, Sealing(is_private=True, secrets=secrets))
    if made.sealing is None:
        return job, _kept(session, client, key, made.spec, wanted)
    sealed = KeptContainer(session, client, key, made.spec, wanted.holders, wanted.threshold)
    made = seal_job(made, key)
    return job._replace(raw=encode_spec(made.spec), made=made), sealed


def _kept(
    session: Session, client: Client, key: SecretKey, spec: JobSpec, wanted: _Wanted
) -> KeptContainer | None:  # fmt: skip
    """Return who keeps a container of which nothing is sealed; None if nobody is asked to."""
    if not wanted.holders:
        return None
    return KeptContainer(session, client, key, spec, wanted.holders, wanted.threshold)


def _told_before(spec: JobSpec, locked: int, members: int) -> dict[str, str]:
    """Return what the owner is told of a task before it is signed."""
    return {
        "does": f"posts {'a task' if members == 1 else f'a group of {members} tasks'}: {_size(spec)}",
        "locks": f"{show_amount(locked)}; what is not used comes back",
        "price": f"at most {show_amount(spec.max_price_per_tera_unit)} {PER_TERA_UNIT}",
    }


def _bring(session: Session, order: _Order) -> None:
    """Put the blobs of a job where workers find them."""
    client, key, made, private = order.client, order.key, order.job.made, order.private
    if made is not None:
        blobs = blobs_of(made) if private is None else blobs_of(made)[:-1]
        client.put_contents(blobs, control=session.control(), key=key, progress=show_progress("Uploading the job"))
    if private is not None:
        put_private(client, private.job, private.control)
        return
    if order.spec.is_metered:
        return
    put_digits_of(
        client, order.raw, control=session.control(), key=key, progress=show_progress("Uploading the data set")
    )


def _post_members(
    session: Session, order: _Order, *, yes: bool
) -> tuple[bytes, Receipt, int, dict[str, list[str]]]:
    """Post a group; return its id, the receipt, what is locked, and who keeps shares of its key."""
    client, members, private = order.client, order.wanted.members, order.private
    seats = seat_terms(order.spec, order.quoted, private, order.is_kept, members, order.what)
    if order.job.terms.budget is not None:
        custody = 0 if seats is None else members * order.quoted.custody
        check_budget(client, order.job.terms.budget, order.locked + custody, None)
    group, receipt = post_group(
        client, order.key, order.raw, order.quoted, members, order.standing, order.what,
        partial(_bring, session, order), terms=seats, yes=yes,
    )  # fmt: skip
    shares = private.share_seats(group, members + order.standing) if private is not None else {}
    return group, receipt, order.locked, shares


def _post_one(session: Session, order: _Order, *, yes: bool) -> tuple[bytes, Receipt, int, dict[str, list[str]]]:
    """Post a task; return its id, the receipt, what is locked, and who keeps shares of its key."""
    client, key, private, spec, quoted = order.client, order.key, order.private, order.spec, order.quoted
    ask = None
    if private is not None:
        ask = CustodyAsk(client, key, private.job.key_root, INPUTS, quoted.custody)
        order.what["read by"] = private.readers
    elif order.is_kept or (order.is_kept is None and (quoted.custody or order.wanted.keeps_input)):
        ask = CustodyAsk(client, key, public_key_root(spec.windows), 0, quoted.custody)
    if order.sealed is not None:
        order.what["read by"] = order.sealed.readers
        if order.sealed.kept:
            order.what["kept"] = order.sealed.kept
    if ask is not None:
        if order.wanted.keeps_data:
            ask.kept = kept_input(client, key, spec, private, order.plain or b"", quoted)
        order.what["custody"] = ask.told
    if order.job.terms.budget is not None:
        check_budget(client, order.job.terms.budget, order.locked, ask)
    receipt, signed = send_signed(
        client, key, CREATE_TASK, [order.raw], order.what, yes=yes, prepare=partial(_bring, session, order),
        beside=partial(send_ask, ask, key) if ask is not None else None,
    )  # fmt: skip
    task_id = task_id_of(key.address, decode_transaction(signed).nonce)
    if ask is not None:
        ask.finish(task_id)
    owner = private or order.sealed
    shared = owner.share(task_id) if owner is not None else {}
    return task_id, receipt, order.locked, shared


def _tell_created(
    client: Client, task: bytes, receipt: Receipt, locked: int, shared: Mapping[str, Any],
    watching: Session | None, *, as_json: bool,
) -> None:  # fmt: skip
    """Print what was created; with a session, follow it. Raises TaskEnded unless it settles then."""
    answer = {
        "task": hexed(task),
        "transaction": receipt.transaction_hash,
        "height": receipt.block.height,
        "locked": str(locked) if as_json or watching is not None else show_amount(locked),
        **shared,
    }
    if watching is None:
        show_fields(answer, as_json=as_json)
        if not as_json:
            click.echo(f"\nFollow it: {next_command('task', 'watch', hexed(task))}")
        return
    if not as_json:
        click.echo(f"Task {hexed(task)}")
    with live_lines(watching, record_of(client, task), partial(say, err=as_json)):
        answer["phase"] = watch_to_end(client, task, as_json, WATCH_TIMEOUT_S)
    if as_json:
        show(answer)
    expect_settled(task, str(answer["phase"]))


def _tell_of_data(client: Client, blob: bytes) -> None:
    """Print if no source of the job's data set is known, before anything is paid."""
    if client.is_held(blob) is False:
        say(
            f"Note: the node that is asked does not hold the data set {hexed(blob)}, and nobody else is known to. "
            "The worker will ask the whole network; where nobody has it, the task expires: its price comes back, "
            "the fee of this transaction does not. `dekube blob put FILE` puts a data set there."
        )
