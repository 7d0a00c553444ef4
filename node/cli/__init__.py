"""The command ``dekube``: a tree of commands; each module is loaded when its command is used."""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from node.cli.output import show_amount, show_gwei
from node.cli.terminal import printable, printable_lines
from state.primitives.errors import DekubeError, StoreError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from _typeshed import ReadableBuffer

__all__ = ["group", "main"]

EXIT_USAGE: Final = 2
EXIT_FAILED: Final = 1
EXIT_PHASES: Final = {"failed": 3, "cancelled": 4, "expired": 5}
"""How a task ended that a command has followed."""
EXIT_NEEDS_OPERATOR: Final = 78
"""EX_CONFIG: a restart does not help and may harm until the operator has intervened. Service managers do not
restart then."""
NEEDS_OPERATOR: Final = frozenset(
    {
        *("guard_missing", "guard_corrupt", "guard_outdated", "guard_retired", "doppelganger"),
        *("upgrade_required", "safety", "state_divergence"),
    }
)
"""Error codes, and reasons of a consensus halt, that end with EXIT_NEEDS_OPERATOR."""
SERVICES: Final = frozenset({("node", "run"), ("signer", "run"), ("relay", "run")})
"""Commands that a service manager starts and restarts."""
SURVIVES_LOG_SIGNALS: Final = SERVICES | {("faucet", "run")}
"""Commands that ignore log rotation signals from their start on."""
PERMANENT_ERRORS: Final = frozenset(
    {
        *("trust_expired", "checkpoint_mismatch", "fork_found", "config_error", "keystore_error"),
        *("store_damaged", "store_incompatible", "store_other_chain"),
    }
)
"""Error codes that end a service with EXIT_NEEDS_OPERATOR: a restart would find the same error."""
REPAIR: Final = "dekube db repair"
REMEDIES: Final = {
    "store_damaged": f"stop the node, then run `{REPAIR}`: it moves the database aside and syncs from peers. "
    "Keys and vote guard do not change",
    "store_incompatible": "install the release that wrote it, or run `dekube db repair`: it moves the database "
    "aside and syncs from peers",
    "store_other_chain": "genesis.json is of another network than the database: restore the right file, "
    "or create another home for the other network (dekube init --home DIR)",
}
"""What to do about errors of layers that know no commands, by error code."""
TEXT_CHARACTERS_MAX: Final = 1_000
MULTILINE_ERROR: Final = "testnet_error"
"""Error code of errors that quote several log lines of a local process."""
_COINS: Final = re.compile(r"\b(balance|cost|overshot|needed) ([0-9]{1,40})\b")
_DUE: Final = re.compile(r"\b([0-9]{1,40}) (is due|was offered)\b")
_FEES: Final = re.compile(r"\b(maxFeePerGas|maxPriorityFeePerGas|baseFee|tip of|part of,) ([0-9]{1,40})\b")
_NEGATIVE: Final = re.compile(r"-[0-9.]")
ERRORS_WITH_AMOUNTS: Final = frozenset(
    {
        *("insufficient_funds", "payment_missing", "fee_cap_too_low", "tip_above_fee_cap"),
        *("replacement_underpriced", "config_error"),
    }
)
"""Codes of errors whose texts contain amounts in the smallest unit."""

_COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "init": ("node.cli.init:init", "Create a node's home: keys, configuration and genesis."),
    "genesis": ("node.cli.genesis:genesis", "Create the genesis of a new chain, alone or with other founders."),
    "node": ("node.cli.run:node", "Run, check and drain a node."),
    "signer": ("node.cli.signer:signer", "Run a separate signer for a validator's vote key."),
    "db": ("node.cli.db:db", "Inspect, verify, prune or repair a node's database."),
    "relay": ("node.cli.relay:relay", "Run a relay, and manage the deposits that pay relays."),
    "wallet": ("node.cli.wallet:wallet", "Manage accounts, send payments, call contracts and sign messages."),
    "faucet": ("node.cli.faucet:faucet", "Run a faucet for a test network."),
    "tx": ("node.cli.transactions:tx", "Stake, unstake or rotate a validator's keys."),
    "task": ("node.cli.tasks:task", "Create training tasks, follow them and fetch their results."),
    "api": ("node.cli.api:api", "Serve jobs to programs that speak the OpenAI wire format."),
    "templates": ("node.cli.templates:templates", "List job files to begin with, one for each kind of job."),
    "workflow": ("node.cli.workflows:workflow", "Follow and cancel the tasks of a file with an array or steps."),
    "verify": ("node.cli.verify:verify", "Check the folder of a result against its task."),
    "model": ("node.cli.model:model", "Add, list and remove the models that job files name."),
    "blob": ("node.cli.blobs:blob", "Upload data sets and download bulk data."),
    "worker": ("node.cli.workers:worker", "Register this machine as a worker and list the market's machines."),
    "verifier": ("node.cli.verifier:verifier", "Show disputes of this machine and challenge the work of others."),
    "light": ("node.cli.light:light", "Verify accounts and transactions with a light client."),
    "contracts": (
        "node.cli.contracts:contracts",
        "Write ABI, Solidity and ERC-7730 files of the system contracts to FOLDER.",
    ),
    "validators": (
        "node.cli.validators:validators",
        "List validators with their stake, weight and performance, largest first.",
    ),
    "slashes": ("node.cli.slashes:slashes", "List slashed and jailed validators, with reasons and amounts."),
    "status": ("node.cli.status:status", "Show height, peers, consensus and jobs of the node in --home."),
    "network": (
        "node.cli.network:network",
        "List the known nodes of the network: addresses, relays and on-chain roles.",
    ),
    "bench": ("node.cli.bench:bench", "Run the benchmark NAME on this machine."),
    "completion": ("node.cli.completion:completion", "Print the completion script for SHELL: bash, zsh or fish."),
}


