"""``dekube worker doctor``: findings from facts, and a bundle without secrets."""

from __future__ import annotations

import io
import json
import socket
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from click.testing import CliRunner

from node.cli import group
from node.home.options import NodeOptions, SignerOptions
from node.home.paths import Home
from node.market.doctor import Facts, Finding, Verdict, examine
from node.market.support import OTHER, bundle
from testnet.cluster import write_home
from testnet.plan import Placement, make_plan, member_names

STATUS = {
    "address": "0x" + "ab" * 20, "clock_off_ms": 3, "peers": 4, "reachability": {"how": "direct", "why": ""},
    "syncing": False, "behind_ms": 700, "height": 12, "troubles": [],
}  # fmt: skip
FINE = Facts(
    roles=("compute", "verify"), engine="auto", device="cpu:numpy", cores=4, units_per_s=40 * 10**9,
    memory_available=8 << 30, disk_free=200 << 30, disk_wanted=64 << 30, open_files=65_536, status=STATUS,
    entry={"status": "active", "present": True},
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Home:
    placements = {name: Placement("127.0.0.1", "127.0.0.1", 1, 2, 3) for name in member_names(1, 1)}
    plan = make_plan(validators=1, workers=1, seed=1, time_ms=1, placements=placements)
    write_home(tmp_path / "home", next(member for member in plan.members if member.role == "worker"), plan)
    return Home(tmp_path / "home")


def test_a_machine_that_lacks_nothing_has_no_findings_but_fine_ones() -> None:
    found = examine(FINE)
    assert {one.verdict for one in found} == {Verdict.FINE}
    assert [one.subject for one in found] == [
        "keys", "memory", "disk", "open files", "engine", "isolation", "speed", "clock", "peers", "chain",
        "registry",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "subject", "verdict", "text"),
    [
        ({"exposed": ("/home/n/keys/account.json",)}, "keys", Verdict.FAULT, "account.json"),
        ({"containers": True, "container_missing": ("seccomp",)}, "containers", Verdict.FAULT, "seccomp"),
        ({"containers": True, "container_engine": "20.10"}, "containers", Verdict.WARNING, "user 0"),
        ({"containers": True, "container_engine": "Kubernetes", "container_cluster": True,
          "container_registry": "https://r.test/a", "container_registry_lack": "it refuses a push (403)"},
         "images from files", Verdict.FAULT, "refuses a push"),
        ({"containers": True, "container_engine": "Kubernetes", "container_cluster": True,
          "container_about": "2 machines",
          "container_gpus_asked": 1}, "GPUs of containers", Verdict.FAULT, "no machine that is sold has one"),
        ({"containers": True, "container_engine": "28.2", "container_users": True, "container_gpus_asked": 2},
         "GPUs of containers", Verdict.FAULT, "no runtime"),
        ({"containers": True, "container_engine": "28.2", "container_users": True,
          "container_egress": ("a.b:443",), "container_closed": "another namespace"},
         "egress of containers", Verdict.WARNING, "another namespace"),
        ({"disk_mib_per_s": 12}, "disk speed", Verdict.WARNING, "12 MiB/s"),
        ({"link_mbit_per_s": 10}, "line", Verdict.WARNING, "10 Mbit/s"),
        ({"entry": {"status": "suspended", "present": True, "tampering": {"sign": "exec"}}}, "registry",
         Verdict.WARNING, "tampered with (exec)"),
        ({"memory_available": 1 << 30}, "memory", Verdict.WARNING, "1024 MiB"),
        ({"disk_free": 1 << 30}, "disk", Verdict.FAULT, "1.0 GiB free"),
        ({"disk_free": 20 << 30}, "disk", Verdict.WARNING, "store 64.0 GiB"),
        ({"open_files": 1024}, "open files", Verdict.WARNING, "1024"),
        ({"device": "", "job_error": "no torch"}, "engine", Verdict.FAULT, "no torch"),
        ({"gpus": ("RTX 4090 (24564 MiB)",), "driver": "550.1"}, "engine", Verdict.WARNING, "although there"),
        ({"driver": "550.1"}, "engine", Verdict.WARNING, "names no GPU"),
        ({"isolation_missing": ("calls",)}, "isolation", Verdict.WARNING, "does not grant jobs calls"),
        ({"units_per_s": 0}, "speed", Verdict.FAULT, "could not be measured"),
        ({"is_steady": False}, "speed", Verdict.WARNING, "beside other programs"),
        ({"busy_ports": ("0.0.0.0:7700",)}, "ports", Verdict.FAULT, "0.0.0.0:7700"),
        ({"status": None, "entry": None}, "node", Verdict.WARNING, "does not run"),
        ({"status": STATUS | {"clock_off_ms": -4000}}, "clock", Verdict.FAULT, "4.0 s behind"),
        ({"status": STATUS | {"peers": 0}}, "peers", Verdict.FAULT, "none"),
        ({"status": STATUS | {"reachability": {"how": "none", "why": "shut"}}}, "peers", Verdict.WARNING, "shut"),
        ({"status": STATUS | {"behind_ms": 90_000}}, "chain", Verdict.WARNING, "90 s old"),
        ({"status": STATUS | {"troubles": [{"duty": "register", "error": "funds"}]}}, "duties", Verdict.WARNING,
         "register: funds"),
        ({"entry": None}, "registry", Verdict.WARNING, "not registered"),
        ({"entry": {"status": "active", "present": False}}, "registry", Verdict.WARNING, "away"),
    ],
)  # fmt: skip
def test_each_thing_that_a_machine_lacks_is_found_with_a_remedy(
    change: dict[str, Any], subject: str, verdict: Verdict, text: str
) -> None:
    [found] = [one for one in examine(replace(FINE, **change)) if one.verdict is not Verdict.FINE]
    assert (found.subject, found.verdict) == (subject, verdict)
    assert text in found.text and found.remedy


