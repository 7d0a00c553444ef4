"""What a node says of its machine: true, within the registry's bounds, and never a reason to fail."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import node.market.machine
from node.home.config import parse_barred, parse_egress
from node.home.options import ExecutorOptions, NetworkOptions, NodeOptions, RegistryOptions
from node.market.machine import (
    RATE_AGE_MS_MAX,
    Rate,
    _is_steady,
    _lanes,
    _Processors,
    _rate,
    available_memory_bytes,
    describe_machine,
    known_rate,
    measure_rate,
    renewed_rate,
)
from state.primitives.codec import decode, encode
from state.primitives.errors import ConfigError
from tasks.ledger.registry import Gpu, NodeRole, profile_from_value, profile_to_value

ADDRESS = b"a" * 20
OPTIONS = NodeOptions(
    roles=("compute", "verify"), registry=RegistryOptions(price_per_tera_unit=7),
    executor=ExecutorOptions(jobs_max=3), p2p=NetworkOptions(advertise=("tcp:h:1",)),
)  # fmt: skip


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for a program that answers in the name of the cards' driver, found before any other."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "nvidia-smi"


def answer(driver: Path, *lines: str, status: int = 0) -> None:
    driver.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + f"exit {status}\n")
    driver.chmod(0o755)


def test_a_profile_is_of_this_machine_and_one_that_the_registry_takes(driver: Path) -> None:
    answer(
        driver, "00000000:4A:00.0, NVIDIA H100 80GB HBM3, 81559", "00000000:4B:00.0, NVIDIA, with a comma, 10"
    )  # fmt: skip
    profile = describe_machine(ADDRESS, OPTIONS, 1_234)
    assert profile_from_value(decode(encode(profile_to_value(profile)), limit_bytes=4096)) == profile
    assert (profile.operator, profile.roles) == (ADDRESS, NodeRole.COMPUTE | NodeRole.VERIFY)
    assert profile.gpus == (Gpu("NVIDIA H100 80GB HBM3", 81_559), Gpu("NVIDIA, with a comma", 10))
    assert (profile.price_per_tera_unit, profile.slots, profile.rate, profile.endpoints) == (
        7,
        3,
        1_234,
        ("tcp:h:1",),
    )
    assert profile.cores == len(os.sched_getaffinity(0))
    assert profile.memory_mib == pytest.approx(
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20, rel=0.01
    )


@pytest.mark.parametrize(
    "lines", [("0:1:0.0, Card, not a number",), ("Card, 5",), ("",), ("No devices were found",)]
)
def test_a_driver_that_says_nothing_useful_means_no_cards(driver: Path, lines: tuple[str, ...]) -> None:
    answer(driver, *lines)
    assert describe_machine(ADDRESS, OPTIONS, 0).gpus == ()


def test_a_driver_that_fails_means_no_cards(driver: Path) -> None:
    answer(driver, "00000000:4A:00.0, Card, 5", status=9)
    assert describe_machine(ADDRESS, OPTIONS, 0).gpus == ()


def test_a_verifier_offers_no_cards(driver: Path) -> None:
    answer(driver, "00000000:4A:00.0, Card, 5")
    profile = describe_machine(ADDRESS, NodeOptions(roles=("verify",)), 0)
    assert (profile.gpus, profile.pcie_lanes, profile.roles) == ((), 0, NodeRole.VERIFY)


def test_lanes_of_all_cards_are_read_from_sysfs(
    driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = tmp_path / "devices"
    monkeypatch.setattr(node.market.machine, "PCI_DEVICES", devices)
    answer(driver, *(f"00000000:4{at}:00.0, Card, 5" for at in "Abc"), "00010000:01:00.0, Card, 5")
    assert describe_machine(ADDRESS, OPTIONS, 0).pcie_lanes == 0, "a machine that does not tell"
    for name, width in (("0000:4a:00.0", "16"), ("0000:4b:00.0", "8"), ("10000:01:00.0", "4")):
        (devices / name).mkdir(parents=True)
        (devices / name / "current_link_width").write_text(f"{width}\n")
    profile = describe_machine(ADDRESS, OPTIONS, 0)
    assert (len(profile.gpus), profile.pcie_lanes) == (4, 28)


@pytest.mark.parametrize("width", ["63", "255", "0", "-16", "x16", "", "9" * 4096])
def test_a_width_that_is_none_counts_as_no_lanes(tmp_path: Path, width: str) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "current_link_width").write_text(width)
    assert _lanes(tmp_path, "00000000:01:00.0") == 0


@pytest.mark.parametrize("bus_id", ["../../../etc", "00000000:01:00.0/..", "", "[N/A]", "00000000:01:00.9"])
def test_what_is_no_address_of_a_card_names_no_file(tmp_path: Path, bus_id: str) -> None:
    (tmp_path / "current_link_width").write_text("16")
    assert _lanes(tmp_path, bus_id) == 0


@pytest.mark.slow
def test_the_rate_is_measured_in_a_process_of_its_own() -> None:
    assert measure_rate().units_per_s > 0
    checked = "import sys, node.market.machine; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", checked], check=False).returncode == 0


def test_a_rate_that_cannot_be_measured_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    assert measure_rate() == Rate(0, is_steady=False)


def test_a_containers_limit_bounds_the_memory_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "limit_in_bytes", tmp_path / "max"
    versions = ((tmp_path, new.name, "current", "files"), (tmp_path, old.name, "usage_in_bytes", "all_files"))
    monkeypatch.setattr(node.market.machine, "CGROUPS", versions)
    new.write_text("max\n")
    assert available_memory_bytes() > 1 << 20
    old.write_text(f"{1 << 20}\n")
    assert available_memory_bytes() == 1 << 20
    # What runs in it already is not to be had, but for the files that are only remembered.
    (tmp_path / "usage_in_bytes").write_text(f"{700 << 10}\n")
    (tmp_path / "memory.stat").write_text(f"files 1\nall_files {300 << 10}\nlast 2\n")
    assert available_memory_bytes() == (1 << 20) - (400 << 10)
    (tmp_path / "usage_in_bytes").write_text(f"{2 << 20}\n")
    assert available_memory_bytes() == 0


def test_a_rate_is_measured_once_for_a_machine_and_anew_when_anything_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, measured, now_ms = tmp_path / "rate", [0], [1_000]

    def measure() -> Rate:
        measured[0] += 1
        return Rate(measured[0], is_steady=True)

    def known() -> int:
        return known_rate(path).units_per_s

    monkeypatch.setattr(node.market.machine, "measure_rate", measure)
    monkeypatch.setattr(node.market.machine, "_now_ms", lambda: now_ms[0])
    assert [known() for _ in range(3)] == [1, 1, 1]
    now_ms[0] += RATE_AGE_MS_MAX
    assert known() == 1
    now_ms[0] += 1
    assert known() == 2, "old"
    now_ms[0] -= 10
    assert known() == 3, "of a clock that was wrong"
    assert renewed_rate(path).units_per_s == 4 and known() == 4, "a person's command measures anew"
    monkeypatch.setattr(node.market.machine, "_processor", lambda: "another one")
    assert known() == 5
    for damaged in (b"", b"\xff", b"[]", b"[" * 4_000, b'{"rate": true}', b'{"rate": -1, "measured_ms": 0}'):
        path.write_bytes(damaged)
        measured[0] = 5
        assert known() == 6


def test_the_rate_of_a_busy_machine_is_used_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter((Rate(1, is_steady=False), Rate(2, is_steady=True)))
    monkeypatch.setattr(node.market.machine, "measure_rate", lambda: next(rates))
    path = tmp_path / "rate"
    assert [known_rate(path).units_per_s for _ in range(3)] == [1, 2, 2]


def test_a_rate_that_is_unknown_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.market.machine, "measure_rate", lambda: Rate(0, is_steady=True))
    assert known_rate(tmp_path / "rate").units_per_s == 0 and not (tmp_path / "rate").exists()
    monkeypatch.setattr(node.market.machine, "measure_rate", lambda: Rate(7, is_steady=True))
    assert known_rate(tmp_path / "absent" / "rate").units_per_s == 7, "no place for it"


def test_what_disturbs_some_batches_changes_no_rate() -> None:
    """The machine's speed is that of its undisturbed batches; before, waiting counted as work."""
    undisturbed = [25_000_000 + 100_000 * (at % 5) for at in range(40)]
    disturbed = [time * (1 + 4 * (at % 3 > 0)) for at, time in enumerate(undisturbed)]
    known, found = _rate(undisturbed, 10**9), _rate(disturbed, 10**9)
    assert 0.98 < found / known < 1.02
    assert known == pytest.approx(10**9 / 0.025, rel=0.02)
    assert _rate([], 5) == 0
    assert _rate([1_000, *undisturbed], 10**9) == pytest.approx(known, rel=0.02), "nor does a clock that jumps"


