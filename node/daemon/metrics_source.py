"""Reads the gauges of a running node for its metrics endpoint."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from node.daemon.running import RunningNode
from node.market.containers import Containers

__all__ = ["NodeMetricsSource"]


class NodeMetricsSource:
    """Implements ``node.telemetry.source.MetricsSource`` over a running node."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node

    def is_following(self) -> bool:
        """Tell whether the node follows the chain."""
        return not self._node.sync().syncing

    def families(self) -> list[Metric]:
        """Return the node's metrics."""
        node = self._node
        families: list[Metric] = []
        head = node.ledger.head()
        for name, text, value in (
            ("dekube_block_height", "Height of the newest final block", head.height),
            ("dekube_block_time_seconds", "Chain time of the newest final block", head.time_ms / 1000),
            ("dekube_base_fee", "Base fee of the next block", head.base_fee_next),
            ("dekube_mempool_transactions", "Transactions in the mempool", len(node.ledger.mempool)),
            ("dekube_mempool_bytes", "Bytes of the mempool", node.ledger.mempool.size_bytes),
            ("dekube_peers", "Connected peers", len(node.network.peers())),
            ("dekube_relay_reservations", "Reservations at relays that stand", len(node.relays.reservations)),
            (
                "dekube_multicast_last_seconds",
                "How long the newest own block took to the last of its receivers",
                next((done.took_s for done in reversed(node.network.multicasts.finished)), 0.0),
            ),
            (
                "dekube_unknown_version_signalled_ratio",
                "Part of the committee's weight that signals a version of the protocol that is not known here",
                0.0 if (pending := node.upgrades.pending) is None else pending.percent / 100,
            ),
            (
                "dekube_last_known_height",
                "The last block before a version of the protocol holds that is not known here, 0 for none",
                0 if pending is None else pending.last_height or 0,
            ),
            (
                "dekube_clock_ahead_seconds",
                "How far this machine's clock is ahead of the validators', 0 while it is right or unknown",
                node.clocks.estimate().own_ahead_ms / 1000,
            ),
            ("dekube_jobs_running", "Jobs of the executor that run", len(node.duties.jobs())),
            *_compared(node.duties.containers),
            ("dekube_job_ends", "Job processes that ended by themselves since the start", node.duties.job_ends),
            (
                "dekube_parked_tasks",
                "Tasks of the chain that found no machine and wait for one, counted to 1,000",
                node.duties.parked_tasks(),
            ),
            (
                "dekube_check_fund_dkb",
                "What the chain's check fund can put down for checks, in DKB",
                node.duties.check_fund() / 10**18,
            ),
        ):
            families.append(GaugeMetricFamily(name, text, value=float(value)))
        network = node.network
        for name, text, value in (
            (
                "dekube_peer_bulk_connections",
                "Bulk connections of all peers",
                sum(p.bulk_connections for p in network.peers()),
            ),
            ("dekube_receive_bytes", "Memory of messages on their way in", network.memory.used_bytes),
        ):
            families.append(GaugeMetricFamily(name, text, value=float(value)))
        granted = GaugeMetricFamily(
            "dekube_congestion_control", "What the kernel granted on the sockets of the network", labels=["name"]
        )
        granted.add_metric([network.congestion_control or "unknown"], 1.0)
        families.append(granted)
        families += _containers(node)
        events = CounterMetricFamily("dekube_network_events", "Events of the network by name", labels=["event"])
        for event, count in node.network.counters.items():
            events.add_metric([event], count)
        market = CounterMetricFamily(
            "dekube_market_events", "What this machine left or did late in the market", labels=["event"]
        )
        for event, count in node.duties.market_events.items():
            market.add_metric([event], count)
        chain = CounterMetricFamily(
            "dekube_chain_events", "Events in blocks that this node followed, by name", labels=["event"]
        )
        for event, count in node.chain_events.counts.items():
            chain.add_metric([event], count)
        disputes = GaugeMetricFamily(
            "dekube_disputes", "Disputes that this machine plays, by state", labels=["state"]
        )
        for state, number in node.duties.disputes.items():
            disputes.add_metric([state], float(number))
        results = CounterMetricFamily(
            "dekube_dispute_results", "Disputes of this machine that ended since the start", labels=["result"]
        )
        for result in ("won", "lost", "dropped"):
            results.add_metric([result], node.duties.dispute_results.get(result, 0))
        stages = CounterMetricFamily(
            "dekube_stage_cpu_seconds", "CPU time of the node process by stage of its work", labels=["stage"]
        )
        for stage, seconds in node.stages.seconds().items():
            stages.add_metric([stage], seconds)
        return [*families, events, market, chain, disputes, results, stages]


def _containers(node: RunningNode) -> list[Metric]:
    """Return the sums over the containers of this machine: no label names a task."""
    containers = node.duties.containers
    lives = [] if containers is None else containers.lives()
    cores, memory = sum(live.cpu_permille for live in lives) / 1000, sum(live.memory_bytes for live in lives)
    families: list[Metric] = [
        GaugeMetricFamily(name, text, value=value)
        for name, text, value in (
            ("dekube_containers_running", "Containers that run on this machine", float(len(lives))),
            (
                "dekube_containers_cores",
                "Processor cores in use by them",
                cores,
            ),
            ("dekube_containers_memory_bytes", "Memory in use by them", float(memory)),
        )
    ]
    moved = CounterMetricFamily(
        "dekube_container_egress_bytes", "Bytes that ended containers moved through their proxies, by direction",
        labels=["direction"],
    )  # fmt: skip
    if containers is not None:
        moved.add_metric(["sent"], containers.egress.total.sent_bytes)
        moved.add_metric(["received"], containers.egress.total.received_bytes)
    views = CounterMetricFamily(
        "dekube_container_views", "Questions of requesters about containers, by what became of them",
        labels=["result"],
    )  # fmt: skip
    for result, count in node.duties.views.counts.items():
        views.add_metric([result], count)
    return [*families, moved, views]


def _compared(containers: Containers | None) -> tuple[tuple[str, str, float], ...]:
    """Return how many results of containers were sealed for a comparison, and how many of them agreed."""
    sealed, agreed = (0, 0) if containers is None else (containers.sealed, containers.agreed)
    return (
        (
            "dekube_container_outputs_sealed",
            "Results of containers that were sealed for a comparison since the start",
            sealed,
        ),
        (
            "dekube_container_outputs_agreed",
            "Results of containers since the start that another machine had as well",
            agreed,
        ),
    )
