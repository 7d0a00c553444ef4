"""The native namespace ``dekube_*``: its methods in the order in which they are described, and their schemas.

Handlers are pure: they ask the injected node and build JSON, and know no socket, clock or event loop. Those of a
WebSocket get its session instead.
"""

from __future__ import annotations

from typing import Final

from rpc.accounts import ACCOUNT_METHODS
from rpc.bills import BILL_COMPONENTS, BILL_METHODS
from rpc.carriage import CARRIAGE_METHODS
from rpc.chain import CHAIN_METHODS
from rpc.epochs import EPOCH_METHODS
from rpc.evidence import EVIDENCE_METHODS
from rpc.history import HISTORY_COMPONENTS, HISTORY_METHODS
from rpc.light import LIGHT_METHODS
from rpc.machines import MACHINE_COMPONENTS, MACHINE_METHODS
from rpc.network import NETWORK_METHODS
from rpc.proofs import PROOF_METHODS
from rpc.render import COMPONENTS as CHAIN_COMPONENTS
from rpc.schema import Schema
from rpc.subscriptions import NOTIFICATIONS, SESSION_METHODS
from rpc.table import Method
from rpc.tasks import TASK_COMPONENTS, TASK_METHODS
from rpc.transactions import TRANSACTION_METHODS
from rpc.validators import VALIDATOR_METHODS
from rpc.windows import WINDOW_COMPONENTS, WINDOW_METHODS

__all__ = ["COMPONENTS", "METHODS"]

METHODS: Final[tuple[Method, ...]] = (
    *CHAIN_METHODS,
    *TRANSACTION_METHODS,
    *ACCOUNT_METHODS,
    *HISTORY_METHODS,
    *PROOF_METHODS,
    *VALIDATOR_METHODS,
    *NETWORK_METHODS,
    *EPOCH_METHODS,
    *EVIDENCE_METHODS,
    *LIGHT_METHODS,
    *MACHINE_METHODS,
    *TASK_METHODS,
    *WINDOW_METHODS,
    *BILL_METHODS,
    *CARRIAGE_METHODS,
    *SESSION_METHODS,
)
COMPONENTS: Final[dict[str, Schema]] = {
    **CHAIN_COMPONENTS,
    **HISTORY_COMPONENTS,
    **MACHINE_COMPONENTS,
    **TASK_COMPONENTS,
    **WINDOW_COMPONENTS,
    **BILL_COMPONENTS,
    **NOTIFICATIONS,
}
