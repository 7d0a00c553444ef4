"""The native namespace ``dekube_*``: its methods in the order of the documentation, and their schemas.

Handlers are pure: they query the node that they are given and return JSON, without socket, clock or event loop.
Handlers of WebSocket methods get the session instead.
"""

from __future__ import annotations

from typing import Final

from rpc.gateway.subscriptions import NOTIFICATIONS, SESSION_METHODS
from rpc.methods.accounts import ACCOUNT_METHODS
from rpc.methods.bills import BILL_COMPONENTS, BILL_METHODS
from rpc.methods.carriage import CARRIAGE_METHODS
from rpc.methods.chain import CHAIN_METHODS
from rpc.methods.custody import CUSTODY_COMPONENTS, CUSTODY_METHODS
from rpc.methods.disputes import DISPUTE_COMPONENTS, DISPUTE_METHODS
from rpc.methods.epochs import EPOCH_METHODS
from rpc.methods.evidence import EVIDENCE_METHODS
from rpc.methods.groups import GROUP_COMPONENTS, GROUP_METHODS
from rpc.methods.history import HISTORY_COMPONENTS, HISTORY_METHODS
from rpc.methods.light import LIGHT_METHODS
from rpc.methods.machines import MACHINE_COMPONENTS, MACHINE_METHODS
from rpc.methods.method import Method
from rpc.methods.network import NETWORK_METHODS
from rpc.methods.proofs import PROOF_METHODS
from rpc.methods.render import COMPONENTS as CHAIN_COMPONENTS
from rpc.methods.schema import Schema
from rpc.methods.tasks import TASK_COMPONENTS, TASK_METHODS
from rpc.methods.transactions import TRANSACTION_METHODS
from rpc.methods.validators import VALIDATOR_METHODS
from rpc.methods.views import VIEW_METHODS
from rpc.methods.windows import WINDOW_COMPONENTS, WINDOW_METHODS

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
    *VIEW_METHODS,
    *GROUP_METHODS,
    *WINDOW_METHODS,
    *DISPUTE_METHODS,
    *CUSTODY_METHODS,
    *BILL_METHODS,
    *CARRIAGE_METHODS,
    *SESSION_METHODS,
)
COMPONENTS: Final[dict[str, Schema]] = {
    **CHAIN_COMPONENTS,
    **HISTORY_COMPONENTS,
    **MACHINE_COMPONENTS,
    **TASK_COMPONENTS,
    **GROUP_COMPONENTS,
    **WINDOW_COMPONENTS,
    **DISPUTE_COMPONENTS,
    **CUSTODY_COMPONENTS,
    **BILL_COMPONENTS,
    **NOTIFICATIONS,
}
