"""A registry of a cluster's owner that asks for a login: a real one, and answers of others."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from node.home.options import ExecutorOptions, KubernetesOptions
from node.market.container_backends import cluster_of
from tasks.custody.secrets import ContainerSecrets
from tasks.executor.containers.backend import EngineFacts
from tasks.executor.containers.errors import ContainerRefused, EngineUnavailable, ImageUnavailable
from tasks.executor.containers.kubernetes.backend import KubernetesBackend
from tasks.executor.containers.kubernetes.image_registry import ImageRegistry
from tasks.executor.containers.kubernetes.registry_backend import ClusterWithRegistry
from tasks.executor.containers.request import ContainerRequest, Image, Limits
from tasks.kinds.image_archives import read_image
from tests.container_engine import PASSWORD, running_registry, skip_without
from tests.tasks.images import layout, tar

PAIR: Final = ("keeper", PASSWORD)
LIMITS: Final = Limits(cores=1, memory_mib=64, disk_mib=32, output_bytes=1, time_limit_s=9)
BASIC: Final = "Basic " + base64.b64encode(f"keeper:{PASSWORD}".encode()).decode()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    skip_without("docker-registry")
    with running_registry(tmp_path / "registry", login=True) as port:
        yield f"127.0.0.1:{port}"


async def test_an_image_is_pushed_found_and_deleted_with_the_owners_login(host: str) -> None:
    file = io.BytesIO(layout((tar({"a": b"a" * 3000}), tar({"b": b"b"}))))
    image, url = read_image(file), f"http://{host}/dekube"
    registry = ImageRegistry(url, {host: PAIR, "other.test": ("me", "it")})
    await registry.check()
    await registry.push("archive", image, file)
    name = f"manifests/sha256:{image.digest.hex()}"
    assert await registry.has("archive", name)
    for logins, said in ((None, "needs a login"), ({host: ("keeper", "guessed")}, "refuses the login")):
        other = ImageRegistry(url, logins)
        for call in (other.check(), other.push("archive", image, file)):
            with pytest.raises(ImageUnavailable, match=said) as refused:
                await call
            assert "guessed" not in str(refused.value) and "guessed" not in repr(other._login)
    assert await registry.remove("archive", image.digest) and not await registry.has("archive", name)


def options(folder: Path, host: str, logins: dict[str, str], mode: int = 0o600) -> ExecutorOptions:
    path = folder / "logins.json"
    auths = {name: {"auth": base64.b64encode(login.encode()).decode()} for name, login in logins.items()}
    path.write_text(json.dumps({"auths": auths}))
    path.chmod(mode)
    lent = KubernetesOptions(enabled=True, registry=f"http://{host}/dekube", logins=str(path))
    return ExecutorOptions(kubernetes=lent)


async def test_a_node_pushes_and_its_pods_pull_with_the_login_of_its_file(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def grants(_backend: KubernetesBackend) -> EngineFacts:
        return EngineFacts("Kubernetes", (), False, False)

    monkeypatch.setattr(KubernetesBackend, "probe", grants)
    monkeypatch.setattr(KubernetesBackend, "check", lambda backend, _request: grants(backend))
    made = cluster_of(options(tmp_path, host, {host: f"keeper:{PASSWORD}"}), b"n" * 20, tmp_path / "node")
    assert isinstance(made, ClusterWithRegistry)
    facts = await made.probe()
    assert facts.has_archives and facts.archives_lack == ""
    data, archive = layout((tar({"a": b"a"}),)), tmp_path / "image.tar"
    archive.write_bytes(data)
    image = Image("archive", read_image(io.BytesIO(data)).digest)
    request = ContainerRequest(
        image, LIMITS, archive=b"k" * 32, archive_bytes=len(data), secrets=ContainerSecrets((("A", "secret"),))
    )
    await made.keep_image(b"t" * 32, request)
    await made.load(request, archive)
    placed = made._placed(request)
    assert placed.secrets == ContainerSecrets((("A", "secret"),), (), PAIR) and placed.image.registry == host
    assert made._with_login(request).secrets.login == PAIR, "what is watched is taken away again"
    pulled = replace(request, archive=b"", archive_bytes=0, image=Image(f"{host}/other/image", bytes(32)))
    assert made._placed(pulled).secrets.login is None, "nobody else gets the owner's login"
    wrong = cluster_of(options(tmp_path, host, {host: "keeper:guessed"}), b"n" * 20, tmp_path / "node")
    facts = await wrong.probe()
    assert not facts.has_archives and "refuses the login" in facts.archives_lack
    for logins, mode, said in (
        ({"other.test": "a:b"}, 0o600, "no login for"),
        ({host: "a:b"}, 0o644, "chmod 600"),
    ):
        with pytest.raises(ContainerRefused, match=said):
            cluster_of(options(tmp_path, host, logins, mode), b"n" * 20, tmp_path / "node")


def test_a_login_does_not_go_over_a_network_in_the_clear() -> None:
    for base in ("http://registry.test", "http://10.0.0.1:5000"):
        with pytest.raises(ContainerRefused, match="https"):
            ImageRegistry(f"{base}/a", {base.partition("//")[2]: PAIR})
    ImageRegistry("https://registry.test/a", {"registry.test": PAIR})


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[httpx.Request], httpx.Response]], None]:
    client = httpx.AsyncClient

    def use(answer: Callable[[httpx.Request], httpx.Response]) -> None:
        @asynccontextmanager
        async def made(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
            async with client(transport=httpx.MockTransport(answer), **options) as found:
                yield found

        monkeypatch.setattr(httpx, "AsyncClient", made)

    return use


class Body(httpx.AsyncByteStream):
    """What a server sends, read once."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.data


