"""What a cluster can sell: random machines, pods and orders, and a scheduler that does what it likes."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tasks.executor.containers.errors import ContainerRefused
from tasks.executor.containers.kubernetes.inventory import (
    NOTHING,
    PODS_MAX,
    WAITING_MAX,
    Amounts,
    Inventory,
    Machine,
    Stock,
    lack_of,
    places_for,
    pod_amounts,
    take_stock,
)
from tasks.executor.containers.kubernetes.manifests import Cluster
from tasks.executor.containers.kubernetes.placement import Placement, parse_placement, why_not
from tasks.executor.containers.kubernetes.quantities import amount, amount_above
from tasks.executor.containers.kubernetes.selling import Selling, about
from tasks.executor.containers.request import ContainerRequest, Image, Limits

GPU = "nvidia.com/gpu"
GIB = 1 << 30
STOCK = Stock("ours")


def machine(name: str = "m", **fields: Any) -> dict[str, Any]:
    has = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "110", GPU: "4"}
    return {
        "metadata": {"name": name, "labels": fields.pop("labels", {})},
        "spec": {"unschedulable": fields.pop("cordoned", False), "taints": fields.pop("taints", [])},
        "status": {
            "allocatable": has | fields,
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "MemoryPressure", "status": "False"}],
        },
    }


def asks(cpu: str = "0", memory: str = "0", **fields: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}, **fields}


def pod(on: str = "m", *, status: dict[str, Any] | None = None, labels: Any = None, **spec: Any) -> dict[str, Any]:
    spec.setdefault("containers", [asks("1", "1Gi")])
    return {
        "metadata": {"name": "p", "namespace": "theirs", "labels": labels},
        "spec": {"nodeName": on, **spec}, "status": status or {"phase": "Running"},
    }  # fmt: skip


def free(pods: list[Any], machines: list[Any] | None = None, stock: Stock = STOCK) -> Amounts:
    return take_stock(machines or [machine()], pods, stock).free


WHOLE = Amounts(8_000, 32 * GIB, 100 * GIB, 110, 4)


def test_pods_count_as_their_scheduler_counts_them() -> None:
    assert free([]) == WHOLE
    assert free([pod()]) == WHOLE.minus(Amounts(1_000, GIB, 0, 1, 0))
    first = [asks("3"), asks("500m", restartPolicy="Always"), asks("1")]
    start = pod_amounts({"initContainers": first, "containers": [asks("1"), asks("200m")]}, GPU)
    assert start.millicores == 3_000, "the largest step of the start"
    later = pod_amounts({"initContainers": first[1:], "containers": [asks("1"), asks("200m")]}, GPU)
    assert later.millicores == 1_700, "a side container goes on beside the others"
    assert pod_amounts({"containers": [asks("1")], "overhead": {"cpu": "250m"}}, GPU).millicores == 1_250
    whole = {"containers": [asks("1", "1Gi")], "resources": {"requests": {"cpu": "2"}}}
    assert pod_amounts(whole, GPU) == Amounts(2_000, GIB, 0, 1, 0)
    shrinks = {"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "3"}}]}
    assert pod_amounts({"containers": [asks("1")]}, GPU, shrinks).millicores == 3_000


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_are_over_take_nothing(phase: str) -> None:
    assert free([pod(status={"phase": phase})]) == WHOLE
    ending = pod(status={"phase": "Running"})
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert free([ending]) != WHOLE, "one that is ending has its room until it is over"


def test_pods_of_this_node_that_end_leave_their_room() -> None:
    own = [pod(labels={"dekube.node": "ours"}), pod(labels={"dekube.node": "ours"})]
    own[1]["metadata"]["namespace"] = "kept"
    found = take_stock([machine(), machine("b")], [*own, pod()], STOCK)
    assert found.held.keys() == {"theirs", "kept"}
    one = Amounts(1_000, GIB, 0, 1, 0)
    assert found.free == WHOLE.plus(WHOLE).minus(one).minus(one).minus(one)
    assert found.after({"kept"}).free == found.free.plus(one)
    assert found.after({"kept", "theirs"}) == found


def test_pods_that_wait_count_where_they_may_come() -> None:
    waits = pod("", containers=[asks("2")])
    found = take_stock([machine("a"), machine("b")], [waits], STOCK)
    assert found.waiting == (Amounts(2_000, 0, 0, 1, 0),) and found.free == WHOLE.plus(WHOLE)
    gated = pod("", schedulingGates=[{"name": "x"}])
    own = pod("", labels={"dekube.node": "ours"})
    never = [pod("", containers=[asks("9")]), pod("", nodeSelector={"a": "b"}), gated, own]
    assert not take_stock([machine()], never, STOCK).waiting
    nominated = pod("", status={"phase": "Pending", "nominatedNodeName": "m"})
    assert free([nominated]) == WHOLE.minus(Amounts(1_000, GIB, 0, 1, 0))


def test_machines_that_take_nothing_are_left_out() -> None:
    tainted = machine(taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    away = machine()
    away["status"]["conditions"][0]["status"] = "Unknown"
    for one, why in (
        (machine(cordoned=True), "cordoned"),
        (tainted, "tainted"),
        (away, "not ready"),
        ({}, "cannot be read"),
    ):
        found = take_stock([one], [], STOCK)
        assert (found.machines, found.sold, found.left_out) == ((), NOTHING, {why: 1})
    for text in ("gpu=yes:NoSchedule", "gpu:NoSchedule", "gpu"):
        assert not why_not(tainted, parse_placement((), (text,)))
    for text in ("gpu=no:NoSchedule", "gpu:NoExecute", "other"):
        assert why_not(tainted, parse_placement((), (text,))) == "tainted"
    assert not why_not(machine(taints=[{"key": "x", "effect": "PreferNoSchedule"}]), Placement())
    chosen = parse_placement(("pool=market",), ())
    assert not why_not(machine(labels={"pool": "market"}), chosen) and why_not(machine(), chosen) == "not selected"


@pytest.mark.parametrize("bad", [("a",), ("=a",), ("a=1", "a=2"), ("a=\n",), ("a=b",) * 33])
def test_placements_that_cannot_be(bad: tuple[str, ...]) -> None:
    with pytest.raises(ContainerRefused, match="node_selector"):
        parse_placement(bad, ())


@pytest.mark.parametrize("bad", ["", "=a", "a:Never", "a=:NoSchedule", "a=b:"])
def test_tolerations_that_cannot_be(bad: str) -> None:
    with pytest.raises(ContainerRefused, match="tolerations"):
        parse_placement((), (bad,))


def test_what_the_owner_keeps_is_not_sold() -> None:
    kept = STOCK._replace(keeps_percent=25, keeps_gpus=1)
    assert free([], stock=kept) == Amounts(6_000, 24 * GIB, 75 * GIB, 110, 3)
    assert free([], stock=STOCK._replace(keeps_gpus=9)).gpus == 0


def test_parts_of_cards_are_sold_by_their_name() -> None:
    labels = {
        "nvidia.com/gpu.product": "A100", "nvidia.com/gpu.memory": "40960",
        "nvidia.com/mig-1g.5gb.product": "A100-MIG-1g.5gb", "nvidia.com/mig-1g.5gb.memory": "4864",
    }  # fmt: skip
    mixed = machine(labels=labels, **{"nvidia.com/mig-1g.5gb": "7"})
    part = take_stock([mixed], [], STOCK._replace(gpu_resource="nvidia.com/mig-1g.5gb"))
    assert (part.machines[0].model, part.machines[0].model_mib, part.free.gpus) == ("A100-MIG-1g.5gb", 4_864, 7)
    assert take_stock([mixed], [], STOCK).machines[0].model == "A100"
    assert take_stock([machine()], [], STOCK).machines[0].model == GPU


def test_what_cannot_be_read_is_not_sold() -> None:
    assert free([pod(containers=[asks("much")])]) == NOTHING
    assert free([pod("b", containers=[asks("much")])], [machine("a"), machine("b")]) == WHOLE
    assert free([pod("", containers=[asks("much")])]) == NOTHING
    assert free([7]) == NOTHING
    waits = [pod("", containers=[asks("1")])] * (WAITING_MAX + 2)
    assert free(waits) == NOTHING
    over = pod(status={"phase": "Failed"})
    assert take_stock([machine()], (over for _ in range(PODS_MAX + 1)), STOCK).machines == ()


def test_five_thousand_machines_are_counted_and_no_more() -> None:
    found = take_stock((machine(str(number)) for number in range(5_002)), [], STOCK)
    assert len(found.machines) == 5_000 and found.left_out == {"beyond the limit": 2}


QUANTITIES = [
    ("1.5", 1_500),
    ("0.1", 100),
    ("1e3", 10**6),
    ("1E3", 10**6),
    ("1.5Gi", 1_610_612_736_000),
    ("+1", 1_000),
]


@pytest.mark.parametrize(("text", "thousandths"), QUANTITIES)
def test_all_forms_of_quantities_are_read(text: str, thousandths: int) -> None:
    assert amount(text) == amount_above(text) == thousandths


def test_quantities_are_rounded_against_what_is_sold() -> None:
    assert (amount("1500u"), amount_above("1500u")) == (1, 2)
    assert (amount("1n"), amount_above("1n")) == (0, 1)
    for bad in ("", "-1", "1.2.3", "1e999", "1Kim", "x", "٣", None, True, "9" * 21):
        assert amount(bad) == 0
        with pytest.raises(ValueError, match="not a quantity"):
            amount_above(bad)


AMOUNTS = st.builds(
    Amounts, st.integers(0, 9), st.integers(0, 9), st.integers(0, 3), st.integers(1, 2), st.integers(0, 3)
)
FREE = st.builds(
    Amounts, st.integers(-2, 20), st.integers(-2, 20), st.integers(-1, 9), st.integers(0, 6), st.integers(-1, 8)
)


def inventory(frees: list[Amounts], waiting: list[Amounts]) -> Inventory:
    machines = tuple(Machine(str(number), free, free) for number, free in enumerate(frees))
    return Inventory(machines, tuple(waiting), {}, {})


@given(
    st.lists(FREE, max_size=5),
    st.lists(AMOUNTS, max_size=2),
    st.lists(AMOUNTS, max_size=6),
    st.randoms(use_true_random=False),
)
def test_n54_whoever_was_accepted_has_room_wherever_the_scheduler_puts_the_others(
    frees: list[Amounts], waiting: list[Amounts], orders: list[Amounts], rng: random.Random
) -> None:
    there = inventory(frees, waiting)
    accepted: list[Amounts] = []
    for order in orders:
        if not lack_of(there, order, accepted):
            accepted.append(order)
    left = list(frees)
    pods = [(one, True) for one in accepted] + [(one, False) for one in waiting]
    rng.shuffle(pods)
    for one, is_ours in pods:
        fitting = [at for at, has in enumerate(left) if has.holds(one)]
        assert fitting or not is_ours, "sold twice"
        if fitting:
            at = rng.choice(fitting)
            left[at] = left[at].minus(one)


@given(st.lists(FREE, max_size=5), st.lists(AMOUNTS, max_size=2), st.lists(AMOUNTS, max_size=3), AMOUNTS)
def test_what_is_offered_has_room(
    frees: list[Amounts], waiting: list[Amounts], ahead: list[Amounts], smallest: Amounts
) -> None:
    there = inventory(frees, waiting)
    places = places_for(there, smallest, ahead)
    assert bool(places.number) == (not lack_of(there, smallest, ahead))
    if places.number:
        assert places.largest.holds(smallest)
        assert not lack_of(there, places.largest, ahead)
        packed = sum(
            max(0, min(one // less for one, less in zip(has, smallest, strict=True) if less)) for has in frees
        )
        assert places.number <= max(1, packed)
    if not waiting and not ahead and places.number:
        most = max(has.gpus for has in frees if has.holds(smallest))
        assert places.largest.gpus == most, "the machine with the most GPUs is offered"


def test_an_inventory_is_told_to_people() -> None:
    labels = {"nvidia.com/gpu.product": "A100"}
    found = take_stock([machine(labels=labels), machine("b", cordoned=True)], [pod()], STOCK)
    assert about(found, GPU, "dekube") == (
        "1 machines, 7 of 8 cores are free, 31 of 32 GiB, 4 of 4 nvidia.com/gpu (A100), 1 left out: cordoned, "
        "PriorityClass dekube"
    )


@pytest.mark.parametrize(
    ("models", "told"),
    [
        (("NVIDIA A100-SXM4-80GB",), ""),
        (("NVIDIA A100-SXM4-80GB", "Tesla T4"), "may give Tesla T4"),
        ((), "has none"),
    ],
)  # fmt: skip
async def test_a_kind_of_gpu_is_refused_where_the_scheduler_may_give_another(
    models: tuple[str, ...], told: str
) -> None:
    machines = [Machine(name, NOTHING, Amounts(gpus=1), name, 81_920) for name in models]
    without = Machine("no card", NOTHING, Amounts(millicores=1_000))
    selling = Selling(lambda: pytest.fail("an API server is asked"), Cluster(), STOCK, 1, lambda _task: "")
    selling._taken = trio.current_time(), 0.0, Inventory((*machines, without), (), {}, {})
    limits = Limits(cores=1, memory_mib=64, disk_mib=64, output_bytes=0, time_limit_s=60, gpus=1)
    order = ContainerRequest(Image("a", bytes(32)), limits, gpu_words=("a100",), gpu_memory_mib=40_000)
    whole = told and f"GPUs with a100, 40000 MiB are ordered; the cluster {told}"
    assert await selling.lack_of_cards(order) == whole
