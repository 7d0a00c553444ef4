"""Where no host is named, both families are listened at, with one port; what fails leaves nothing open."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from p2p.base.listening import open_sockets
from state.primitives.errors import ConfigError
from state.primitives.listen import dial_target, parse_listen


def answers(family: int, host: str, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as client:
        return client.connect_ex((host, port)) == 0


def close(listeners: list[socket.socket]) -> None:
    for one in listeners:
        one.close()


def test_without_a_host_both_families_have_one_port() -> None:
    listeners = open_sockets(parse_listen(":0"))
    [port] = {one.getsockname()[1] for one in listeners}
    assert [one.family for one in listeners] == [socket.AF_INET, socket.AF_INET6]
    assert answers(socket.AF_INET, "127.0.0.1", port) and answers(socket.AF_INET6, "::1", port)
    close(listeners)


def test_several_addresses_and_one_family_alone() -> None:
    listeners = open_sockets(parse_listen("127.0.0.1:0, [::1]:0"))
    assert [one.getsockname()[0] for one in listeners] == ["127.0.0.1", "::1"]
    close(listeners)
    listeners = open_sockets(parse_listen("[::]:0"))
    [port] = [one.getsockname()[1] for one in listeners]
    assert answers(socket.AF_INET6, "::1", port) and not answers(socket.AF_INET, "127.0.0.1", port)
    assert open_sockets([]) == []
    close([*listeners, *(both := open_sockets([("0.0.0.0", port)]))])
    assert len(both) == 1


def test_what_is_taken_in_one_family_leaves_nothing_open() -> None:
    [taken] = open_sockets([("::1", 0)])
    [free] = open_sockets([("127.0.0.1", 0)])
    port = free.getsockname()[1]
    close([free])
    with pytest.raises(OSError, match="in use"):
        open_sockets([("127.0.0.1", port), ("::1", taken.getsockname()[1])])
    assert not answers(socket.AF_INET, "127.0.0.1", port)
    with pytest.raises(OSError, match="in use"):
        open_sockets([("", taken.getsockname()[1])])
    close([taken])


def test_a_machine_of_one_family_listens_at_that(monkeypatch: pytest.MonkeyPatch) -> None:
    made = socket.create_server

    def create_server(where: Any, *, family: int, **options: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no IPv6 here")
        return made(where, family=family, **options)

    monkeypatch.setattr(socket, "create_server", create_server)
    [listener] = open_sockets([("", 0)])
    close([listener])
    with pytest.raises(OSError, match="no IPv6"):
        open_sockets([("::1", 0)])


def test_what_is_written_as_addresses() -> None:
    assert parse_listen("") == ()
    assert parse_listen(":1,[::1]:2, h:3") == (("", 1), ("::1", 2), ("h", 3))
    for text in ("h", ":1,", ",", "h:1,h:1", ",".join(f":{port}" for port in range(17)), "h:65536"):
        with pytest.raises(ConfigError):
            parse_listen(text)
    reached = {":1": "127.0.0.1:1", "0.0.0.0:1": "127.0.0.1:1", "[::]:1,h:2": "[::1]:1", "h:2": "h:2"}
    for text, where in reached.items():
        assert dial_target(text) == where
