"""``dekube worker``: this machine's entry in the market's registry, and the market's other machines."""

from __future__ import annotations

from typing import Any, Final

import click

from billing.prices import hour_price
from node.cli.arguments import AMOUNT, SHARE
from node.cli.commands import CommandGroup
from node.cli.confirm import send, yes_option
from node.cli.doctor import doctor
from node.cli.options import ask_home, home_option
from node.cli.output import counted, json_option, show, show_amount, show_fields, show_rows, show_time
from node.cli.prices import PER_TERA_UNIT, show_hour_price
from node.cli.run import drain_node
from node.cli.session import Session, endorsing_options, reading_options, session_options
from node.home.load import load_node_options
from node.home.paths import Home
from rpc.client import Client
from rpc.client.results import Receipt
from state.primitives.address import ADDRESS_BYTES, format_address, parse_address
from state.primitives.errors import ConfigError
from state.primitives.signing import personal_digest, wallet_form
from tasks.ledger.bonds import SET_TERMS, SPONSOR_NODE, WITHDRAW_SPONSOR
from tasks.ledger.registration import operator_words
from tasks.ledger.registry import NodeProfile, NodeRole
from tasks.ledger.transitions import REGISTER_NODE, RETIRE_NODE, SET_PAYOUT, UPDATE_NODE, node_payload

__all__ = ["worker"]

NOBODY: Final = "0x" + bytes(ADDRESS_BYTES).hex()
ROLES: Final = [role.name.lower() for role in NodeRole if role.name]
_COLUMNS: Final = ("machine", "status", "roles", "GPU", "speed", "slots", "price", "bond", "record")


@click.group(cls=CommandGroup)
def worker() -> None:
    """Register this machine as a worker and list the market's machines.

    A node with role compute or verify registers by itself (registry.auto_register in config.toml). It also
    performs its duties by itself. Use these commands to inspect the market, raise the bond or retire.

    \b
    Try it on a test network (dekube testnet up):
      dekube worker list --home .testnet/validator-0
      dekube worker show --home .testnet/worker-0
      dekube worker earnings --home .testnet/worker-0
    """


worker.add_command(doctor)


@worker.command()
@home_option
@click.option("--stop", is_flag=True, help="Stop the node when all containers have left.")
@click.option("--wait", "waits", is_flag=True, help="Wait until all containers have left.")
@json_option
def leave(home: Home, stop: bool, waits: bool, as_json: bool) -> None:
    """Take this machine back: containers end within the notice and go on elsewhere.

    Each container gets SIGTERM and executor.docker.notice_s seconds, in a cluster
    executor.kubernetes.notice_s. Its last checkpoint is stored and named on chain. Then its task is
    given up. Leaving before executor.docker.until costs a fine.

    The machine also leaves the market. `dekube node drain --end` brings it back.

    \b
    Example:
      dekube worker leave --wait
    """
    state = drain_node(home, {"on": True, "stop": stop, "leave": True}, waits=waits)
    if as_json:
        show(state)
        return
    show_fields(state, as_json=False, title="Leaving")


# Looking


@worker.command(name="list")
@reading_options
@click.option("--role", type=click.Choice(ROLES), help="Show only machines with this role.")
@json_option
def list_(session: Session, role: str | None, as_json: bool) -> None:
    """List the registered machines: hardware, price, bond and verified work.

    \b
    Example:
      dekube worker list --role compute
    """
    with session.client() as client:
        found = [node for node in client.items("dekube_getNodes") if role is None or role in node["roles"]]
        now_ms = 0 if as_json else client.head().steady_ms
    if as_json:
        show(found)
        return
    rows = [
        {
            "machine": node["address"],
            "status": node["status"] + _paused(node, now_ms),
            "roles": node["roles"],
            "GPU": _gpus(node),
            "speed": _speed(node),
            "slots": f"{node['busy_slots']}/{node['slots']}",
            "price": _hour_price(node),
            "bond": show_amount(int(node["backing"])),
            "record": f"{node['good']} good, {node['bad']} bad",
        }
        for node in found
    ]
    show_rows(rows, _COLUMNS, as_json=False, title="Machines")


def _paused(node: dict[str, Any], now_ms: int) -> str:
    if node["status"] == "active" and not node["present"]:
        return ", away"
    left_s = (max(int(node["cool_down_until_ms"]), int(node["match_from_ms"])) - now_ms) // 1000
    return f", paused {left_s} s" if left_s > 0 else ""


