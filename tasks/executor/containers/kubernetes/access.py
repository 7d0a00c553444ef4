"""Where a cluster's API server is and how the node proves who it is: a kubeconfig, or the account of its own pod.

Only keys and tokens of a kubeconfig are taken. A command that would print a token (``exec``) is not run:
it would run with the rights of the node.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from tasks.executor.containers.errors import ContainerRefused
from tasks.executor.containers.kubernetes.proxying import ClusterProxy, decode_proxy

__all__ = ["ACCOUNT_FOLDER", "ClusterAccess", "decode_kubeconfig", "in_cluster", "read_access"]

FILE_BYTES_MAX: Final = 1 << 20
TOKEN_BYTES_MAX: Final = 64 << 10
ACCOUNT_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REFUSED: Final = ("exec", "auth-provider", "username", "password", "as", "as-groups", "as-uid", "as-user-extra")


@dataclass(frozen=True)
class ClusterAccess:
    """An API server, and what the node shows it. ``token_file`` is read anew for each call: clusters renew tokens.

    ``ca_file`` is read anew when the server is not who it was: clusters renew authorities too.
    Shows no token and no key.
    """

    server: str
    ca_pem: bytes = b""
    is_verified: bool = True
    server_name: str = ""
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    certificate_pem: bytes = field(default=b"", repr=False)
    key_pem: bytes = field(default=b"", repr=False)
    ca_file: Path | None = None
    proxy: ClusterProxy | None = None

    def authority(self) -> str:
        """Return the certificates that vouch for the server now. Raises ContainerRefused for what is no text."""
        if self.ca_file is not None:
            return _short_text(self.ca_file)
        try:
            return self.ca_pem.decode("ascii")
        except UnicodeDecodeError:
            raise ContainerRefused(f"the certificates for {self.server}: not a text") from None

    def bearer(self) -> str:
        """Return the token to show now, empty without one. Raises ContainerRefused for a file that is none."""
        if self.token_file is None:
            return self.token
        return _short_text(self.token_file).strip()

    def context(self) -> ssl.SSLContext:
        """Return the settings of TLS. Raises ContainerRefused for certificates that are none."""
        try:
            context = ssl.create_default_context(cadata=self.authority() or None)
            if not self.is_verified:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if self.certificate_pem:
                with tempfile.NamedTemporaryFile(
                    prefix="kube-"
                ) as file:  # mode 0600; the library reads files alone
                    file.write(self.certificate_pem + b"\n" + self.key_pem)
                    file.flush()
                    context.load_cert_chain(file.name)
        except (ssl.SSLError, ValueError, OSError) as error:
            raise ContainerRefused(f"the certificates for {self.server}: {error}") from None
        return context


def read_access(kubeconfig: Path | None) -> ClusterAccess:
    """Return the access of a kubeconfig, or without one that of the pod in which the node runs.

    Raises ContainerRefused, naming what is missing or not taken.
    """
    if kubeconfig is None:
        return in_cluster(ACCOUNT_FOLDER, os.environ)
    return decode_kubeconfig(_short_text(kubeconfig).encode(), kubeconfig.parent)


def in_cluster(folder: Path, environment: Mapping[str, str]) -> ClusterAccess:
    """Return the access of a pod's account. Raises ContainerRefused outside of a cluster."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ContainerRefused("no kubeconfig is set, and this node does not run in a pod of a cluster")
    host = f"[{host}]" if ":" in host else host
    access = ClusterAccess(f"https://{host}:{port}", token_file=folder / "token", ca_file=folder / "ca.crt")
    access.authority()
    return access


def decode_kubeconfig(data: bytes, folder: Path) -> ClusterAccess:
    """Read the current context of a kubeconfig; relative paths begin at ``folder``. Raises ContainerRefused."""
    try:
        found = yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ContainerRefused(f"the kubeconfig is not YAML: {' '.join(str(error).split())[:200]}") from None
    whole = _mapping(found, "the kubeconfig")
    context = _named(whole, "contexts", "context", _text(whole, "current-context"))
    cluster = _named(whole, "clusters", "cluster", _text(context, "cluster"))
    user = _named(whole, "users", "user", _text(context, "user"))
    refused = [name for name in _REFUSED if user.get(name)]
    if refused:
        raise ContainerRefused(
            f"the kubeconfig has {refused[0]!r}, which is not taken: give a token or a certificate, best of an "
            "account of the cluster for this node alone"
        )
    server = _text(cluster, "server")
    if not _is_https(server):
        raise ContainerRefused(f"the kubeconfig's server {server[:100]!r} is not an https address")
    token_file, proxy = _text(user, "tokenFile"), decode_proxy(_text(cluster, "proxy-url"))
    if proxy is not None and _text(cluster, "tls-server-name"):
        raise ContainerRefused(
            "the kubeconfig has a proxy-url and a tls-server-name, which are not taken together"
        )
    return ClusterAccess(
        server.rstrip("/"), _pem(cluster, "certificate-authority", folder),
        not cluster.get("insecure-skip-tls-verify"), _text(cluster, "tls-server-name"), _text(user, "token"),
        folder / token_file if token_file else None, _pem(user, "client-certificate", folder),
        _pem(user, "client-key", folder), proxy=proxy,
    )  # fmt: skip


def _is_https(server: str) -> bool:
    try:
        parts = urlsplit(server)
        rest = parts.port == 0 or parts.query or parts.fragment or parts.username
    except ValueError:  # a port that is none, half an IPv6 address
        return False
    return parts.scheme == "https" and bool(parts.hostname) and not rest


def _short_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ContainerRefused(f"{path}: more than {FILE_BYTES_MAX} bytes")
        return data.decode()
    except OSError as error:
        raise ContainerRefused(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ContainerRefused(f"{path}: not a text") from None


def _mapping(found: object, name: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ContainerRefused(f"{name} is not a mapping")
    return found


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > TOKEN_BYTES_MAX or not value.isprintable():
        raise ContainerRefused(f"the kubeconfig's {name} is not a line of text")
    return value


def _named(whole: Mapping[str, Any], many: str, one: str, name: str) -> dict[str, Any]:
    """Return the entry of a list by its name, as kubeconfigs keep them."""
    listed = whole.get(many)
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name:
            return _mapping(entry.get(one), f"the kubeconfig's {one} {name[:60]!r}")
    raise ContainerRefused(f"the kubeconfig has no {one} {name[:60]!r}")


def _pem(found: Mapping[str, Any], name: str, folder: Path) -> bytes:
    """Return certificates or a key, which stand in the kubeconfig or in a file."""
    if data := found.get(f"{name}-data"):
        try:
            return base64.b64decode(str(data), validate=True)
        except (binascii.Error, ValueError):
            raise ContainerRefused(f"the kubeconfig's {name}-data is not base64") from None
    path = _text(found, name)
    return _short_text(folder / path).encode() if path else b""
