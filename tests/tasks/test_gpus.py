"""Models of GPUs as words: what programs print, what a job orders, and which devices a container gets (R148).

Parts of cards (MIG) were never run: what the driver's program prints of them is from its manual.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.home.options import DockerOptions, ExecutorOptions, NodeOptions
from node.market.machine import describe_machine
from state.primitives.errors import DecodeError
from tasks.executor.containers.docker import _lent
from tasks.executor.containers.gpu_devices import Device, devices_here, fitting_devices, parse_devices
from tasks.executor.containers.request import ContainerRequest, Image, Limits
from tasks.kinds.gpus import (
    GPU_WORDS_MAX,
    NAME_WORDS_MAX,
    WORD_LENGTH_MAX,
    common_words,
    gpu_words,
    has_card,
    is_part,
    is_profile,
    mig_memory_mib,
    order_fault,
)
from tasks.ledger.registry import Gpu, NodeRole, require_node, save_node
from tasks.ledger.screening import look_out, machine_objections
from tasks.spec import Requirements, decode_spec, encode_spec
from tests.tasks.containers import container, host
from tests.tasks.world import QUICK, World, spec

LISTING: Final = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb+me   Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-d33d-2b2c-524d-9e3d8d2b8a77)
"""
QUERY: Final = "0, 40960\n1, 81559\n"
PART: Final = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"
SMALL: Final = "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb"
WHOLE: Final = "GPU-11111111-d33d-2b2c-524d-9e3d8d2b8a77"


def order(gpus: int = 1, words: tuple[str, ...] = (), memory_mib: int = 0) -> Requirements:
    return container().requirements._replace(gpus=gpus, gpu_words=words, gpu_memory_mib=memory_mib)


def test_names_of_one_card_have_the_same_words() -> None:
    assert gpu_words("NVIDIA A100-SXM4-40GB") == gpu_words("nvidia-a100-sxm4-40gb") == (
        "40gb", "a100", "nvidia", "sxm4",
    )  # fmt: skip
    assert "1g.5gb.me" in gpu_words("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb+me")


def test_letters_beyond_ascii_are_in_no_word() -> None:
    """Unicode would make a k of the sign for kelvin, and an i of a capital one with a dot."""
    assert gpu_words("\N{KELVIN SIGN}80 \N{LATIN CAPITAL LETTER I WITH DOT ABOVE}400 K80") == ("400", "80", "k80")
    assert common_words(["NVIDIA A100 40GB", "NVIDIA A100 80GB"]) == ("a100", "nvidia") and common_words([]) == ()


@given(st.text(max_size=200))
def test_words_of_any_name_are_an_order_once_they_are_few(name: str) -> None:
    words = gpu_words(name)
    assert len(words) <= NAME_WORDS_MAX and all(len(word) <= WORD_LENGTH_MAX for word in words)
    assert not order_fault(words[:GPU_WORDS_MAX])
    assert has_card(name, 10, words, 10) and not has_card(name, 10, words, 11)
    assert gpu_words(" ".join(words)) == words


def test_a_part_is_no_card_and_a_card_no_part() -> None:
    part, card = "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM4-40GB"
    assert is_part(part) and not is_part(card)
    assert not has_card(part, 40_000, ("a100",), 0), "who orders a card gets a whole one"
    assert has_card(part, 0, ("1g.5gb", "mig"), 0) and not has_card(card, 40_960, ("mig",), 0)
    assert [mig_memory_mib(one) for one in ("1g.5gb", "1g.10gb.me", "7g.80gb", "g.5gb", "1g.5")] == [
        4_864, 9_728, 77_824, 0, 0,
    ]  # fmt: skip
    assert is_profile("1g.10gb") and not is_profile("1g.10gb/x")


def test_an_order_is_bounded_and_has_one_form() -> None:
    for wanted in (order(words=("h100",)), order(2, (), 1), order(1, ("1g.10gb", "mig"), 5)):
        made = container()._replace(requirements=wanted)
        assert decode_spec(encode_spec(made)) == made
    assert len(encode_spec(container())) < len(encode_spec(made)), "no order adds no byte"
    for wanted in (
        order(0, ("h100",)), order(0, (), 5), order(words=("b", "a")), order(words=("a", "a")),
        order(words=("A",)),
        order(words=("",)), order(words=("a b",)), order(words=("a" * 33,)), order(words=("ä",)),
        order(words=tuple("abcdefghi")), order(memory_mib=1 << 60),
    ):  # fmt: skip
        with pytest.raises(DecodeError, match="requirements"):
            decode_spec(encode_spec(container()._replace(requirements=wanted)))
    with pytest.raises(DecodeError, match="containers alone"):
        decode_spec(encode_spec(spec()._replace(requirements=order(words=("h100",)))))


def with_card(world: World, number: int, card: Gpu) -> bytes:
    """A machine that runs containers on a card."""
    address = host(world, number)
    found = require_node(world.state, address)
    save_node(world.state, found._replace(profile=found.profile._replace(gpus=(card,))))
    return address