def _pauses(node: dict[str, Any], now_ms: int) -> list[str]:
    """Return why a machine gets no work now, and for how long."""
    pause_s = max(0, int(node["cool_down_until_ms"]) - now_ms) // 1000
    away_s = max(0, int(node["match_from_ms"]) - now_ms) // 1000
    seen_s = max(0, now_ms - int(node["seen_ms"])) // 1000
    is_away = node["status"] == "active" and not node["present"]
    return [
        text
        for seconds, text in (
            (is_away, f"away: not seen for {seen_s} s, so it gets no work"),
            (pause_s, f"pauses for {pause_s} s after a failure"),
            (away_s, f"is offered no task for {away_s} s after it left one"),
        )
        if seconds
    ]


def _report(node: dict[str, Any], now_ms: int) -> str | None:
    """Return what the machine has reported of itself, None for nothing."""
    found = node.get("tampering")
    if found is None:
        return None
    told = f"a container was tampered with ({found['sign']}), {counted(found['reports'], 'report')} so far"
    return f"{told}; off the market until {show_time(found['until_ms'])}" if found["until_ms"] > now_ms else told


def _gpus(node: dict[str, Any]) -> str:
    return ", ".join(f"{gpu['model']} ({gpu['memory_mib']} MiB)" for gpu in node["gpus"]) or "none: processor"


def _speed(node: dict[str, Any]) -> str:
    return f"{node['rate'] / 10**9:.1f} * 10^9 units/s" if node["rate"] else "unknown"


def _measured(node: dict[str, Any]) -> str | None:
    """Return what speed trials measured, and where a trial under way stands; None on a chain without them."""
    trial = node["trial"]
    if trial is None:
        return None
    parts = []
    if node["measured_rate"] is None:
        parts.append("none: it is offered nothing")
    else:
        how = "checked" if trial["checked"] else "not checked"
        parts.append(f"{node['measured_rate'] / 10**9:.1f} * 10^9 units/s counts, {how}")
    if trial["phase"] != "idle":
        parts.append(f"trial under way: {trial['phase']}")
    elif node["measured_rate"] is None and trial["ask_from_ms"]:
        parts.append(f"the next trial can begin at {show_time(trial['ask_from_ms'])}")
    return "; ".join(parts)


def _bond(node: dict[str, Any]) -> str:
    """Return the machine's own bond, and its sponsor's with what it costs and what is leaving."""
    own, sponsored, leaving = (int(node[name]) for name in ("bond", "sponsored", "sponsor_leaving"))
    if not sponsored:
        return show_amount(own) + (f"; {node['sponsor']} may bond for it" if node["sponsor"] else "")
    back = f", of which {show_amount(leaving)} return after {show_time(node['sponsor_leaves_ms'])}" * bool(leaving)
    return (
        f"{show_amount(own)} of its own, {show_amount(sponsored)} of {node['sponsor']}{back}, "
        f"for {_percent(node['sponsor_share_bps'])} of its pay"
    )


def _withheld(node: dict[str, Any]) -> str | None:
    if not node["withhold_bps"]:
        return None
    until = show_amount(int(node["withhold_until"]))
    return f"{show_amount(int(node['withheld']))}; {_percent(node['withhold_bps'])} of its pay until {until}"


def _stay(node: dict[str, Any]) -> str:
    """Return how long the machine stays with a container."""
    until_ms, notice_s = node.get("until_ms"), int(node["notice_ms"]) // 1000
    stays = f"stays until {show_time(until_ms)} (steady time)" if until_ms else "interruptible"
    return f"{stays}, notice {notice_s} s"


def _reached(node: dict[str, Any]) -> str | None:
    """Return the names that containers may reach there; None for a machine that runs no containers."""
    if "container" not in node["roles"]:
        return None
    return ", ".join(node.get("egress", ())) or "nothing"


def _hour_price(node: dict[str, Any]) -> str:
    """Return what an hour of one of its GPUs, or cores, costs by its own rate; by units where that is unknown."""
    if not node["rate"]:
        return f"{show_amount(int(node['price_per_tera_unit']))} {PER_TERA_UNIT}"
    return show_hour_price(int(node["price_per_device_hour"]), has_gpus=bool(node["gpus"]))


