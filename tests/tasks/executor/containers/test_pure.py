"""Requests, engine settings, logs and outputs: what must hold for every container that is asked for."""

from __future__ import annotations

import base64
import copy
import io
import json
import tarfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.executor.containers.errors import (
    BadOutputs,
    ContainerRefused,
    EngineError,
    ImageTooLarge,
    RequestInvalid,
    SettingsDiffer,
)
from tasks.executor.containers.images import PullTotals
from tasks.executor.containers.log_stream import LogFrames, LogTail, RotationWatch
from tasks.executor.containers.logins import decode_logins
from tasks.executor.containers.outputs import pack_outputs
from tasks.executor.containers.request import ContainerRequest, Image, InputMount, Limits
from tasks.executor.containers.settings import (
    ImageFacts,
    Places,
    check_settings,
    create_body,
    disk_folders,
    free_gpus,
    image_facts,
)

IMAGE = Image("registry.test:5000/team/name", b"\x01" * 32)
LIMITS = Limits(cores=2, memory_mib=64, disk_mib=32, output_bytes=1 << 16, time_limit_s=60)
FACTS = ImageFacts("sha256:" + "02" * 32, (IMAGE.reference,), 1000, ())
LABELS = {"dekube.node": "aa", "dekube.task": "bb"}

paths = st.lists(st.text("abcXYZ019-_. ", min_size=1, max_size=8), min_size=1, max_size=4).map(
    lambda p: "/" + "/".join(p)
)
limits = st.builds(
    Limits, cores=st.integers(1, 64), memory_mib=st.integers(16, 1 << 20), disk_mib=st.integers(16, 1 << 20),
    output_bytes=st.integers(0, 1 << 30), time_limit_s=st.integers(1, 86_400), grace_s=st.integers(0, 600),
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> ContainerRequest:
    found = draw(st.lists(paths, max_size=4, unique=True))
    fields: dict[str, Any] = {
        "command": tuple(draw(st.lists(st.text(max_size=20).filter(lambda text: "\0" not in text), max_size=4))),
        "environment": tuple(
            f"N{number}={draw(st.text('ab=', max_size=5))}" for number in range(draw(st.integers(0, 3)))
        ),
        "mounts": tuple(InputMount(bytes([number]) * 32, path) for number, path in enumerate(found)),
        "user": draw(st.sampled_from((0, 1000, 65_534))),
    }
    try:
        return ContainerRequest(IMAGE, draw(limits), **fields)
    except RequestInvalid:
        return ContainerRequest(IMAGE, draw(limits), **(fields | {"mounts": ()}))


def body_of(request: ContainerRequest, image: ImageFacts = FACTS) -> dict[str, Any]:
    inputs = tuple(f"/node/task/inputs/{number}" for number, _ in enumerate(request.mounts))
    return create_body(request, image, Places("/node/task/disk", inputs), LABELS)


def made_by_engine(body: dict[str, Any]) -> dict[str, Any]:
    """What an engine that obeys says of the container: with fields of its own, and nothing for what is empty."""
    host = {
        key: (value or None) if isinstance(value, dict | list) else value
        for key, value in body["HostConfig"].items()
    }
    config = {key: value for key, value in body.items() if key not in ("HostConfig", "Image")}
    return {
        "Image": body["Image"],
        "Config": copy.deepcopy(config) | {"Env": [*body["Env"], "PATH=/bin"], "WorkingDir": "/"},
        "HostConfig": copy.deepcopy(host) | {"MaskedPaths": ["/proc/kcore"]},
        "Mounts": [
            {"Type": "bind", "Source": one["Source"], "Destination": one["Target"], "RW": not one["ReadOnly"]}
            for one in body["HostConfig"]["Mounts"]
        ],
        "NetworkSettings": {"Networks": {"none": {}}},
    }  # fmt: skip


@given(requests())
def test_every_container_is_shut_in(request_made: ContainerRequest) -> None:
    body = body_of(request_made)
    host = body["HostConfig"]
    memory = request_made.limits.memory_mib << 20
    assert host["NetworkMode"] == "none" and host["ReadonlyRootfs"] and not host["Privileged"]
    assert host["CapDrop"] == ["ALL"] and not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["Memory"], host["MemorySwap"]) == (memory, memory)
    assert host["ShmSize"] <= memory and host["PidsLimit"] > 0
    assert host["NanoCpus"] == request_made.limits.cores * 10**9
    assert not host["Binds"] and not host["Devices"] and not host["VolumesFrom"]
    for mount in host["Mounts"]:
        assert mount["Source"].startswith("/node/task/")
        assert mount["ReadOnly"] == mount["Source"].startswith("/node/task/inputs/")
    targets = [mount["Target"] for mount in host["Mounts"]]
    assert len(set(targets)) == len(targets)
    assert body["User"] == f"{request_made.user}:{request_made.user}"
    assert not any(text.startswith("DEKUBE_") for text in body["Env"])
    json.dumps(body)


