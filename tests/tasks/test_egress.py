"""Names that a container may reach: their form, and which pattern covers which (R129, R130)."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from tasks.kinds.egress import (
    EGRESS_MAX,
    NAME_LENGTH_MAX,
    covering,
    egress_fault,
    entry_of,
    is_covered,
    is_host_name,
)
from tasks.ledger.registry import NodeProfile, NodeRole, load_node, profile_from_value, profile_to_value
from tasks.ledger.screening import look_out, machine_objections
from tasks.spec import decode_spec, encode_spec
from tests.tasks.containers import container, host, part
from tests.tasks.world import World

LABEL: Final = st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)
NAME: Final = st.builds(
    lambda labels, top: ".".join([*labels, top]), st.lists(LABEL, min_size=1, max_size=5),
    st.from_regex(r"[a-z](?:[a-z0-9]{0,3})?", fullmatch=True),
)  # fmt: skip
PORT: Final = st.integers(1, 65_535)
NO_NAMES: Final = (
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "[::1]", "::1", "localhost", "com", "a..b", ".a.b",
    "a.b.", "-a.b", "a-.b", "a_b.c", "a.b/c", "a b.c", "ü.de", "*", "*.*.a.b", "a.*.b", "**.a.b", "*.com", "",
    "a.b:0", "a.b:65536", "a.b:01", "a.b:", "a.b:443:1", "a@b.c", "http://a.b", "a." * 8 + "b", "a" * 64 + ".b",
)  # fmt: skip
REACHING: Final = part().process._replace(egress=("*.hf.co:443", "pypi.org:443"))


@pytest.mark.parametrize("text", NO_NAMES)
def test_what_is_no_name_is_no_entry(text: str) -> None:
    assert entry_of(text) is None
    assert egress_fault((text,)) or not is_host_name(text)


def test_the_port_of_tls_may_be_left_out_and_case_does_not_matter() -> None:
    assert entry_of("PyPI.org") == "pypi.org:443"
    assert entry_of("*.HF.co:8443") == "*.hf.co:8443"
    assert entry_of("*", is_pattern=True) == "*:443"
    assert entry_of("a" * 60 + "." + "b" * 60 + ".cc") is not None
    assert entry_of(".".join(["a" * 60] * 3)) is None and NAME_LENGTH_MAX < 182


@given(NAME, PORT)
def test_a_name_is_covered_by_itself_what_is_above_it_and_all(name: str, port: int) -> None:
    entry = f"{name}:{port}"
    assert egress_fault((entry,)) == ""
    assert all(egress_fault((one,), is_pattern=True) == "" for one in covering(entry))
    for pattern in covering(entry):
        assert is_covered(entry, (pattern,))
        assert not is_covered(entry, (pattern.rpartition(":")[0] + f":{port % 65_535 + 1}",))
    assert not is_covered(entry, (f"*.{entry}",)), "a name is not below itself"
    assert not is_covered(f"evil{entry}", (entry,)) and not is_covered(f"a.{entry}", (entry,))
    assert is_covered(f"*.{entry}", (f"*.{entry}",)) and not is_covered(f"*.{entry}", (entry,))


@given(NAME, NAME)
def test_a_wildcard_covers_what_ends_with_it_at_a_dot_alone(name: str, other: str) -> None:
    assert is_covered(f"{name}:443", (f"*.{other}:443",)) == name.endswith("." + other)


def test_lists_are_sorted_short_and_without_repetitions() -> None:
    names = tuple(f"{chr(97 + at)}.example.org:443" for at in range(EGRESS_MAX + 1))
    assert egress_fault(names[:EGRESS_MAX]) == ""
    for wrong in (names, names[1::-1], names[:1] * 2, ("*:443",)):
        assert egress_fault(wrong)
    assert egress_fault(("*:443",), is_pattern=True) == ""


def test_a_specification_with_names_is_read_as_it_was_written() -> None:
    spec = container(process=REACHING)
    assert decode_spec(encode_spec(spec)) == spec and spec.egress == ("*.hf.co:443", "pypi.org:443")
    plain = encode_spec(container())
    assert len(decode(plain, limit_bytes=1 << 16)[5]) == 3, "one without names is as before"


@pytest.mark.parametrize(
    "egress",
    [[], ["pypi.org:443", "*.hf.co:443"], ["127.0.0.1:443"], ["pypi.org"], ["*:443"], [b"x"], "pypi.org:443"],
)
def test_a_specification_with_other_lists_is_refused(egress: object) -> None:
    value = decode(encode_spec(container(process=REACHING)), limit_bytes=1 << 16)
    value[5][3] = egress
    with pytest.raises(DecodeError, match="egress"):
        decode_spec(encode(value))


def test_two_machines_whose_outputs_are_compared_reach_nothing() -> None:
    spec = container(process=REACHING)._replace(level=1)
    with pytest.raises(DecodeError, match=r"process\.egress"):
        decode_spec(encode_spec(spec))


PLAIN: Final = NodeProfile(b"m" * 20, NodeRole.COMPUTE, (), 4, 1024, 0, 1, 1, 1, 0, (), "test")
PROFILE: Final = PLAIN._replace(egress=("*.hf.co:443", "pypi.org:443"))


def test_a_profile_with_patterns_is_read_as_it_was_written() -> None:
    others = PROFILE._replace(until_ms=7), PLAIN._replace(until_ms=7), PROFILE._replace(egress=("*:443",))
    for one in (PLAIN, PROFILE, *others):
        assert profile_from_value(decode(encode(profile_to_value(one)), limit_bytes=4096)) == one


@pytest.mark.parametrize(
    "tail",
    [
        [0], [0, []], [5, []], [0, ["pypi.org"]], [0, ["b.b:1", "a.a:1"]], [0, [1]], [0, ["a.a:1"], 0],
        [-1, ["a.a:1"]], [0, [f"a{at:02}.a:1" for at in range(EGRESS_MAX + 1)]],
    ],
)  # fmt: skip
def test_a_profile_with_another_tail_is_refused(tail: list[Value]) -> None:
    value = profile_to_value(PLAIN)
    assert isinstance(value, list)
    with pytest.raises(DecodeError):
        profile_from_value([*value, *tail])


def test_n59_a_job_is_matched_with_machines_alone_that_let_it_reach_all_its_names() -> None:
    """A machine whose owner lets containers reach nothing, or other names, never gets the job."""
    world = World()
    host(world, 0x41)
    host(world, 0x42, egress=("pypi.org:443",))
    task = world.create(container(process=REACHING))
    for _ in range(8):
        world.block()
    assert not world.task(task).worker
    wide = host(world, 0x43, egress=("*.example.org:443", "*.hf.co:443", "pypi.org:443"))
    stored = load_node(world.state, wide)
    assert stored is not None and stored.profile.egress == ("*.example.org:443", "*.hf.co:443", "pypi.org:443")
    for _ in range(20):
        world.block()
        if world.task(task).worker:
            break
    assert world.task(task).worker == wide


def test_a_quote_says_which_names_can_be_reached() -> None:
    world = World()
    spec, now_ms = container(process=REACHING), world.context().steady_ms
    host(world, 0x41)
    (said,) = machine_objections(spec, look_out(world.state, spec, now_ms, world.parameters))
    assert said.code == "no_such_machine" and "no machine lets them reach any" in said.text
    host(world, 0x42, egress=("*.pypi.org:443", "pypi.org:443"))
    (said,) = machine_objections(spec, look_out(world.state, spec, now_ms, world.parameters))
    assert "*.hf.co:443, pypi.org:443 (machines let them reach *.pypi.org:443, pypi.org:443" in said.text
    host(world, 0x43, egress=("*:443",))
    assert machine_objections(spec, look_out(world.state, spec, now_ms, world.parameters)) == []