@worker.command(name="show")
@reading_options
@click.argument("machine", required=False)
@json_option
def show_(session: Session, machine: str | None, as_json: bool) -> None:
    """Show one MACHINE: an address or the name of a wallet account.

    Default: the node in --home.

    \b
    Example:
      dekube worker show 0xADDRESS
    """
    who = _machine_address(session, machine)
    with session.client() as client:
        node = _find(client, who)
        if node is None:
            own = machine is None and not session.urls
            why = "; a node with role compute or verify registers once its account can pay bond and fee: "
            raise ConfigError(f"{_shown(who)} is not registered" + (why + "see `dekube status`") * own)
        now_ms = client.head().steady_ms
    if as_json:
        show(node)
        return
    show_fields(
        {
            "status": ", ".join((node["status"], *_pauses(node, now_ms))),
            "roles": node["roles"],
            "operator": node["operator"],
            "earnings go to": node["payout"],
            "GPUs": _gpus(node),
            "PCIe lanes": node["pcie_lanes"] or None,
            "processor": f"{counted(node['cores'], 'core')}, {node['memory_mib']} MiB",
            "speed": _speed(node),
            "measured speed": _measured(node),
            "slots": f"{node['busy_slots']} of {node['slots']} busy",
            "price": f"{show_amount(int(node['price_per_tera_unit']))} {PER_TERA_UNIT}",
            "an hour costs": _hour_price(node) if node["rate"] else None,
            "checks to do": f"{node['owed_ms'] / 1000:.1f} s on a slow core and line" if node["owed_ms"] else None,
            "bond": _bond(node),
            "withheld": _withheld(node),
            "record": f"{node['good']} good, {node['bad']} bad, {node['valid_streak']} in a row",
            "own report": _report(node, now_ms),
            "reputation": f"{node['reputation_milli'] / 1000:.3f}",
            "offers": _stay(node),
            "containers reach": _reached(node),
            "registered": f"height {node['registered_height']}",
            "version": node["version"],
        },
        as_json=False,
        title=f"Machine {node['address']}",
    )


@worker.command()
@reading_options
@click.argument("machine", required=False)
@json_option
def earnings(session: Session, machine: str | None, as_json: bool) -> None:
    """Show the total earnings of MACHINE, by role.

    MACHINE is an address or the name of a wallet account. Default: the node in --home.

    \b
    Example:
      dekube worker earnings 0xADDRESS
    """
    who = _machine_address(session, machine)
    with session.client() as client:
        answer = client.call("dekube_getEarnings", address=who)
    if as_json:
        show({"address": who, "earnings": answer["earnings"], "total": answer["total"]})
        return
    paid = {role: show_amount(int(amount)) for role, amount in answer["earnings"].items()}
    total = {"total": show_amount(int(answer["total"]))}
    show_fields({"address": _shown(who)} | paid | total, as_json=False, title="Earnings")


@worker.command()
@reading_options
@click.argument("machine", required=False)
@json_option
def duties(session: Session, machine: str | None, as_json: bool) -> None:
    """Show the current on-chain duties of MACHINE.

    MACHINE is an address or the name of a wallet account. Default: the node in --home. A running node
    performs its duties by itself.

    \b
    Example:
      dekube worker duties 0xADDRESS
    """
    who = _machine_address(session, machine)
    with session.client() as client:
        answer = client.call("dekube_getDuties", address=who)
    if as_json:
        show({"address": who, "work": answer["work"], "checks": answer["checks"]})
        return
    rows = [
        {
            "as": "juror" if duty.get("jury") else role,
            "action": duty["action"] + (" (waits)" if duty.get("blocked") else ""),
            "task": duty["task"],
            "window": duty["window"],
            "segments": duty["segments"] or None,
        }
        for role, items in (("worker", answer["work"]), ("verifier", answer["checks"]))
        for duty in items
    ]
    show_rows(rows, ("as", "action", "task", "window", "segments"), as_json=False, title="Duties")


@worker.command()
@home_option
@json_option
def jobs(home: Home, as_json: bool) -> None:
    """Show the jobs that the node in --home runs now.

    \b
    Example:
      dekube worker jobs
    """
    running = ask_home(home, "status")["jobs"]
    rows = [
        {**job, "task": "0x" + job["task"], "done": f"{job['step']}/{job['total_steps']}"}
        for job in running
    ]  # fmt: skip
    show_rows(
        running if as_json else rows,
        ("task", "done", "device", "starts", "ends", "last_end"),
        as_json=as_json,
        title="Jobs",
    )


# Registering