def test_a_container_sees_the_gpus_that_it_has_ordered_and_no_others() -> None:
    limits_of = {"cores": 1, "memory_mib": 64, "disk_mib": 64, "output_bytes": 0, "time_limit_s": 60}
    for gpus, told in (((), "void"), (("GPU-a", "GPU-b"), "GPU-a,GPU-b")):
        asks = ("NVIDIA_VISIBLE_DEVICES=all", "N=1")
        request_made = ContainerRequest(IMAGE, Limits(**limits_of, gpus=len(gpus)), environment=asks)
        body = create_body(request_made, FACTS, Places("/node/task/disk"), LABELS, gpus)
        named = [text for text in body["Env"] if text.startswith("NVIDIA_VISIBLE_DEVICES=")]
        assert named == [f"NVIDIA_VISIBLE_DEVICES={told}"] and "N=1" in body["Env"]
        found = made_by_engine(body)
        found["Config"]["Env"] = ["NVIDIA_VISIBLE_DEVICES=all", "N=1"]  # what an image brings along
        with pytest.raises(SettingsDiffer, match="Env"):
            check_settings(body, found)


@given(st.lists(st.integers(0, 3), max_size=6))
def test_no_gpu_is_given_to_two_containers(wishes: list[int]) -> None:
    lent, labels = tuple(f"GPU-{number}" for number in range(4)), [""]
    for wanted in wishes:
        used = [gpu for label in labels for gpu in label.split(",") if gpu]
        if len(used) + wanted > len(lent):
            with pytest.raises(ContainerRefused, match=f"{len(lent) - len(used)} of 4 are free"):
                free_gpus(lent, labels, wanted)
            continue
        given_now = free_gpus(lent, labels, wanted)
        assert len(set(given_now)) == wanted and not set(given_now) & set(used)
        labels.append(",".join(given_now))


@given(requests())
def test_an_engine_that_obeys_passes(request_made: ContainerRequest) -> None:
    body = body_of(request_made)
    check_settings(body, made_by_engine(body))


def leaves(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the ways to all values that are neither objects nor lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return [above]
    return [way for key, inner in items for way in leaves(inner, (*above, key))]


@given(requests(), st.data())
def test_each_changed_setting_is_found(request_made: ContainerRequest, data: st.DataObject) -> None:
    body = body_of(request_made)
    found = made_by_engine(body)
    way = data.draw(st.sampled_from(leaves(body["HostConfig"])))
    place: Any = found["HostConfig"]
    for key in way[:-1]:
        place = place[key]
    old = place[way[-1]]
    place[way[-1]] = (not old) if isinstance(old, bool) else old + 1 if isinstance(old, int) else f"{old}x"
    with pytest.raises(SettingsDiffer):
        check_settings(body, found)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["HostConfig"].update(CapAdd=["SYS_ADMIN"]),
        lambda found: found["HostConfig"].update(Devices=[{"PathOnHost": "/dev/sda"}]),
        lambda found: found["HostConfig"].update(Binds=["/:/host"]),
        lambda found: found["Mounts"].append({"Type": "volume", "Source": "v", "Destination": "/v", "RW": True}),
        lambda found: found.update(Image="sha256:" + "ff" * 32),
        lambda found: found["NetworkSettings"].update(Networks={"bridge": {}}),
        lambda found: found["Config"].update(User="0:0"),
        lambda found: found["Config"].update(Labels={}),
        lambda found: found["Config"].update(Env=[]),
        lambda found: found["Config"].update(Entrypoint=["/bin/other"]),
    ],
)
def test_more_than_was_ordered_is_found(change: Any) -> None:
    body = body_of(ContainerRequest(IMAGE, LIMITS, command=("/bin/true",)))
    found = made_by_engine(body)
    change(found)
    with pytest.raises(SettingsDiffer):
        check_settings(body, found)