def _entry_points(name: str | None = None) -> EntryPoints:
    """Return the commands that installed packages add; with a name, only that one."""
    from importlib.metadata import entry_points  # as much to load as all else of a plain command

    found = entry_points(group="dekube.commands")
    return found if name is None else found.select(name=name)


class _LazyGroup(click.Group):
    """Loads a command's module on use, also those that installed packages add (entry point dekube.commands)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        added = {entry.name for entry in _entry_points()}
        return [*_COMMANDS, *sorted(added - set(_COMMANDS))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            module, _, name = _COMMANDS[cmd_name][0].partition(":")
            command: click.Command = getattr(importlib.import_module(module), name)
            return command
        for entry in _entry_points(cmd_name):
            loaded: click.Command = entry.load()
            return loaded
        return None

    def _short_help(self, ctx: click.Context, name: str) -> str:
        """Return the short help of an added command: its package's ``SHORT_HELP``, or the loaded command's
        help.
        """
        for entry in _entry_points(name):
            text = getattr(importlib.import_module(entry.module.partition(".")[0]), "SHORT_HELP", None)
            if isinstance(text, str):
                return text
        command = self.get_command(ctx, name)
        return command.get_short_help_str(80) if command is not None else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            if name in _COMMANDS:
                rows.append((name, _COMMANDS[name][1]))
            else:
                rows.append((name, self._short_help(ctx, name)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="dekube-node", prog_name="dekube")
def group() -> None:
    """Run and use a node of the DEKUBE network, a market of GPU compute.

    Validators agree on blocks, workers rent out GPUs, and requesters post tasks. The chain verifies the
    work and settles the bill.

    \b
    Examples:
      dekube testnet up                 # start a whole network on this machine
      dekube init --genesis genesis.json
      dekube node run
    """


def main() -> None:
    """Run the command line.

    A known error prints one line to standard error and sets the exit status; no traceback.
    """
    if tuple(sys.argv[1:3]) in SURVIVES_LOG_SIGNALS:
        from rpc.process.log_output import open_standard_descriptors
        from rpc.process.signals import ignore_log_signals

        open_standard_descriptors()
        ignore_log_signals()
    _hold_closed_output()
    _name_output()
    try:
        status = group.main(prog_name="dekube", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)  # a command's Exit comes back as its number
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and _NEGATIVE.match(error.option_name):
            vars(error)["message"] = f"{error.option_name}: a negative number; amounts and counts begin at 0."
        # It quotes what was given, of whatever length and with whatever in it.
        vars(error)["message"] = shortened(printable_lines(error.message))
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _print_line("Aborted.")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe went away: that is its right; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except BaseExceptionGroup as errors:
        known, unknown = errors.split((DekubeError, OSError))
        if unknown is not None and unknown.split(KeyboardInterrupt)[1] is None:
            _print_line("Aborted.")
            sys.exit(130)
        if unknown is not None:
            raise
        assert known is not None
        leaves = _leaves(known)
        for leaf in leaves:
            _print_error(leaf)
        sys.exit(max(exit_status(leaf, ends_service=_is_service()) for leaf in leaves))
    except (DekubeError, OSError) as error:
        known_error = _as_known(error)
        _drop_unwritten()
        _print_error(known_error)
        sys.exit(exit_status(known_error, ends_service=_is_service()))


def _drop_unwritten() -> None:
    """Drop unwritten standard output. The interpreter would fail on it again at exit, with status 120."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _hold_closed_output() -> None:
    """Let writes to a closed standard output fail, as in other programs.

    The interpreter drops such output, and the next opened file would get the closed descriptor's number.
    """
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # the lowest free number: 0
    if sys.stdout is None and os.open(os.devnull, os.O_RDONLY) == 1:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  until the process ends
    if sys.stderr is None:
        os.open(os.devnull, os.O_WRONLY)


