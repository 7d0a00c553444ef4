"""The support bundle of ``dekube worker doctor``: what helps others to help, and no secret.

Options are shown by a list of names; one that is not in the list has no value in the bundle. All texts go through
the mask, which knows the secrets that this machine keeps.
"""

from __future__ import annotations

import io
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import httpx

from node.home.config import flat_options
from node.home.options import NodeOptions
from node.home.paths import Home
from node.market.cluster_secrets import secrets_of_clusters
from node.market.doctor import Finding
from node.market.masking import Mask, secrets_of_document, sounds_secret
from state.primitives.listen import parse_listen

__all__ = ["OPTIONS_SHOWN", "OTHER", "bundle", "known_secrets"]

OPTIONS_SHOWN: Final = frozenset(
    {
        "roles", "check_invariants", "p2p.listen", "p2p.dial_inner", "p2p.inbound_max", "p2p.outbound_max",
        "p2p.blob_store_bytes_max", "p2p.uplink_mbit_per_s", "rpc.listen", "rpc.connections_max",
        "rpc.connections_per_address_max", "rpc.units_per_s", "rpc.units_burst", "rpc.requests_per_address_max",
        "rpc.filters_per_address_max", "rpc.subscriptions_per_address_max", "rpc.ready_peers_min",
        "uploads.enabled", "uploads.bytes_per_blob_max", "uploads.bytes_per_account_day_max",
        "uploads.bytes_per_caller_day_max", "uploads.bytes_per_day_max", "uploads.bytes_kept_max",
        "uploads.balance_min", "uploads.keep_s", "admin.listen", "metrics.listen", "mempool.transactions_max",
        "mempool.bytes_max", "mempool.keep_local", "store.profile", "store.epochs", "sync.mode", "sync.snapshots",
        "executor.backend", "executor.engine", "executor.isolation", "executor.jobs_max",
        "executor.verifications_max", "executor.docker.enabled", "executor.docker.socket",
        "executor.docker.images", "executor.docker.disk_gib", "executor.docker.image_gib",
        "executor.docker.root_allowed", "executor.docker.gpus", "executor.docker.on_desktop_use",
        "executor.docker.on_gpu_use", "executor.docker.on_load", "storage.bytes_kept_max",
        "registry.auto_register", "registry.price_per_tera_unit", "registry.stake", "registry.sponsored",
        "processes.signature_workers", "log.level", "log.format", "developer.protocol_version",
    }
)  # fmt: skip
"""Options whose values are shown. What a later version adds is not shown until it is named here."""
OTHER: Final = "(set, not shown)"
STATUS_SHOWN: Final = (
    "version", "chain", "chain_id", "height", "behind_ms", "clock_off_ms", "syncing", "highest", "epoch", "peers",
    "mempool", "relays", "reachability", "troubles", "disputes", "draining", "roles",
)  # fmt: skip
PACKAGES: Final = ("dekube-node", "trio", "httpx", "numpy", "torch", "cryptography", "plyvel", "uvloop", "fastapi")
SECRET_FILE_BYTES: Final = 64 << 10
SECRET_FILES_MAX: Final = 10_000
LOG_BYTES_MAX: Final = 1 << 20
METRICS_BYTES_MAX: Final = 4 << 20
UNIT: Final = "dekube-node"
PROGRAM_S: Final = 20
METRICS_S: Final = 5.0


def known_secrets(home: Home, options: NodeOptions) -> set[str]:
    """Return the secrets that this machine keeps: keys, passphrases, tokens, logins, secret variables."""
    found: set[str] = set()
    for path in _secret_files(home, options):
        with suppress(OSError, ValueError):
            with path.open("rb") as file:
                data = file.read(SECRET_FILE_BYTES)
            found.add(data.hex())
            with suppress(UnicodeDecodeError):
                found |= secrets_of_document(data.decode())
    found |= secrets_of_clusters(options.executor.kubernetes.kubeconfig)
    found |= {value for name, value in os.environ.items() if sounds_secret(name) and len(value) >= 4}
    for name, value in flat_options(options).items():
        is_path = name.startswith("keys.") or name.endswith("_file")
        if name not in OPTIONS_SHOWN and sounds_secret(name) and isinstance(value, str) and not is_path:
            found.add(value)
    return found