@given(paths)
def test_a_path_of_the_engine_is_never_mounted_over(path: str) -> None:
    try:
        request_made = ContainerRequest(IMAGE, LIMITS, mounts=(InputMount(b"\1" * 32, path),))
    except RequestInvalid:
        return
    (mount,) = request_made.mounts
    parts = mount.path.split("/")
    assert mount.path.startswith("/") and not {"", ".", ".."} & set(parts[1:])
    assert parts[1] not in ("proc", "sys", "dev", "run", "tmp", "scratch", "output")


@pytest.mark.parametrize(
    "path",
    ["", "/", "relative", "/a/../b", "/a//b", "/a/", "/proc/x", "/var", "/tmp", "/scratch/a", "/a:b", "/a\nb",
     "/ä", "/output", "/output/x", "/" + "a" * 255],
)  # fmt: skip
def test_bad_paths_are_refused(path: str) -> None:
    with pytest.raises(RequestInvalid):
        ContainerRequest(IMAGE, LIMITS, mounts=(InputMount(b"\1" * 32, path),))


@pytest.mark.parametrize(
    "fields",
    [
        {"environment": ("A=1", "A=2")}, {"environment": ("1A=1",)}, {"environment": ("A",)},
        {"environment": ("DEKUBE_X=1",)}, {"command": ("a\0b",)}, {"command": ("\ud800",)},
        {"command": ("a",) * 257}, {"command": ("a" * 32769,)}, {"user": -1}, {"user": 1 << 16},
        {"mounts": (InputMount(b"\1", "/a"),)},
        {"mounts": (InputMount(b"\1" * 32, "/a"), InputMount(b"\1" * 32, "/a/b"))},
        {"mounts": tuple(InputMount(b"\1" * 32, f"/m{n}") for n in range(33))},
    ],
)  # fmt: skip
def test_bad_requests_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestInvalid):
        ContainerRequest(IMAGE, LIMITS, **fields)


@pytest.mark.parametrize(
    ("repository", "registry"),
    [("busybox", "docker.io"), ("team/image", "docker.io"), ("ghcr.io/team/image", "ghcr.io"),
     ("localhost/image", "localhost"), ("127.0.0.1:5000/image", "127.0.0.1:5000")],
)  # fmt: skip
def test_a_repository_names_its_registry(repository: str, registry: str) -> None:
    assert Image(repository, b"\1" * 32).registry == registry


@pytest.mark.parametrize(
    "repository", ["", "UPPER", "a:tag", "a@sha256:00", "a b", "a/../b", "-a", "http://a/b", "a" * 256]
)
def test_what_is_no_repository_is_refused(repository: str) -> None:
    with pytest.raises(RequestInvalid):
        Image(repository, b"\1" * 32)