@worker.command()
@session_options
@click.option(
    "--bond",
    type=AMOUNT,
    default=None,
    help="Bond to lock, in DKB. Default: registry.stake in config.toml, at least the chain's minimum.",
)
@yes_option
@json_option
def register(session: Session, bond: int | None, yes: bool, as_json: bool) -> None:
    """Register this machine on chain and lock a bond.

    Use it only when registry.auto_register is off. config.toml sets the offer: roles,
    registry.price_per_tera_unit, executor.jobs_max. The command measures the machine's rate, which takes a few
    seconds. With --bond 0 it gets work once somebody bonds for it: see `dekube worker terms`.

    \b
    Example:
      dekube worker register --bond 1000
    """
    options = load_node_options(session.home)  # of the machine, whose node need not be what signs
    key = session.key()
    with session.client() as client:
        if _find(client, "0x" + key.address.hex()) is not None:
            raise ConfigError("the machine is already registered; use `dekube worker update` to renew its entry")
        least = int(client.call("dekube_genesis")["parameters"]["tasks.node_bond_min"])
        of_options = 0 if options.registry.sponsored else max(options.registry.stake, least)
        amount = of_options if bond is None else bond
        if 0 < amount < least:
            raise ConfigError(f"the bond must be at least {show_amount(least)}, or 0; raise --bond")
        profile = _profile(session, key.address)
        locked = f"{show_amount(amount)}, locked until it retires" if amount else "none: no work until it has one"
        what = _offer(profile, "registers this machine", locked)
        receipt = send(client, key, REGISTER_NODE, node_payload(profile, amount), what, yes=yes)
    _show_done(receipt, "0x" + key.address.hex(), as_json)


@worker.command()
@session_options
@click.option("--bond", type=AMOUNT, default="0", help="Amount to add to the bond, in DKB. Default: 0.")
@yes_option
@json_option
def update(session: Session, bond: int, yes: bool, as_json: bool) -> None:
    """Renew this machine's entry from config.toml, raise its bond, or end its retirement.

    \b
    Example:
      dekube worker update --bond 500
    """
    load_node_options(session.home)
    key = session.key()
    with session.client() as client:
        if _find(client, "0x" + key.address.hex()) is None:
            raise ConfigError("the machine is not registered; use `dekube worker register`")
        profile = _profile(session, key.address)
        what = _offer(profile, "renews this machine's entry", f"{show_amount(bond)} more")
        receipt = send(client, key, UPDATE_NODE, node_payload(profile, bond), what, yes=yes)
    _show_done(receipt, "0x" + key.address.hex(), as_json)


@worker.command()
@endorsing_options
@click.argument("machine")
@json_option
def endorse(session: Session, machine: str, as_json: bool) -> None:
    """Sign, as the operator, that MACHINE belongs to you.

    Machines of one operator never verify each other. MACHINE is an address or the name of a wallet account.
    The command prints lines for the machine's config.toml and sends nothing. The signature is valid for
    this chain and machine only. With --json it prints the message, which any EIP-191 wallet can sign.

    \b
    Example:
      dekube worker endorse 0x67FaA1a0637CaDD4dBa57911F75820a5B22e7294 --key me
    """
    who = session.address(machine, known=False)
    key = session.key()
    with session.client() as client:
        genesis_hash = bytes.fromhex(client.call("dekube_genesis")["hash"].removeprefix("0x"))
    words = operator_words(genesis_hash, who)
    consent = "0x" + wallet_form(key.sign(personal_digest(words))).hex()
    operator = format_address(key.address)
    if as_json:
        show({"operator": operator, "operator_consent": consent, "words": words.decode()})
        return
    click.echo(f'[registry]\noperator = "{operator}"\noperator_consent = "{consent}"')


@worker.command()
@session_options
@click.argument("machine")
@click.argument("address")
@yes_option
@json_option
def payout(session: Session, machine: str, address: str, yes: bool, as_json: bool) -> None:
    """Pay the earnings of MACHINE to ADDRESS from now on.

    Sign with the account that is paid now. At first that is the machine's own, or its operator's. No other
    account can change it back. Each is an address or the name of a wallet account.

    \b
    Example:
      dekube worker payout 0xMACHINE 0xADDRESS --key me
    """
    who, to = session.address(machine, known=False), session.address(address, known=False)
    key = session.key()
    with session.client() as client:
        node = _find(client, "0x" + who.hex())
        if node is None:
            raise ConfigError(f"{format_address(who)} is not registered")
        if node["payout"].lower() != "0x" + key.address.hex():
            raise ConfigError(f"only {node['payout']}, which is paid now, can change that; sign with its key")
        what = {
            "does": "changes where the machine's earnings go",
            "machine": format_address(who),
            "paid from now on": format_address(to),
        }
        receipt = send(client, key, SET_PAYOUT, [who, to], what, yes=yes)
    _show_done(receipt, "0x" + who.hex(), as_json)