@pytest.mark.parametrize(
    ("others", "stolen", "steady"), [(0.0, 0.0, True), (0.15, 0.0, True), (0.3, 0.0, False), (0.0, 0.05, False)]
)
def test_a_measurement_knows_whether_it_was_disturbed(others: float, stolen: float, steady: bool) -> None:
    cores, passed_s, own_s = os.cpu_count() or 1, 2.0, 1.5
    before = _Processors(100.0, 7.0)
    after = _Processors(100.0 + own_s + others * cores * passed_s, 7.0 + stolen * cores * passed_s)
    assert _is_steady(before, after, own_s, passed_s) is steady
    read = _Processors.read()
    assert read.used_s > 0 and read.stolen_s >= 0


def test_what_containers_reach_is_said_by_a_machine_alone_that_can_let_them() -> None:
    docker = replace(OPTIONS.executor.docker, egress=("*", "PyPI.org", "*.hf.co:8443"))
    options = replace(OPTIONS, executor=replace(OPTIONS.executor, docker=docker))
    profile = describe_machine(ADDRESS, options, 0, containers=True, egress=True)
    assert profile.egress == ("*.hf.co:8443", "*:443", "pypi.org:443")
    assert profile_from_value(decode(encode(profile_to_value(profile)), limit_bytes=4096)) == profile
    assert describe_machine(ADDRESS, options, 0, containers=True).egress == ()
    assert describe_machine(ADDRESS, options, 0, egress=True).egress == ()


@pytest.mark.parametrize("text", ["127.0.0.1", "localhost", "*.com", "a.b:0", "*:*", ""])
def test_an_owner_names_no_addresses(text: str) -> None:
    docker = replace(OPTIONS.executor.docker, egress=(text,))
    with pytest.raises(ConfigError, match=r"executor\.docker\.egress"):
        parse_egress(docker)
    with pytest.raises(ConfigError, match=r"executor\.docker\.egress_barred"):
        parse_barred(replace(docker, egress_barred=("1.2.3.4/8",)))