def test_volumes_of_an_image_get_folders_of_the_disk() -> None:
    """The engine would make an unbounded volume for each."""
    image = image_facts({"Id": FACTS.image_id, "Config": {"Volumes": {"/data": {}, "/tmp": {}, "/output": {}}}})
    request_made = ContainerRequest(IMAGE, LIMITS)
    targets = {one["Target"]: one["Source"] for one in body_of(request_made, image)["HostConfig"]["Mounts"]}
    assert targets["/data"] == "/node/task/disk/volumes/0"
    assert "volumes/0" in disk_folders(request_made, image)
    with pytest.raises(ContainerRefused):
        body_of(request_made, ImageFacts("x", (), 0, ("/proc/x",)))


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=50)), max_size=10), st.integers(1, 7))
def test_frames_of_a_log_are_put_together(frames: list[tuple[int, bytes]], step: int) -> None:
    stream = b"".join(bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for kind, data in frames)
    reader = LogFrames()
    got = b"".join(reader.feed(stream[at : at + step]) for at in range(0, len(stream), step))
    assert got == b"".join(data for _, data in frames)


@given(st.binary(min_size=8, max_size=40))
def test_a_stream_that_is_none_is_refused_or_read(data: bytes) -> None:
    try:
        LogFrames().feed(data)
    except EngineError:
        return
    assert data[0] <= 2 and not any(data[1:4])


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 40))
def test_the_end_of_a_log_is_kept(parts: list[bytes], limit: int) -> None:
    tail = LogTail(limit)
    for part in parts:
        tail.add(part)
    whole = b"".join(parts)
    assert tail.contents() == whole[-limit:]
    assert tail.dropped == max(0, len(whole) - limit)


def test_a_log_that_fills_its_file_at_each_look_is_too_much() -> None:
    watch = RotationWatch(limit=3)
    assert [watch.is_flood(time) for time in (0, 1, 2, 2, 3, 4, 5)] == [False] * 6 + [True]