@worker.command()
@session_options
@click.argument("machine")
@click.option("--sponsor", metavar="ACCOUNT", help="Account that may bond for the machine.")
@click.option("--no-sponsor", is_flag=True, help="Nobody may bond for the machine.")
@click.option("--share", type=SHARE, help="Percentage of the machine's pay for its sponsor.")
@click.option("--withhold", type=SHARE, help="Percentage of its pay that is added to its own bond.")
@click.option("--until", type=AMOUNT, help="Bond of its own, in DKB, at which nothing more is withheld.")
@yes_option
@json_option
def terms(
    session: Session, machine: str, sponsor: str | None, no_sponsor: bool, share: int | None, withhold: int | None,
    until: int | None, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Set who may bond for MACHINE, and how its pay grows its own bond.

    Sign with the account that its earnings go to. What is not given stays as it is. Once the sponsor has
    bonded, these terms hold until its bond has returned. It returns when the machine's own bond suffices.

    \b
    Examples:
      dekube worker terms 0xMACHINE --sponsor 0xSPONSOR --share 10 --withhold 50 --until 10
      dekube worker terms 0xMACHINE --no-sponsor --share 0
    """
    if sponsor is not None and no_sponsor:
        raise click.UsageError("give --sponsor or --no-sponsor, not both")
    who = session.address(machine, known=False)
    key = session.key()
    with session.client() as client:
        node = _registered(client, who)
        if node["payout"].lower() != "0x" + key.address.hex():
            raise ConfigError(f"only {node['payout']}, which is paid, can set the terms; sign with its key")
        stands = node["sponsor"] or NOBODY
        named = "0x" + session.address(sponsor, known=False).hex() if sponsor is not None else stands
        account = NOBODY if no_sponsor else format_address(parse_address(named))
        values = [
            node["sponsor_share_bps"] if share is None else share,
            node["withhold_bps"] if withhold is None else withhold,
            int(node["withhold_until"]) if until is None else until,
        ]
        what = {"does": "sets who may bond for the machine", "machine": format_address(who)}
        what |= _terms_shown(account, values)
        payload = [who, bytes.fromhex(account.removeprefix("0x")), *values]
        receipt = send(client, key, SET_TERMS, payload, what, yes=yes)
    _show_done(receipt, "0x" + who.hex(), as_json)


@worker.command()
@session_options
@click.argument("machine")
@click.option("--amount", type=AMOUNT, required=True, help="Bond to lock for the machine, in DKB.")
@yes_option
@json_option
def sponsor(session: Session, machine: str, amount: int, yes: bool, as_json: bool) -> None:
    """Bond for MACHINE, on the terms that its owner has set for you.

    Fines take the machine's own bond first, then yours, and no more than yours. The command shows the terms
    before it signs. The machine needs a little DKB for its own transactions: see `dekube wallet send`.

    \b
    Example:
      dekube worker sponsor 0xMACHINE --amount 10 --key me
    """
    who = session.address(machine, known=False)
    key = session.key()
    with session.client() as client:
        node = _registered(client, who)
        if (node["sponsor"] or "").lower() != "0x" + key.address.hex():
            raise ConfigError(
                f"{format_address(who)} does not accept you as its sponsor; its owner does that with "
                f"`dekube worker terms {format_address(who)} --sponsor {format_address(key.address)}`"
            )
        values = [node["sponsor_share_bps"], node["withhold_bps"], int(node["withhold_until"])]
        what = {
            "does": "bonds for a machine that is not this account",
            "machine": format_address(who),
            "bond": f"{show_amount(amount)}, at risk after the machine's own",
        } | _terms_shown(node["sponsor"], values)
        receipt = send(client, key, SPONSOR_NODE, [who, *values, amount], what, yes=yes)
    _show_done(receipt, "0x" + who.hex(), as_json)


@worker.command()
@session_options
@click.argument("machine")
@click.argument("amount", type=AMOUNT)
@yes_option
@json_option
def unsponsor(session: Session, machine: str, amount: int, yes: bool, as_json: bool) -> None:
    """Take AMOUNT (DKB) of your bond for MACHINE back; it is paid after seven days.

    It stays at risk until then. You get your share of the machine's pay until all has returned. Replaces a
    pending withdrawal and restarts the wait; 0 cancels it.

    \b
    Example:
      dekube worker unsponsor 0xMACHINE 10 --key me
    """
    who = session.address(machine, known=False)
    key = session.key()
    with session.client() as client:
        node = _registered(client, who)
        if (node["sponsor"] or "").lower() != "0x" + key.address.hex() or not int(node["sponsored"]):
            raise ConfigError(f"this account has no bond for {format_address(who)}")
        if amount > int(node["sponsored"]):
            raise ConfigError(f"the bond is {show_amount(int(node['sponsored']))}; take back at most this amount")
        what = {
            "does": "takes back a bond for a machine" if amount else "cancels the pending withdrawal",
            "machine": format_address(who),
            "amount": show_amount(amount),
            "stays": show_amount(int(node["sponsored"]) - amount),
        }
        receipt = send(client, key, WITHDRAW_SPONSOR, [who, amount], what, yes=yes)
    _show_done(receipt, "0x" + who.hex(), as_json)


def _registered(client: Client, who: bytes) -> dict[str, Any]:
    node = _find(client, "0x" + who.hex())
    if node is None:
        raise ConfigError(f"{format_address(who)} is not registered")
    return node


def _percent(bps: int) -> str:
    return f"{bps / 100:g} %"


def _terms_shown(account: str, values: list[int]) -> dict[str, str]:
    share, withheld, until = values
    kept = (
        f"{_percent(withheld)} of its pay, until its own bond is {show_amount(until)}" if withheld else "nothing"
    )
    return {
        "sponsor": "nobody" if account == NOBODY else account,
        "sponsor's share": f"{_percent(share)} of its pay until the bond has returned",
        "withheld for its bond": kept,
    }


@worker.command()
@session_options
@yes_option
@json_option
def retire(session: Session, yes: bool, as_json: bool) -> None:
    """Retire this machine; the bond returns when its duties have ended.

    Turn registry.auto_register off first, or the node registers again.

    \b
    Example:
      dekube worker retire
    """
    if session.key_name is None and load_node_options(session.home).registry.auto_register:
        raise ConfigError(
            f"{session.home.config}: the node would register again by itself; "
            "set registry.auto_register = false, restart the node, then retire"
        )
    key = session.key()
    with session.client() as client:
        node = _find(client, "0x" + key.address.hex())
        if node is None:
            raise ConfigError("the machine is not registered, so it cannot retire")
        if node["status"] == "retiring":
            raise ConfigError("the machine is already retiring")
        what = {
            "does": "takes this machine off the market",
            "bond": f"{show_amount(int(node['bond']))}, returns when its duties have ended",
        }
        receipt = send(client, key, RETIRE_NODE, [], what, yes=yes)
    _show_done(receipt, "0x" + key.address.hex(), as_json)


def _offer(profile: NodeProfile, does: str, bond: str) -> dict[str, Any]:
    roles = ", ".join(role for role in ROLES if NodeRole[role.upper()] & profile.roles)
    hour = hour_price(profile.rate, profile.price_per_tera_unit)
    in_hours = f", {show_hour_price(hour, has_gpus=bool(profile.gpus))}" if profile.rate else ""
    return {
        "does": does,
        "roles": roles,
        "price": f"{show_amount(profile.price_per_tera_unit)} {PER_TERA_UNIT}{in_hours}",
        "bond": bond,
    }


def _profile(session: Session, address: bytes) -> NodeProfile:
    from node.market.machine import describe_machine, renewed_rate

    options = load_node_options(session.home)
    if not {"compute", "verify"} & set(options.roles):
        raise ConfigError(f"{session.home.config}: `roles` has neither compute nor verify; add one of them")
    return describe_machine(address, options, renewed_rate(session.home.rate).units_per_s)


def _machine_address(session: Session, machine: str | None) -> str:
    """Return the address of the command's machine. Raises ConfigError if none is given or implied."""
    if machine is None and not session.home.config.exists():
        raise ConfigError(
            f"{session.home.root} is not a node's home; give a MACHINE (see `dekube worker list`), "
            "or the node's --home"
        )
    return "0x" + session.address(machine, known=False).hex()


def _shown(who: str) -> str:
    return format_address(bytes.fromhex(who.removeprefix("0x")))


def _find(client: Client, who: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = client.call("dekube_getNode", address=who)["node"]
    return found


def _show_done(receipt: Receipt, who: str, as_json: bool) -> None:
    answer = {
        "machine": who,
        "did": receipt.kind_name,
        "transaction": receipt.transaction_hash,
        "height": receipt.block.height,
    }
    show_fields(answer, as_json=as_json)
