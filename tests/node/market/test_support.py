"""The support bundle: secrets are planted wherever a node keeps them, and none is found in it."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import secrets
import string
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from node.home.config import flat_options
from node.home.options import (
    DockerOptions,
    ExecutorOptions,
    KubernetesOptions,
    MetricsOptions,
    NetworkOptions,
    NodeOptions,
    RegistryOptions,
    SignerOptions,
)
from node.home.paths import Home
from node.market.doctor import Facts, Finding, Verdict
from node.market.masking import REMOVED, Mask, secrets_of_document
from node.market.support import OPTIONS_SHOWN, OTHER, bundle

WORDS = "abandon ability able about above absent absorb abstract absurd abuse access accident"
ADDRESS = "0x" + "Ab" * 20


def contents(data: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {name: archive.extractfile(name) for name in archive.getnames()}
        return {name.rpartition("/")[2]: file.read().decode() for name, file in found.items() if file}


def spellings(secret: str) -> set[str]:
    data = secret.encode()
    return {
        secret, quote(secret, safe=""), data.hex(), base64.b64encode(data).decode().rstrip("="),
        base64.urlsafe_b64encode(data).decode().rstrip("="), json.dumps(secret)[1:-1],
    }  # fmt: skip


@contextmanager
def answering(text: str) -> Iterator[int]:
    """A node's metrics."""

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def logins(registry: str, login: str) -> str:
    return json.dumps({"auths": {registry: {"auth": base64.b64encode(login.encode()).decode()}}})