class _NamedOutput(io.FileIO):
    """Standard output whose errors name it; the system's errors do not."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None


def _name_output() -> None:
    """Replace standard output by one whose errors name it, unless a caller has replaced it."""
    output = sys.stdout
    try:
        if not isinstance(output, io.TextIOWrapper) or output.fileno() != 1:
            return
    except (OSError, ValueError):
        return  # of memory, or closed
    output.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_NamedOutput(1, "w", closefd=False)),
        encoding=output.encoding,
        errors=output.errors,
        line_buffering=output.line_buffering,
        write_through=output.write_through,
    )


class OperatingSystemError(DekubeError):
    """An error of the operating system that no other code handles, such as a full disk or a read-only folder."""

    code = "io_error"

    def __init__(self, error: OSError) -> None:
        what = error.strerror or str(error) or type(error).__name__
        super().__init__(f"{os.fsdecode(error.filename)}: {what}" if error.filename else what)


def _as_known(error: DekubeError | OSError) -> DekubeError:
    return error if isinstance(error, DekubeError) else OperatingSystemError(error)


def _print_error(error: DekubeError) -> None:
    # By the class: a gateway names the code of its own errors.
    if type(error).code == MULTILINE_ERROR:
        text = printable_lines(_text(error))
    else:
        text = shortened(printable(_text(error)))
    _print_line(f"dekube: {text} [{printable(_shown_code(error))}]")


def shortened(text: str) -> str:
    """Return the text of an error, with the middle of long quoted inputs left out."""
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    part = TEXT_CHARACTERS_MAX // 2
    return f"{text[:part]} ... {text[-part:]}"


def _print_line(text: str) -> None:
    """Write a line to standard error. If that fails, only the exit status reports the error."""
    try:
        click.echo(text, err=True)
    except OSError:
        # What is left in its buffer would fail again when the interpreter ends, and replace the status by 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _text(error: DekubeError) -> str:
    """Return the text of an error, with amounts of gateways (smallest unit) shown in DKB."""
    if error.code == "gateway_unreachable" and str(error).endswith("refused"):
        return f"{error}; no gateway listens there: start the node (dekube node run), or give another with --rpc"
    if error.code == "gateway_unreachable" and str(error).endswith("HTTP status 404"):
        return f"{error}; the server there is not a gateway, or the path is wrong (see rpc.listen in config.toml)"
    if isinstance(error, StoreError) and error.code in REMEDIES and REPAIR not in str(error):
        return f"{error}; {REMEDIES[error.code]}"
    return in_coins(str(error)) if error.code in ERRORS_WITH_AMOUNTS else str(error)


def in_coins(text: str) -> str:
    """Return the text of an error with its amounts in DKB and its gas prices in gwei."""
    text = _COINS.sub(lambda found: f"{found[1]} {show_amount(int(found[2]))}", text)
    text = _DUE.sub(lambda found: f"{show_amount(int(found[1]))} {found[2]}", text)
    return _FEES.sub(lambda found: f"{found[1]} {show_gwei(int(found[2]))}", text)


def _is_service() -> bool:
    return tuple(sys.argv[1:3]) in SERVICES  # the groups have no options of their own


def _shown_code(error: DekubeError) -> str:
    """Return the code to look up: for a consensus halt, the reason of the halt."""
    return str(getattr(error, "reason", error.code)) if error.code == "consensus_halted" else error.code


def exit_status(error: DekubeError, *, ends_service: bool = False) -> int:
    """Return the program's exit status for an error.

    Errors of the operating system (a port in use, a disk not mounted yet) may be gone at the next start.
    """
    is_for_a_person = error.code in NEEDS_OPERATOR or getattr(error, "reason", None) in NEEDS_OPERATOR
    if ends_service and error.code in PERMANENT_ERRORS and not isinstance(error.__context__, OSError):
        is_for_a_person = True
    if is_for_a_person:
        return EXIT_NEEDS_OPERATOR
    return EXIT_PHASES.get(getattr(error, "phase", ""), EXIT_FAILED)


def _leaves(errors: BaseExceptionGroup[Any]) -> list[DekubeError]:
    found: list[DekubeError] = []
    for error in errors.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [_as_known(error)])
    return found