def sent(found: object, status: int = 200) -> httpx.Response:
    data = found if isinstance(found, bytes) else json.dumps(found).encode()
    return httpx.Response(status, stream=Body(data))


def challenge(realm: str) -> dict[str, str]:
    scope = "repository:a/archive:pull,push"
    return {"WWW-Authenticate": f'Bearer realm="{realm}",service="r",scope="{scope}"'}


async def test_a_registry_that_gives_tokens_is_asked_for_them(answering: Callable[..., None]) -> None:
    asked: list[tuple[str, str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        shown = request.headers.get("Authorization", "")
        asked.append((request.method, str(request.url), shown))
        if request.url.host == "tokens.test":
            return sent({"token": f"t{len(asked)}"}) if shown == BASIC else sent({}, 401)
        if not shown.startswith("Bearer t"):
            return httpx.Response(401, headers=challenge("https://tokens.test/jwt"))
        status = {"GET": 200, "POST": 202, "DELETE": 204}[request.method]
        return httpx.Response(status, headers={"Location": "/v2/a/archive/blobs/uploads/1"})

    answering(answer)
    await ImageRegistry("https://registry.test/a", {"registry.test": PAIR}).check()
    assert not [one for one in asked if one[2] == BASIC and "tokens.test" not in one[1]], "it has no password"
    assert any("scope=repository%3Aa%2Farchive%3Apull%2Cpush" in url for _, url, _ in asked)
    assert asked[-1][0] == "DELETE", "the upload is taken back"
    with pytest.raises(ImageUnavailable, match="refuses the login"):
        await ImageRegistry("https://registry.test/a", {"registry.test": ("keeper", "guessed")}).check()


@pytest.mark.parametrize(
    ("headers", "token", "error", "said"),
    [
        (challenge("http://10.0.0.1/t"), {}, ImageUnavailable, "elsewhere"),
        (challenge("https://me@tokens.test/t"), {}, ImageUnavailable, "elsewhere"),
        ({"WWW-Authenticate": "Negotiate"}, {}, ImageUnavailable, "unknown kind"),
        ({"WWW-Authenticate": "Bearer " + "x" * 5_000}, {}, ImageUnavailable, "unknown kind"),
        ({"WWW-Authenticate": "Basic realm=x"}, {}, ImageUnavailable, "refuses the login"),
        ({}, {}, ImageUnavailable, "refuses the login"),
        (challenge("https://tokens.test/t"), ["t"], ImageUnavailable, "no token"),
        (challenge("https://tokens.test/t"), {"token": "a\nb"}, ImageUnavailable, "no token"),
        (challenge("https://tokens.test/t"), b"x" * 70_000, ImageUnavailable, "too long"),
        (challenge("https://tokens.test/t"), 500, EngineUnavailable, "answers 500"),
        (challenge("https://tokens.test/t"), 403, ImageUnavailable, "refuses the login"),
        (challenge("https://tokens.test/t"), {"token": "t"}, ImageUnavailable, "refuses the login"),
    ],
)  # fmt: skip
async def test_a_registry_that_asks_for_logins_gets_no_more_than_its_own(
    headers: dict[str, str], token: object, error: type[Exception], said: str,
    answering: Callable[..., None],
) -> None:  # fmt: skip
    hosts: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        assert len(hosts) < 10, "it is asked again and again"
        if request.url.host == "tokens.test":
            return sent(b"", token) if isinstance(token, int) else sent(token)
        return httpx.Response(401, headers=headers)

    answering(answer)
    with pytest.raises(error, match=said) as refused:
        await ImageRegistry("https://registry.test/a", {"registry.test": PAIR}).check()
    assert set(hosts) <= {"registry.test", "tokens.test"} and PASSWORD not in str(refused.value)


@pytest.mark.parametrize(("status", "said"), [(403, "refuses a push"), (404, "POST is answered with 404")])
async def test_a_push_that_is_refused_is_named(status: int, said: str, answering: Callable[..., None]) -> None:
    answering(lambda request: httpx.Response(200 if request.method == "GET" else status))
    with pytest.raises(ImageUnavailable, match=said):
        await ImageRegistry("https://registry.test/a").check()

    def away(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route")

    answering(away)
    with pytest.raises(EngineUnavailable, match="no route"):
        await ImageRegistry("https://registry.test/a").check()