def _secret_files(home: Home, options: NodeOptions) -> Iterator[Path]:
    yield home.admin_token
    if options.keys.passphrase_file:
        yield home.path(options.keys.passphrase_file)
    for lent in (options.executor.docker, options.executor.kubernetes):
        if lent.logins:
            yield Path(lent.logins)
    yield Path.home() / ".docker" / "config.json"
    folders = (home.root / "keys", home.root / "wallet", home.root / "run", home.jobs.parent / "keys")
    count = 0
    for folder in folders:
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            count += 1
            if count > SECRET_FILES_MAX:
                return
            if path.is_file():
                yield path


def _options(options: NodeOptions) -> dict[str, Any]:
    defaults = flat_options(NodeOptions())
    return {
        name: value if name in OPTIONS_SHOWN or value == defaults.get(name) else OTHER
        for name, value in flat_options(options).items()
    }


def _versions() -> dict[str, Any]:
    found: dict[str, Any] = {
        "python": sys.version.split()[0], "system": platform.platform(), "machine": platform.machine(),
        "cores": os.cpu_count(), "variables": sorted(name for name in os.environ if name.startswith("DEKUBE_")),
    }  # fmt: skip
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _last_lines(path: Path) -> str:
    try:
        with path.open("rb") as file:
            left_out = max(0, path.stat().st_size - LOG_BYTES_MAX)
            file.seek(left_out)
            if left_out:
                file.readline()  # a part of a line may hold a part of a secret
            return file.read(LOG_BYTES_MAX).decode(errors="replace")
    except OSError as error:
        return f"not read: {error.strerror}"


def _journal() -> str:
    """Return the last lines of the node's service; empty without one."""
    if shutil.which("journalctl") is None:
        return ""
    try:
        done = subprocess.run(
            ["journalctl", "--unit", UNIT, "--lines", "2000", "--no-pager", "--output", "short-iso"],
            capture_output=True, timeout=PROGRAM_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    if done.returncode or done.stdout.strip() == b"-- No entries --":
        return ""
    if len(done.stdout) <= LOG_BYTES_MAX:
        return done.stdout.decode(errors="replace")
    return done.stdout[-LOG_BYTES_MAX:].partition(b"\n")[2].decode(errors="replace")


def _metrics(options: NodeOptions) -> str:
    """Return the metrics of the running node; empty if nobody answers."""
    for host, port in parse_listen(options.metrics.listen) if options.metrics.listen else ():
        place = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  a comparison
        where = f"[{place}]" if ":" in place else place
        found = bytearray()
        with suppress(httpx.HTTPError), httpx.Client(timeout=METRICS_S, trust_env=False) as client:
            with client.stream("GET", f"http://{where}:{port}/metrics") as answer:
                for data in answer.iter_raw(1 << 16):
                    found += data
                    if len(found) > METRICS_BYTES_MAX:
                        break
            return bytes(found[:METRICS_BYTES_MAX]).decode(errors="replace")
    return ""


def bundle(
    home: Home, options: NodeOptions, facts: Mapping[str, Any], findings: Sequence[Finding],
    logs: Sequence[Path] = (),
) -> bytes:  # fmt: skip
    """Return a tar.gz with facts, findings, options, versions, metrics and last lines of logs, without secrets."""
    mask = Mask(known_secrets(home, options), secrets.token_bytes(16))
    status = facts.get("status") or {}
    shown = dict(facts) | {"status": {name: status[name] for name in STATUS_SHOWN if name in status}}
    documents = {"facts": shown, "findings": [asdict(one) for one in findings], "versions": _versions()}
    texts = {f"{name}.json": _json(mask.document(_plain(value, home))) for name, value in documents.items()}
    # Names of options sound of secrets: here the list of names has decided what is shown.
    texts["options.json"] = _json(
        {name: mask.document(one) for name, one in _plain(_options(options), home).items()}
    )
    if metrics := _metrics(options):
        texts["metrics.txt"] = mask.text(metrics)
    if journal := _journal():
        texts["journal.log"] = mask.text(journal)
    for number, path in enumerate(logs):
        texts[f"log-{number}.log"] = mask.text(_last_lines(path))
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as archive:
        for name, text in sorted(texts.items()):
            data = text.replace(str(home.root), "HOME").encode(errors="replace")
            entry = tarfile.TarInfo(f"dekube-doctor/{name}")
            entry.size, entry.mtime = len(data), int(time.time())
            archive.addfile(entry, io.BytesIO(data))
    return output.getvalue()


def _plain(value: Any, home: Home) -> Any:
    return json.loads(json.dumps(value, default=str).replace(str(home.root), "HOME"))


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True)