def test_a_fast_disk_a_line_and_a_clock_are_told_too() -> None:
    facts = replace(
        FINE, disk_mib_per_s=900, link_mbit_per_s=10_000, uplink_mbit_per_s=200, status=None, entry=None,
        is_clock_kept=True, containers=True, container_engine="28.2", container_users=True,
        container_about="control groups 2 (systemd), storage overlay2, kernel 6.1",
    )  # fmt: skip
    found = {one.subject: one for one in examine(facts)}
    for subject in ("disk speed", "line", "clock", "engine of containers"):
        assert found[subject].verdict is Verdict.FINE and not found[subject].remedy
    assert {one.verdict for one in examine(replace(facts, is_clock_kept=False)) if one.subject == "clock"} == {
        Verdict.WARNING
    }
    assert not [one for one in examine(replace(facts, is_clock_kept=None)) if one.subject == "clock"]


@pytest.mark.slow
def test_the_command_looks_at_the_machine_and_its_bundle_has_no_secret(home: Home, tmp_path: Path) -> None:
    """The real job and measurement, with an exposed key and a port that is taken."""
    key = home.root / "keys" / "account.json"
    key.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        document = tomlkit.parse(home.config.read_text(encoding="utf-8"))
        document["metrics"] = {"listen": f"127.0.0.1:{port}"}
        home.config.write_text(tomlkit.dumps(document), encoding="utf-8")
        file = tmp_path / "facts.tar.gz"
        done = CliRunner().invoke(
            group, ["worker", "doctor", "--home", str(home.root), "--bundle", str(file), "--json"]
        )
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.exception
    found = {(one["subject"], one["verdict"]) for one in json.loads(done.output)}
    assert {("keys", "fault"), ("ports", "fault"), ("node", "warning")} <= found
    assert "disk speed" in {subject for subject, _ in found}
    assert ("engine", "ok") in found and ("speed", "fault") not in found
    with tarfile.open(file) as archive:
        names = archive.getnames()
        told = b"".join(archive.extractfile(name).read() for name in names)  # type: ignore[union-attr]
    assert names == [f"dekube-doctor/{name}.json" for name in ("facts", "findings", "options", "versions")]
    secret = json.loads(key.read_text(encoding="utf-8"))["crypto"]["ciphertext"]
    assert secret.encode() not in told and str(home.root).encode() not in told
    for path in (home.root / "keys").iterdir():
        if path.is_file() and "json" not in path.name:
            assert path.read_bytes().strip() not in told


def test_options_that_sound_of_secrets_and_users_in_addresses_are_not_in_a_bundle(home: Home) -> None:
    options = replace(NodeOptions(), signer=SignerOptions(endpoint="tcp://me:hunter2@host:1", vote_key="ab" * 48))
    data = bundle(home, options, {}, [Finding("keys", Verdict.FAULT, f"see {home.root}/keys", "")])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        made = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]
    assert json.loads(made["dekube-doctor/options.json"])["signer.vote_key"] == OTHER
    assert "hunter2" not in "".join(made.values()) and "see HOME/keys" in made["dekube-doctor/findings.json"]
