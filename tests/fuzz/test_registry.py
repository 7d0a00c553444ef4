"""The registry of decoders is complete: what reads foreign bytes is a target, or stands here with a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.decoders import TARGETS

ROOT = Path(__file__).parents[2]
PACKAGES = ("state", "billing", "tasks", "consensus", "p2p", "relay", "rpc", "node", "testnet")
NOT_PRODUCT = re.compile(
    r"node/bench/|(consensus|node)/simulation/|testnet/(bench|bench_sync|load)\.py|testnet/wan/(agent|check|fleet|bench/)"
)
NAMED = re.compile(
    r"_?(decode|parse|read|load)(_|$)|_from_(value|json|bytes|document)$|^_?(feed|receive|data_received|verify)$"
)
FOREIGN = {
    "bytes",
    "bytes | None",
    "str",
    "Any",
    "object",
    "Path",
    "bytes | memoryview",
    "list[Any]",
    "bytes | str",
}
PARSERS = {"loads", "unpack", "unpack_from", "iter_unpack", "frombuffer", "b64decode"}

OF_A_TARGET = "hands bytes to a decoder that is a target, and passes its typed errors on"
LATER_TESTED = "a parameter of JSON-RPC: fuzzed in tests/rpc/test_params.py and, whole bodies, in test_hostile.py"
NO_DECODER = "called like one or calls something like one, but reads values of our own"
OWN_FILE = "a file that this very program wrote for itself; refused by a typed error or taken as absent"
EXEMPT = {
    "node.cli.run:_process_at": "three numbers of the kernel about who listens at a socket",
    "testnet.bench_sync:_damage_and_repair": "what a command that it started has printed",
    "node.market.masking:secrets_of_document": "files of the owner; tests/node/market/test_support.py draws texts",
    "node.market.support:_plain": "values that this program has made",
    "node.cli.verify:_read": OF_A_TARGET,
    "node.cli.verify:read_folder": OF_A_TARGET,
    "rpc.client.webhooks:read_webhook": "a signed message; tests/rpc/client/test_webhooks.py draws others",
    "rpc.client.webhooks:read_webhook_secret": "a key of the owner; tests/rpc/client/test_webhooks.py",
    "tasks.models.gguf_writing:adapters_gguf": "values of a folder that was checked",
    "node.cli.verify:verify": OF_A_TARGET,
    "node.cli.verify:_verify_rows": OF_A_TARGET,
    "tasks.models.adapters:adapter_folder": "values of a length that was checked",
    "tasks.models.trained:model_folder": "values of a length that was checked",
    "tasks.models.tokens:tokeniser_from_json": "parsed by the library of an extra; tests/tasks/models",
    "tasks.programs.work:add_losses": "packs numbers that were decoded",
    "node.market.container_seals:put_mount": OF_A_TARGET,
    "node.market.container_images:ContainerImages._load_sealed": OF_A_TARGET,
    "tasks.executor.containers.backend:LoadsImages.load": OF_A_TARGET,
    "tasks.executor.containers.docker:DockerBackend.load": OF_A_TARGET,
    "tasks.executor.containers.images:Images.load": OF_A_TARGET,
    "tasks.executor.containers.loaded_images:LoadedNotes._read": OWN_FILE,
    "tasks.executor.containers.kubernetes.registry_backend:ClusterWithRegistry.load": OF_A_TARGET,
    "node.market.cluster_secrets:_spelled": "files of the owner; tests/node/market/test_support.py draws texts",
    "tasks.executor.containers.kubernetes.image_registry:ImageRegistry._upload": "tests/tasks/executor/containers/"
    "test_image_registry.py: places of uploads elsewhere",
    "tasks.executor.containers.kubernetes.registry_login:_token_of": "tests/tasks/executor/containers/"
    "test_registry_login.py: answers without a token",
    "tasks.executor.containers.kubernetes.helper_folder:rest": OWN_FILE,
    "tasks.executor.containers.kubernetes.checkpoints:_Reader.feed": "tests/tasks/executor/containers/"
    "test_helper_programs.py: N81",
    "tasks.executor.containers.kubernetes.pushed_images:PushedNotes.read": OWN_FILE,
    "tasks.executor.containers.egress.addresses:parse_network": "options of the owner; the library's own parser",
    "tasks.executor.containers.egress.entering:why_not_entered": "three numbers of the kernel about a peer",
    "tasks.executor.containers.kubernetes.data_path:_read_archive": "counts bytes for ``pack_outputs``, a target",
    "tasks.executor.containers.kubernetes.helper_socket:Server.frames": "runs in a pod, on what the node sends",
    "tasks.executor.containers.kubernetes.helper_egress:Server.frames": "runs in a pod, on what the node sends",
    "tasks.executor.containers.kubernetes.helper_egress:Server.obey": "the same",
    "tasks.executor.control_groups:_read": "short files of the kernel about its own groups",
    "tasks.executor.containers.kubernetes.egress_link:EgressLink._take": "test_helper_egress.py draws frames",
    "tasks.executor.containers.kubernetes.helper_agent:run": "runs in a pod; its output is bounded",
    "tasks.executor.containers.kubernetes.helper_agent:work": "runs in a pod, with the rights of who could ask it",
    "node.market.container_logs:ContainerLogs.read": "asks an engine, or a file of its own",
    "node.market.container_checkpoints:ContainerCheckpoints._open": OF_A_TARGET,
    "node.market.container_seals:RunKey.open": OF_A_TARGET,
    "tasks.executor.containers.kubernetes.access:_pem": OF_A_TARGET,
    "tasks.executor.containers.answers:error_text": "the text of an error of an engine, whatever it is; cut",
    "tasks.executor.containers.answers:answer_json": OF_A_TARGET,
    "tasks.executor.containers.logins:read_logins": OF_A_TARGET,
    "testnet.scenarios.lies:_coarse": "changes what a liar's own machine fetched",
    "testnet.scenarios.lies:changed": "changes what a liar's own machine computed",
    "testnet.scenarios.tuning:_mean": "the bits of one number",
    "tasks.custody.chunks:Custody.read": "a chunk under a root that was checked",
    "rpc.client.metrics:points_of": OF_A_TARGET,
    "rpc.client.stores.bucket:Bucket.head": "one hash of 32 bytes that the store names; tests/rpc/client/stores",
    "rpc.client.containers:_unpacked": OF_A_TARGET,
    "rpc.client.stores.bucket:Bucket.read_small": OF_A_TARGET,
    "rpc.client.stores.bucket:Bucket.read": "bytes of an object, which its hash checks; tests/rpc/client/stores",
    "rpc.client.stores.fetching:_Fetch._read_state": OWN_FILE,
    "node.home.models:_read": OF_A_TARGET,
    "node.home.models:_record": OWN_FILE,
    "state.primitives.codec:decode_stored": "a record of one's own state: tests/fuzz/state_records.py",
    "testnet.llm.answering:answers_of_peft": "the output of a process of the demonstration",
    "testnet.llm.questions:taught": "a file of this repository",
    "testnet.llm.running:Demonstration._losses": OF_A_TARGET,
    "testnet.llm.running:Demonstration._verify": "the output of a command of this product",
    "node.api.making:parse_model": "an argument of the owner; tests/node/api/test_app.py",
    "node.api.records:JobRecord.decode": OWN_FILE,
    "node.api.service:Service.upload": OF_A_TARGET,
    "node.api.store:Store.events": OWN_FILE,
    "node.cli.tasks.group:SeatTerms.payload": NO_DECODER,
    "node.cli.tasks.keeping:CustodyAsk._payload": NO_DECODER,
    "node.cli.tasks.kept_input:KeptInput.payload": NO_DECODER,
    "tasks.spec:read_checked_spec": "bytes that were decoded before; as a record of the state by way of load_job",
    "tasks.custody.chunks:read_chunk": "checks a chunk against roots; its parts were decoded",
    "tasks.engines.arrays:NumpyArrays.from_content": "values of a length that was checked",
    "tasks.engines.torch_arrays:TorchArrays.from_content": "values of a length that was checked",
    "tasks.programs.operators.rows:RowMaximum.finish": "the bits of one number",
    "tasks.programs.operators.rows:RowMaximum.term": "the bits of one number",
    "tasks.programs.operators.scalars:bits_value": "the bits of one number",
    "tasks.programs.operators.scalars:constant_bits": "the bits of one number",
    "tasks.programs.operators.storage:diverged_content": "values that this machine computed",
    "tasks.programs.operators.storage:first_diverged": "values that this machine computed",
    "tasks.programs.operators.storage:stored": "the bits of one number",
    "tasks.programs.running:load_tensor": "checks length and values; its tests give it hostile ones",
    "tasks.simulation.__main__:replay": "a setting that its user types",
    "tasks.simulation.campaign:Campaign._load": OWN_FILE,
    # Records of the state
    "tasks.ledger.open_task:Case.load": OF_A_TARGET,
    "billing.escrow:Vault.load": OF_A_TARGET,
    "tasks.ledger.games:move": OF_A_TARGET,
    "tasks.ledger.disputes:load_moves": "returns bytes as they were written",
    # Callers of targets
    "consensus.guard_log:VoteDirectory.load_guard": OF_A_TARGET,
    "consensus.replica:root_of": OF_A_TARGET,
    "node.home.files:read_bounded": OF_A_TARGET,
    "node.home.keys:load_key": OF_A_TARGET,
    "node.home.kind:_read": OF_A_TARGET,
    "rpc.gateway.blobs:BlobEndpoint._read_body": "bytes up to a bound, for decoders that are targets",
    "rpc.client.blobs:_read": "a piece of a file whose hash it checks",
    "rpc.client.blobs:download": "pieces whose hashes it checks; tests/rpc/client/test_blobs.py",
    "rpc.client.blobs:upload": OF_A_TARGET,
    "rpc.faucet.service:_read_body": "bytes up to a bound, for a decoder that is a target",
    "node.cli.options:read_input": "bytes of a file up to a bound, for a decoder that is a target",
    "node.chain.evidence:EvidenceService._load": OF_A_TARGET,
    "node.market.promises:Promises.sealed": OF_A_TARGET,
    "node.market.inputs:Inputs._read": "reads a blob whose hash was checked when it came",
    "p2p.blob.store:BlobStore._load": OF_A_TARGET,
    "p2p.multicast.erasure:_sum": "arithmetic on pieces that were checked against their roots",
    "p2p.blob.store:BlobStore.read_piece": "reads a piece of a blob whose hash it checks",
    "p2p.blob.store:BlobStore.read": "reads a blob whose hash was checked when it came",
    "p2p.secure.identity:Identity.load": OF_A_TARGET,
    "p2p.peers.gossip_service:GossipService.receive": OF_A_TARGET,
    "p2p.peers.record_exchange:RecordExchange.load": OF_A_TARGET,
    "p2p.peers.record_exchange:RecordExchange._exchange": "a list of peer records, which are targets",
    "rpc.gateway.node.client:NodeClient._read_keys": OF_A_TARGET,
    "rpc.gateway.node.client:_decode_all": OF_A_TARGET,
    "rpc.methods.transactions:estimate": OF_A_TARGET,
    "state.store.store:Store._read": "reads one entry of the database with its checksum",
    "state.store.views:StoredViews._read": "reads one entry of the database with its checksum",
    "state.store.undo:read_undo": OF_A_TARGET,
    "state.store.undo:Undos.load": OF_A_TARGET,
    "state.store.store:Store._read_kept": OF_A_TARGET,
    "state.store.snapshots:_read": OWN_FILE,
    "node.sync.snapshot_keeper:SnapshotKeeper._read": OWN_FILE,
    "rpc.gateway.http_protocol:HttpProtocol._parse": "the HTTP library parses; tests/rpc/gateway/test_heads.py",
    "rpc.gateway.http_protocol:HttpProtocol.data_received": "hands bytes to the HTTP library",
    "rpc.gateway.process:_read": OF_A_TARGET,
    "node.chain.tx_gossip:TransactionGossip._read": "a batch, a target; tests/node/chain/test_tx_gossip.py",
    "p2p.base.sockets:tcp_info": "a struct of the kernel's own",
    "p2p.base.tcp_info:TcpInfo.unpack": "a struct of the kernel's own",
    "rpc.gateway.unsent_bytes:UnsentBytes._ask_kernel": "numbers of the kernel's own",
    "p2p.path.dial_back:DialBack._serve": "one number, a port; tests/p2p/path/test_dial_back.py",
    "node.process.control:ControlServer._serve": "answers any line; tests/node/process/test_control.py",
    "node.market.machine:_kept_rate": OWN_FILE,
    "node.cli.relay_status:_ready": OWN_FILE,
    "testnet.cluster:Cluster._is_ready": OWN_FILE,
    "testnet.picture:_main": OWN_FILE,
    "testnet.wan.emulator:Emulator.stats": OWN_FILE,
    "testnet.wan.lab:attach": OWN_FILE,
    "testnet.wan.lab:load_plan": OF_A_TARGET,
    "testnet.cli:_told": "what members of a network of this machine say; another shape is no answer",
    "node.simulation.campaign:_readable": OWN_FILE,
    "rpc.protocol.frames:read_failure": OF_A_TARGET,
    "node.daemon.admin:_read_peer": "by node.home.config:parse_peer; tests/node/daemon/test_admin.py",
    "node.cli.arguments:parse_numbers": "arguments of the owner; tests/node/cli/test_genesis.py",
    "node.cli.options:parse_home": "an argument of the owner; tests/node/cli/test_mistakes.py",
    "node.daemon.admin:Admin.answer": "any body is answered with a code; tests/node/daemon/test_admin.py",
    "node.cli.files:read_json": OF_A_TARGET,
    "node.cli.files:read_text": "text of a file up to a bound; tests/node/cli/test_files.py",
    "rpc.gateway.dispatch:_as_identifier": "a part of a refused request; tests/rpc/gateway/test_dispatch.py",
    "tasks.ledger.screening:read_dataset_facts": OF_A_TARGET,
    # Bytes as they come, handed to what reads them
    "consensus.reception:Reception.receive": "messages that consensus.wire decoded, which is a target",
    "node.cli.options:read_secret": "a line of the owner's standard input or file",
    "consensus.service:ConsensusService._receive": OF_A_TARGET,
    "consensus.service:ConsensusService.receive": OF_A_TARGET,
    "node.consensus.agreement:Agreement._receive": OF_A_TARGET,
    "node.cli.wallet.messages:verify": OF_A_TARGET,
    "p2p.peers.record_exchange:RecordExchange.verify": OF_A_TARGET,
    "relay.server.handshake:ControlConnection.data_received": OF_A_TARGET,
    "relay.server.handshake:ClientHandshake.data_received": "a preamble of a table, then a handshake, a target",
    "relay.server.fanout_daemon:_FanoutConnection.data_received": OF_A_TARGET,
    "relay.server.next_hop:NextHopConnection.data_received": OF_A_TARGET,
    "relay.server.next_hop:_NextHopLink.data_received": "one byte of status, then bytes that are handed on unread",
    "relay.server.splice:_Direction.data_received": "bytes that are handed on unread",
    "rpc.gateway.node.client:_Session.data_received": OF_A_TARGET,
    "rpc.gateway.websocket:BoundedWebSocket.data_received": "fuzzed in tests/rpc/gateway/test_hostile.py",
    # No decoders
    "node.process.bounded_http:BoundedServer.process_request_thread": "hands a socket to the library",
    "node.consensus.agreement:_ChainPort._in_thread": NO_DECODER,
    "node.cli.bench:_load": NO_DECODER,
    "node.cli.bench:_read": NO_DECODER,
    "node.cli.jobs:_npz": NO_DECODER,
    "node.cli.progress_client:_hash_of": "a request of this very program",
    "rpc.methods.render:payload": NO_DECODER,
    "state.store.nodes:_is_spread": "a node of the trie under a hash that its parent states",
    "state.trie.trie:Batch.read": "a node of the trie under a hash that its parent states",
    "state.trie.trie:count_of": "a node of the trie under a hash that its parent states",
    "state.transition.staking:stake_payload": NO_DECODER,
    "state.transition.transfer:transfer_payload": NO_DECODER,
    "tasks.engines.generating:Generator.__init__": "prompts that the runner has loaded and checked",
    "tasks.engines.generating:_lengths": "a tensor of prompts whose size and root were checked",
    "tasks.engines.generating:_made": "a tensor of a state that was decoded",
    "tasks.engines.generating:completions": "tensors of prompts whose size and root were checked",
    "tasks.engines.generating:stops_in": "tensors of prompts whose size and root were checked",
    "tasks.engines.generating:prompts_in": "tensors of prompts whose size and root were checked",
    "tasks.programs.looped:losses_in": "a tensor of a state or proof whose length was checked",
    "tasks.requests.references:read_ref": "one expression; tests/tasks/requests/test_references.py",
    "tasks.models.row_results:vectors_of": "a tensor of a state that was decoded",
    "tasks.models.row_results:evaluation_of": "tensors of a state that was decoded",
    "tasks.engines.training:Trainer.evaluate": "labels of a data set that was decoded",
    "tasks.engines.decoder_training:_uniform": NO_DECODER,
    "tasks.engines.tuning:first_state": NO_DECODER,
    "tasks.engines.weights:initial_weights": NO_DECODER,
    # JSON-RPC
    "rpc.methods.schema:Param.read": LATER_TESTED,
    "rpc.methods.schema:_read_hash": LATER_TESTED,
    "rpc.methods.schema:read_hex": LATER_TESTED,
    "rpc.methods.schema:_read_address": LATER_TESTED,
    "rpc.methods.schema:_read_boolean": LATER_TESTED,
    "rpc.methods.schema:_read_amount": LATER_TESTED,
    "rpc.methods.schema:_read_block": LATER_TESTED,
    "rpc.methods.schema:_read_cursor": LATER_TESTED,
    "rpc.gateway.dispatch:Dispatcher.answer": LATER_TESTED,
    "rpc.gateway.dispatch:Dispatcher.begin": "as answer: tests/rpc/test_posting.py; whole bodies: test_bodies.py",
    "rpc.gateway.app:_read_headers": "headers that the HTTP library has parsed; tests/rpc/gateway/test_process.py",
    # Text of our own machine
    "relay.server.daemon:_relay_endpoint": "options",
}


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function with its qualified name."""

    def below(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child
            elif isinstance(child, ast.ClassDef):
                yield from below(child, f"{prefix}{child.name}.")

    yield from below(tree, "")


def reads_foreign(name: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function is called like a decoder of bytes, or parses any itself."""
    arguments = [*function.args.args, *function.args.kwonlyargs]
    kinds = {ast.unparse(argument.annotation) for argument in arguments if argument.annotation is not None}
    if NAMED.search(name.rpartition(".")[2]) and kinds & FOREIGN:
        return True
    for call in ast.walk(function):
        if not isinstance(call, ast.Call):
            continue
        called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if called in PARSERS or (called == "decode" and any(k.arg == "limit_bytes" for k in call.keywords)):
            return True
    return False


def decoders() -> set[str]:
    found = set()
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            relative = file.relative_to(ROOT)
            if NOT_PRODUCT.search(str(relative)):
                continue
            module = ".".join(relative.with_suffix("").parts)
            found |= {
                f"{module}:{name}"
                for name, function in functions(ast.parse(file.read_text()))
                if reads_foreign(name, function)
            }
    return found


def all_functions() -> set[str]:
    return {
        f"{'.'.join(file.relative_to(ROOT).with_suffix('').parts)}:{name}"
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        for name, _ in functions(ast.parse(file.read_text()))
    }


@pytest.mark.slow
def test_every_decoder_is_a_target_or_has_a_reason_not_to_be() -> None:
    covered = {name for target in TARGETS.values() for name in target.covers}
    assert decoders() - covered - set(EXEMPT) == set()


@pytest.mark.slow
def test_nothing_stale_is_named() -> None:
    named = {name for target in TARGETS.values() for name in target.covers} | set(EXEMPT)
    assert named - all_functions() == set()