class Planted:
    """A home with a secret of its own in each place, and texts that let them slip."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = Home(root / "home")
        self.secrets: dict[str, str] = {}
        for folder in ("keys", "wallet", "run", "data/keys", "data/jobs", "data/containers/notes"):
            (self.home.root / folder).mkdir(parents=True)
        self.put("keys/passphrase", "correct horse&battery/staple")
        self.put("keys/transport", secrets.token_hex(32))
        crypto = {"ciphertext": secrets.token_hex(32), "cipher": "aes-128-ctr", "mac": secrets.token_hex(32)}
        self.put("wallet/me.json", json.dumps({"address": ADDRESS[2:], "crypto": crypto}), leaf="ciphertext")
        self.put("run/admin.token", secrets.token_urlsafe(32))
        self.put("data/keys/" + "0a" * 32 + ".key", secrets.token_hex(40))
        login, other = "registry-pass-" + secrets.token_hex(6), "hub-" + secrets.token_hex(6)
        self.logins = root / "logins.json"
        self.logins.write_text(logins("r.test", f"me:{login}"))
        self.secrets["Docker login"] = login
        own = root / "person" / ".docker"
        own.mkdir(parents=True)
        (own / "config.json").write_text(logins("hub", f"u:{other}"))
        self.secrets["Docker login of the owner"] = other
        monkeypatch.setenv("HOME", str(root / "person"))
        self.kubeconfigs(root, own.parent)
        self.secrets["variable"] = "env-" + secrets.token_hex(8)
        monkeypatch.setenv("DEKUBE_PASSPHRASE", self.secrets["variable"])
        self.secrets["variable of a service"] = "wJalrXUtn/FEMI+" + secrets.token_hex(6)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", self.secrets["variable of a service"])
        self.known = list(self.secrets)
        # What stands in no file of this machine, and is known by its shape alone
        user = self.secrets["address with a user"] = "hunter2" + secrets.token_hex(3)
        self.secrets["job's variable"] = "value-" + secrets.token_hex(8)
        self.secrets["web token"] = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + secrets.token_hex(16)
        self.secrets["model hub"] = "hf_" + secrets.token_hex(16)
        self.secrets["private key"] = secrets.token_hex(32)
        self.secrets["PEM"] = base64.b64encode(secrets.token_bytes(90)).decode()
        self.secrets["phrase"] = WORDS
        self.secrets["consent"] = "0x" + secrets.token_hex(65)
        self.options = NodeOptions(
            signer=SignerOptions(endpoint=f"tcp://me:{user}@host:1", vote_key="ab" * 48),
            p2p=NetworkOptions(bootstrap=(f"0xADDRESS@tcp:{user}:1",)),
            executor=ExecutorOptions(
                docker=DockerOptions(enabled=True, logins=str(self.logins)),
                kubernetes=KubernetesOptions(kubeconfig=str(root / "cluster" / "kubeconfig")),
            ),
            registry=RegistryOptions(operator=ADDRESS, operator_consent=self.secrets["consent"]),
        )

    def kubeconfigs(self, root: Path, person: Path) -> None:
        """What opens a cluster: in the node's kubeconfig, in files that it names, and in the owner's own one."""
        folder, line, other = root / "cluster", secrets.token_hex(31), secrets.token_hex(31)
        folder.mkdir()
        self.secrets["cluster token"] = "clu.st-er_" + secrets.token_hex(4)
        self.secrets["cluster password"] = "pass word:" + secrets.token_hex(4)
        self.secrets["token of another context"] = "other." + secrets.token_hex(4)
        self.secrets["argument of a login program"] = "argument." + secrets.token_hex(4)
        self.secrets["password of its proxy"] = "proxy p@ss" + secrets.token_hex(3)
        self.secrets["a line of its key"], self.secrets["a line of its key's file"] = line, other
        self.secrets["cluster token's file"] = "in.file_" + secrets.token_hex(4)
        self.secrets["cluster token of the owner"] = "owner." + secrets.token_hex(4)
        pem = base64.b64encode(f"-----BEGIN EC PRIVATE KEY-----\n{line}\n-----END EC PRIVATE KEY-----\n".encode())
        self.secrets["its key"] = pem.decode()
        (folder / "own.key").write_text(f"-----BEGIN PRIVATE KEY-----\n{other}\n-----END PRIVATE KEY-----\n")
        (folder / "own.token").write_text(self.secrets["cluster token's file"] + "\n")
        found = self.secrets
        users = {
            "admin": {
                "token": found["cluster token"],
                "client-key-data": found["its key"],
                "client-certificate": "a",
            },
            "files": {"tokenFile": "own.token", "client-key": "own.key"},
            "other": {"token": found["token of another context"], "password": found["cluster password"]},
            "program": {"exec": {"command": "login", "args": ["-p", found["argument of a login program"]]}},
        }
        proxy = f"http://me:{quote(found['password of its proxy'])}@proxy.test"
        cluster = {"server": "https://cluster.test:6443", "proxy-url": proxy}
        whole = {
            "current-context": "test", "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": user} for name, user in users.items()],
        }  # fmt: skip
        (folder / "kubeconfig").write_text(yaml.safe_dump(whole))
        (person / ".kube").mkdir()
        (person / ".kube" / "config").write_text(
            json.dumps({"users": [{"user": {"token": self.secrets["cluster token of the owner"]}}]})
        )

    def put(self, name: str, text: str, *, leaf: str = "") -> None:
        path = self.home.root / name
        path.write_text(text)
        self.secrets[name] = json.loads(text)["crypto"][leaf] if leaf else text

    def slips(self) -> str:
        """A log of a careless program: each secret in several forms, beside harmless lines."""
        found = self.secrets
        known = [text for name in self.known for text in sorted(spellings(found[name]))]
        lines = [f"level=info event=dial peer={ADDRESS} height=12 took_ms=7"]
        lines += ["a container runs image=docker.io/library/python"]
        lines += ["the API server of cluster.test:6443, context test, user admin: not Found (404)"]
        lines += [f"odd value {text} at the end" for text in known]
        variable, token, key = found["job's variable"], found["web token"], found["private key"]
        lines += [
            f"fetch https://me:{found['address with a user']}@mirror.test/x failed",
            f"job env API_TOKEN={variable} started",
            json.dumps({"event": "x", "password": variable, "n": 5}),
            f"Authorization: Bearer {token}",
            f"cookie {token}",
            f"login {found['model hub']}",
            f"key 0x{key}",
            f"sealed {key.upper()}",
            f"-----BEGIN PRIVATE KEY-----\n{found['PEM']}\n-----END PRIVATE KEY-----",
            f"wallet: {found['phrase']}",
            f"operator_consent = {found['consent']}",
        ]
        return "\n".join(lines) + "\n"


def found_in(texts: dict[str, str], planted: Planted) -> list[tuple[str, str]]:
    return [
        (name, file)
        for name, secret in planted.secrets.items()
        for file, text in texts.items()
        if any(spelling in text or spelling.upper() in text for spelling in spellings(secret))
    ]


def test_no_secret_of_any_place_is_in_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Planted(tmp_path, monkeypatch)
    slips = planted.slips()
    log = tmp_path / "node.log"
    log.write_text(slips)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "journalctl").write_text(f"#!/bin/sh\ncat {log}\n")
    (programs / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    status = {
        "version": "1", "peers": 4, "troubles": [{"duty": "work", "error": slips[:4_000]}],
        "log": {"path": planted.secrets["keys/passphrase"]},
        "gateway": {"token": planted.secrets["run/admin.token"]},
    }  # fmt: skip
    facts = Facts(("compute",), "auto", job_error=slips, container_missing=(slips[-4_000:],), status=status)
    findings = [Finding("engine", Verdict.FAULT, f"failed: {slips}", f"see {planted.home.root}/keys")]
    assert found_in({"node.log": slips}, planted), "they are there to be found"
    told = f'error{{text="{planted.secrets["run/admin.token"]}"}} 1\n'
    with answering(f"dekube_peers 4\n{told}") as port:
        options = replace(planted.options, metrics=MetricsOptions(listen=f"127.0.0.1:{port}"))
        made = bundle(planted.home, options, dataclasses.asdict(facts), findings, (log, tmp_path / "none"))
    texts = contents(made)
    assert found_in(texts, planted) == []
    assert set(texts) == {
        "facts.json", "findings.json", "options.json", "versions.json", "metrics.txt", "journal.log", "log-0.log",
        "log-1.log",
    }  # fmt: skip
    # And it is still of use
    assert f"level=info event=dial peer={ADDRESS} height=12 took_ms=7" in texts["log-0.log"]
    assert "server of cluster.test:6443, context test, user admin: not Found" in texts["log-0.log"]
    assert "image=docker.io/library/python" in texts["journal.log"] and "dekube_peers 4" in texts["metrics.txt"]
    facts_shown = json.loads(texts["facts.json"])
    assert facts_shown["status"]["peers"] == 4 and "gateway" not in facts_shown["status"]
    shown = json.loads(texts["options.json"])
    assert shown["executor.docker.enabled"] is True and shown["signer.vote_key"] == OTHER
    assert shown["p2p.bootstrap"] == OTHER and shown["registry.operator_consent"] == OTHER
    assert "DEKUBE_PASSPHRASE" in json.loads(texts["versions.json"])["variables"]


def test_options_are_shown_by_a_list_and_a_new_one_is_not(tmp_path: Path) -> None:
    names = set(flat_options(NodeOptions()))
    assert names >= OPTIONS_SHOWN, "stale names"
    hidden = names - OPTIONS_SHOWN
    assert {"signer.endpoint", "signer.vote_key", "registry.operator_consent", "executor.docker.logins"} <= hidden
    assert not [name for name in OPTIONS_SHOWN if "key" in name.split(".") or "passphrase" in name]
    home = Home(tmp_path)
    texts = contents(bundle(home, NodeOptions(), {}, []))
    assert json.loads(texts["options.json"]).keys() == names


ALPHABET = string.ascii_letters + string.digits + "!#$%&*+/=?@^_~.-"


@settings(max_examples=300, deadline=None)
@given(
    kept=st.lists(st.text(ALPHABET, min_size=8, max_size=60), min_size=1, max_size=5),
    around=st.lists(st.text(string.printable, max_size=30), min_size=6, max_size=6), which=st.integers(0, 5),
)  # fmt: skip
def test_a_known_secret_is_removed_wherever_it_stands(kept: list[str], around: list[str], which: int) -> None:
    mask = Mask(kept, b"salt")
    for secret in kept:
        spelled = sorted(spellings(secret))[which % len(spellings(secret))]
        text = mask.text(around[0] + spelled + around[1])
        assert spelled not in text
        shown = json.dumps(mask.document({"a": [spelled + around[2]], spelled: {"b": spelled}}))
        assert spelled not in shown or len(spelled) < 8


@given(st.text(max_size=600))
def test_any_text_can_be_masked_and_stays_masked(text: str) -> None:
    mask = Mask(["a secret of the machine"], b"salt")
    once = mask.text(text)
    assert "a secret of the machine" not in once
    mask.text(once)
    secrets_of_document(text)


def test_names_of_hashes_can_be_compared_and_not_turned_back() -> None:
    mask, other = Mask([], b"one"), Mask([], b"two")
    block = "5f" * 32
    text = mask.text(f"block {block} then 0x{block.upper()} and {'6a' * 32}")
    first, second, third = [word for word in text.split() if word.startswith("#")]
    assert first == second != third and block not in text
    assert other.text(block) != first
    assert mask.text(ADDRESS) == ADDRESS
    assert mask.text('token = ""') == 'token = ""' and mask.text("max_tokens: 5") == f"max_tokens: {REMOVED}"


def test_files_of_secrets_are_read_in_every_form() -> None:
    login = base64.b64encode(b"me:open sesame").decode()
    found = secrets_of_document(json.dumps({"auths": {"r": {"auth": login}}, "address": "a" * 40}))
    assert {login, "open sesame"} <= found and "a" * 40 not in found
    assert "abcd1234" in secrets_of_document("token = abcd1234\n")
    assert secrets_of_document("abc") == set()
    assert secrets_of_document("[" * 100_000)
