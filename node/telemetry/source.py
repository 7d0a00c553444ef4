"""What the metrics endpoint reads from a running node at each scrape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prometheus_client.metrics_core import Metric

__all__ = ["MetricsSource"]


class MetricsSource(Protocol):
    """A running node; its methods are called on the node's event loop."""

    def families(self) -> Iterable[Metric]:
        """Return the gauges that are read at a scrape."""
        ...

    def is_following(self) -> bool:
        """Tell whether the node follows the chain, for /readyz."""
        ...
