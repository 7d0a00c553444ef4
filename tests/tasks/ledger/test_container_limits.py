"""Machines that isolate no containers, or give none user 0: who is matched with them, and what is told (R122)."""

from __future__ import annotations

from itertools import product

import pytest

from state.primitives.errors import DecodeError
from tasks.kinds.container import Allowance, Process
from tasks.ledger.matching import may_admit
from tasks.ledger.registry import NodeRole, profile_from_value, profile_to_value, require_node
from tasks.ledger.screening import look_out, machine_objections
from tasks.spec import JobSpec, decode_spec, encode_spec
from tests.tasks.containers import HOST, container, host
from tests.tasks.world import QUICK, World

BOTH = int(Allowance.LEAVING | Allowance.UNISOLATED)


def job(*, allows: int = int(Allowance.LEAVING), user: int = 65_534) -> JobSpec:
    return container(allows=allows, process=Process(("a",), (), user))


def matched(world: World, task: bytes) -> bytes:
    for _ in range(40):
        if not world.task(task).worker:
            world.block()
    return world.task(task).worker


def test_n53_a_cluster_without_isolation_is_matched_with_containers_that_allow_it_alone() -> None:
    world = World()
    open_machine = host(world, 1, roles=HOST | NodeRole.UNISOLATED)
    refused = world.create(job())
    assert not matched(world, refused), "it did not allow that"
    assert matched(world, world.create(job(allows=BOTH))) == open_machine
    closed = host(world, 2)
    assert matched(world, refused) == closed


def test_a_container_with_user_0_is_matched_with_machines_that_have_it() -> None:
    world = World()
    host(world, 1, roles=HOST | NodeRole.NO_ROOT)
    task = world.create(job(user=0))
    assert not matched(world, task)
    other = host(world, 2)
    assert matched(world, task) == other


def test_the_quote_says_so_before_anything_is_paid() -> None:
    world = World()
    host(world, 1, roles=HOST | NodeRole.UNISOLATED | NodeRole.NO_ROOT)
    for made, name, told in (
        (job(user=0, allows=BOTH), "no_root", "run no container as user 0"),
        (job(), "unisolated", "`allow: [unisolated]` takes them too"),
    ):
        outlook = look_out(world.state, made, world.time_ms, QUICK)
        assert (outlook.capable, outlook.why) == (0, {name: 1})
        (objection,) = machine_objections(made, outlook)
        assert objection.code == "no_such_machine" and told in objection.text
    allowed = look_out(world.state, job(allows=BOTH), world.time_ms, QUICK)
    assert allowed.capable == allowed.free == 1 and not machine_objections(job(allows=BOTH), allowed)


def test_who_is_admitted() -> None:
    world = World()
    profile = require_node(world.state, host(world, 1)).profile
    for unisolated, no_root, allows, user in product((False, True), (False, True), (0, 1, 2, 3), (0, 1)):
        roles = HOST | (NodeRole.UNISOLATED if unisolated else 0) | (NodeRole.NO_ROOT if no_root else 0)
        expected = not (unisolated and not allows & Allowance.UNISOLATED) and not (no_root and user == 0)
        assert may_admit(profile._replace(roles=roles), job(allows=allows, user=user)) is expected


def test_what_is_allowed_is_encoded_once_and_bounded() -> None:
    for allows in range(4):
        assert decode_spec(encode_spec(job(allows=allows))) == job(allows=allows)
    with pytest.raises(DecodeError, match="allows"):
        decode_spec(encode_spec(job(allows=4)))
    profile = require_node((world := World()).state, host(world, 1)).profile
    value = profile_to_value(profile._replace(roles=HOST | NodeRole.UNISOLATED | NodeRole.NO_ROOT))
    assert profile_from_value(value).roles & NodeRole.NO_ROOT
    assert isinstance(value, list)
    with pytest.raises(DecodeError):
        profile_from_value([value[0], 1024 | int(HOST), *value[2:]])