def test_a_call_gives_a_job_to_the_machine_that_has_its_card() -> None:
    world = World()
    cards = {with_card(world, 1, Gpu("NVIDIA A100 80GB PCIe", 81_920)): order(words=("a100",), memory_mib=80_000)}
    cards[with_card(world, 2, Gpu("NVIDIA H100 PCIe MIG 1g.10gb", 9_728))] = order(words=("1g.10gb", "mig"))
    waiting = world.create(container()._replace(requirements=order(words=("h100",))))
    tasks = {world.create(container()._replace(requirements=wanted)): at for at, wanted in cards.items()}
    seen = set[tuple[bytes, bytes]]()
    for _ in range(40):
        world.block()
        seen |= {(task, world.task(task).worker) for task in (*tasks, waiting) if world.task(task).worker}
    assert seen == set(tasks.items()), "there is no whole H100"


def test_the_quote_names_the_nearest_cards() -> None:
    world = World()
    assert "machines for containers have none" in objection(world, order(words=("h100",)))
    with_card(world, 1, Gpu("NVIDIA A100 80GB PCIe", 81_920))
    with_card(world, 2, Gpu("NVIDIA H100 PCIe MIG 1g.10gb", 9_728))
    told = objection(world, order(words=("80gb", "h100"), memory_mib=70_000))
    assert "80gb h100" in told and "70000 MiB" in told
    assert told.index("A100") < told.index("MIG 1g.10gb") < told.index(" MiB", told.index("MIG 1g.10gb"))
    assert "1 whose GPUs are not all of that model" in told and "1 that lend parts of cards" in told
    for fitting in (order(words=("a100",), memory_mib=81_920), order(words=("1g.10gb", "mig")), order()):
        made = container()._replace(requirements=fitting)
        assert look_out(world.state, made, world.time_ms, QUICK).capable, fitting


def objection(world: World, wanted: Requirements) -> str:
    made = container()._replace(requirements=wanted)
    (found,) = machine_objections(made, look_out(world.state, made, world.time_ms, QUICK))
    assert found.code == "no_such_machine"
    return found.text


def test_what_the_driver_prints_is_read() -> None:
    here = parse_devices(LISTING, QUERY)
    assert here[PART] == here["0:0"] == Device("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19_456, 0)
    assert here[SMALL].memory_mib == 4_864
    assert here[WHOLE] == here["1"] == Device("NVIDIA H100 80GB HBM3", 81_559, 1)
    assert "0" not in here, "a card that is cut cannot be lent whole"
    assert fitting_devices((PART, SMALL, WHOLE), here, ("1g.5gb.me", "mig"), 0) == (SMALL,)
    assert fitting_devices((PART, SMALL, WHOLE, "9"), here, (), 20_000) == (WHOLE,)
    assert parse_devices("GPU x\nMIG\n", "a,b\n,\n") == {}


@given(st.text(max_size=300), st.text(max_size=50))
def test_what_is_not_understood_names_no_device(listing: str, query: str) -> None:
    assert all(device.memory_mib >= 0 for device in parse_devices(listing, query).values())


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that prints what the driver's prints with one card in parts and one that is whole."""
    (tmp_path / "listing").write_text(LISTING)
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase \"$1\" in -L) cat {tmp_path}/listing;; *index*) printf '{QUERY}'.;; "
        "*) echo '00000000:01:00.0, NVIDIA A100-SXM4-40GB, 40960'; "
        "echo '00000000:02:00.0, NVIDIA H100 80GB HBM3, 81559';; esac\n".replace("'.", "'")
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("driver")
def test_a_container_gets_the_device_that_it_has_ordered_and_the_offer_names_it() -> None:
    assert set(devices_here()) >= {PART, SMALL, WHOLE}
    limits = Limits(cores=1, memory_mib=64, disk_mib=32, output_bytes=1, time_limit_s=1, gpus=1)
    request = ContainerRequest(Image("a/b", bytes(32)), limits)
    lent = (WHOLE, PART, SMALL)
    assert _lent(lent, request) == lent, "who orders none in particular gets any"
    assert _lent(lent, replace(request, gpu_words=("mig",))) == (PART, SMALL)
    assert _lent(lent, replace(request, gpu_words=("3g.20gb", "mig"))) == (PART,)
    assert _lent(lent, replace(request, gpu_words=("h100",), gpu_memory_mib=80_000)) == (WHOLE,)
    assert _lent(lent, replace(request, gpu_words=("a100",))) == (), "its parts are no card"

    def offered(gpus: tuple[str, ...]) -> tuple[str, ...]:
        executor = ExecutorOptions(docker=DockerOptions(enabled=True, gpus=gpus))
        options = NodeOptions(roles=("compute",), executor=executor)
        profile = describe_machine(b"a" * 20, options, 1, containers=True)
        assert profile.roles & NodeRole.CONTAINER
        return tuple(gpu.model for gpu in profile.gpus)

    cards = ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3")
    assert offered((WHOLE,)) == cards, "other jobs run on all of the machine"
    assert offered((PART, SMALL)) == (f"{cards[0]} MIG 3g.20gb", f"{cards[0]} MIG 1g.5gb.me")