def archive(*members: tuple[str, bytes, bytes], linkname: str = "") -> io.BytesIO:
    """Return a tar of members: name, type, contents."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as packed:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.uid, info.mtime, info.mode = kind, len(data), 99, 12345, 0o4777
            info.linkname = linkname
            packed.addfile(info, io.BytesIO(data))
    file.seek(0)
    return file


names = st.sampled_from(("a", "b", "c/d", "c/e/f", "g\u00e4"))


@given(st.lists(st.tuples(names, st.binary(max_size=20)), max_size=6, unique_by=lambda one: one[0]))
def test_outputs_are_the_same_in_any_order(files: list[tuple[str, bytes]]) -> None:
    folders = {"output/", "output/c/", "output/c/e/"}
    members = [(name, tarfile.DIRTYPE, b"") for name in sorted(folders)]
    members += [(f"output/{name}", tarfile.REGTYPE, data) for name, data in files]
    first, second = io.BytesIO(), io.BytesIO()
    told = pack_outputs(archive(*members), first, 1 << 20)
    pack_outputs(archive(*reversed(members)), second, 1 << 20)
    assert first.getvalue() == second.getvalue()
    assert (told.files, told.left_out_count) == (len(files), 0)
    with tarfile.open(fileobj=io.BytesIO(first.getvalue())) as packed:
        found = {one.name: packed.extractfile(one).read() for one in packed if one.isreg()}  # type: ignore[union-attr]
        assert found == dict(files)
        for one in packed:
            assert (one.uid, one.gid, one.mtime, one.mode & ~0o755) == (0, 0, 0, 0)


def test_each_name_of_a_file_is_a_file_of_its_own() -> None:
    """An engine packs the second name of a file as a link: a program that uses both must find both."""
    packed, members = io.BytesIO(), (("output/a", tarfile.REGTYPE, b"text"), ("output/b", tarfile.LNKTYPE, b""))
    told = pack_outputs(archive(*members, linkname="output/a"), packed, 1 << 20)
    with tarfile.open(fileobj=io.BytesIO(packed.getvalue())) as found:
        assert {one.name: found.extractfile(one).read() for one in found} == {"a": b"text", "b": b"text"}  # type: ignore[union-attr]
    assert (told.files, told.left_out_count) == (2, 0)
    with pytest.raises(BadOutputs, match="more than"):  # each counts: few bytes could name many
        pack_outputs(archive(*members, linkname="output/a"), io.BytesIO(), 7)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_left_out(kind: bytes) -> None:
    packed = io.BytesIO()
    members = ("output/", tarfile.DIRTYPE, b""), ("output/x", kind, b""), ("output/y", tarfile.REGTYPE, b"y")
    source = archive(*members, linkname="/etc/passwd")
    told = pack_outputs(source, packed, 1 << 20)
    assert (told.files, told.left_out) == (1, ("x",))
    with tarfile.open(fileobj=io.BytesIO(packed.getvalue())) as found:
        assert found.getnames() == ["y"]


@pytest.mark.parametrize("name", ["/abs", "output/../../x", "../x", "output/./x"])
def test_a_path_that_leaves_the_folder_is_refused(name: str) -> None:
    with pytest.raises(BadOutputs):
        pack_outputs(archive((name, tarfile.REGTYPE, b"x")), io.BytesIO(), 1 << 20)


@pytest.mark.parametrize(
    "name", ["output/a:b", "output/a\\b", "output/a\nb", "output/nul.txt", "output/" + "a" * 256]
)
def test_a_name_that_not_all_machines_have_is_left_out(name: str) -> None:
    told = pack_outputs(archive((name, tarfile.REGTYPE, b"x")), io.BytesIO(), 1 << 20)
    assert (told.files, told.left_out_count) == (0, 1)


def test_outputs_above_their_limit_are_refused() -> None:
    with pytest.raises(BadOutputs):
        pack_outputs(archive(("output/x", tarfile.REGTYPE, b"x" * 20_000)), io.BytesIO(), 19_999)
    with pytest.raises(BadOutputs):
        pack_outputs(archive(("output/x", tarfile.REGTYPE, b"x")), io.BytesIO(), 5_000)  # a tar has 10 KiB


@given(st.binary(max_size=1500))
def test_what_is_no_archive_is_refused(data: bytes) -> None:
    try:
        told = pack_outputs(io.BytesIO(data), io.BytesIO(), 1 << 20)
    except BadOutputs:
        return
    assert told.files == 0


def test_a_pull_is_added_up_by_layer() -> None:
    totals = PullTotals()
    line = {"status": "Downloading", "id": "a", "progressDetail": {"current": 5, "total": 10}}
    assert totals.take(line).total == 10
    assert totals.take(line | {"id": "b"}).current == 10
    assert totals.take({"status": "Extracting", "id": "b", "progressDetail": {"current": 9}}).total == 20
    with pytest.raises(ImageTooLarge):
        for number in range(600):
            totals.take(line | {"id": str(number)})


def test_logins_are_read_and_not_shown() -> None:
    auth = base64.b64encode(b"keeper:correct horse").decode()
    found = decode_logins(
        json.dumps(
            {"auths": {"https://index.docker.io/v1/": {"auth": auth}, "r.test:5000": {"auth": auth}}}
        ).encode()
    )
    assert set(found) == {"docker.io", "r.test:5000"}
    sent = json.loads(base64.urlsafe_b64decode(found["docker.io"].header()))
    assert (sent["username"], sent["password"], sent["serveraddress"]) == (
        "keeper", "correct horse", "https://index.docker.io/v1/",
    )  # fmt: skip
    assert "horse" not in repr(found)


@given(st.binary(max_size=200))
def test_a_file_of_logins_is_read_strictly(data: bytes) -> None:
    try:
        decode_logins(data)
    except ContainerRefused as error:
        assert data.decode("utf-8", "replace")[:20] not in str(error) or len(data) < 20


@pytest.mark.parametrize(
    "data", [b'{"auths":[]}', b'{"auths":{"a":{"auth":"eA=="}}}', b'{"auths":{"a":{}}}', b"[" * 5000]
)
def test_other_files_of_logins_are_refused(data: bytes) -> None:
    with pytest.raises(ContainerRefused):
        decode_logins(data)
