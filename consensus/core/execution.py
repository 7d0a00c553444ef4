"""The execution of held blocks, parents before children, and the search for missing ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from consensus.core.block_tree import BlockTree
from consensus.core.certificates import CertificateTable
from consensus.core.fetching import BlockFetch
from consensus.core.outbox import Outbox
from consensus.events import Execute
from consensus.votes import Certificate
from state.primitives.blocks import Header

__all__ = ["Execution"]


class Execution:
    """The executed blocks, those to execute, and the missing ones below them.

    ``results`` are the state and receipt roots after the root block and after each executed block above it.
    """

    def __init__(self, tree: BlockTree, certificates: CertificateTable, fetch: BlockFetch, outbox: Outbox) -> None:
        self._tree = tree
        self._certificates = certificates
        self._fetch = fetch
        self._outbox = outbox
        root = tree.root
        self._results: dict[bytes, tuple[bytes, bytes]] = {root.block_hash: (root.state_root, root.receipt_root)}
        self.results: Mapping[bytes, tuple[bytes, bytes]] = self._results
        self._wanted: set[bytes] = set()
        """Held blocks to execute after their parents. The ancestors of each are in here too, down to a block that
        is being executed, to a missing one (``_missing``), or to a dead branch."""
        self._missing: dict[bytes, None] = {}
        self.missing: Mapping[bytes, None] = self._missing
        """Requested blocks that are not held, and have a certificate or a child to execute."""
        self._running: set[bytes] = set()

    @property
    def is_running(self) -> bool:
        """Whether a block is being executed."""
        return bool(self._running)

    def hold(self, block_hash: bytes, header: Header) -> None:
        """Add a block, requested or not."""
        self._fetch.close(block_hash)
        is_wanted = block_hash in self._missing
        if is_wanted:
            del self._missing[block_hash]
        if block_hash in self._tree.headers or header.height <= self._tree.root.height:
            return
        if is_wanted:  # it is certified, or what stands on it waits to be executed
            self._wanted.add(block_hash)
        self._tree.add(block_hash, header, is_certified=self._certificates.is_certified(block_hash))

    def require(self, certificate: Certificate) -> None:
        """Execute the block of a certificate, or request it.

        Below the newest final view only the ancestors of the final block count. They are requested from the final
        block downwards, so nothing is requested here.
        """
        block_hash = certificate.block_hash
        if block_hash in self._tree.headers:
            self.drive(block_hash)
            return
        final = self._certificates.final
        if block_hash != self._tree.root.block_hash and (final is None or certificate.view >= final.view):
            self._missing[block_hash] = None
            self._fetch.want(block_hash)

    def resume(self, block_hash: bytes) -> None:
        """Continue with a block that has arrived, if it should be executed."""
        if self._certificates.is_certified(block_hash) or block_hash in self._wanted:
            self.drive(block_hash)

    def drive(self, block_hash: bytes) -> None:
        """Execute a held block after its ancestors; request missing ones.

        It ends at an ancestor that was visited before, so that each block is passed once.
        """
        is_first = True
        while block_hash not in self._results and block_hash not in self._running:
            header = self._tree.headers.get(block_hash)
            if header is None:
                self._missing[block_hash] = None
                self._fetch.seek(block_hash)
                return
            if block_hash in self._wanted and not is_first:
                return
            is_first = False
            self._wanted.add(block_hash)
            if header.parent_hash in self._results:
                self._execute(block_hash, header)
                return
            if header.height <= self._tree.root.height + 1:
                return  # a sibling of the root: it can never become final
            block_hash = header.parent_hash

    def _execute(self, block_hash: bytes, header: Header) -> None:
        if self._results[header.parent_hash] != (header.state_root, header.receipt_root):
            # Without a certificate this is only a leader's false claim; with one, a quorum computed other roots.
            if self._certificates.is_certified(block_hash):
                self.halt_diverged(header)
            return
        self._running.add(block_hash)
        self._outbox.emit(Execute(block_hash))

    def finished(self, block_hash: bytes, state_root: bytes, receipt_root: bytes) -> tuple[bytes, ...] | None:
        """Keep the result, start with the children and return them; None for a dropped block."""
        self._running.discard(block_hash)
        if block_hash not in self._tree.headers:
            return None
        self._results[block_hash] = (state_root, receipt_root)
        self._wanted.discard(block_hash)
        children = tuple(self._tree.children(block_hash))
        for child in children:
            if child in self._wanted and child not in self._running:
                self._execute(child, self._tree.headers[child])
        return children

    def halt_diverged(self, header: Header) -> None:
        """Halt: a quorum voted for a block whose header contradicts this node's result of its parent."""
        self._outbox.halt(
            "state_divergence", f"the parent of certified block {header.height} has another state root here"
        )

    def ask_missing(self) -> None:
        """Request what is still useful and could not be requested before; drop the rest."""
        for block_hash in tuple(self._missing):
            if self._certificates.is_newly_certified(block_hash):
                self._fetch.want(block_hash)
            elif any(child in self._wanted for child in self._tree.children(block_hash)):
                self._fetch.seek(block_hash)
            else:
                del self._missing[block_hash]
                self._fetch.close(block_hash)

    def release_above(self, dead: Iterable[bytes]) -> None:
        """Ancestors will be dropped: blocks above them must search down to them again later."""
        above = [child for block_hash in dead for child in self._tree.children(block_hash)]
        while above:
            block_hash = above.pop()
            if block_hash in self._wanted:
                self._wanted.discard(block_hash)
                above += self._tree.children(block_hash)

    def forget(self, block_hash: bytes) -> None:
        """Drop a block; the result of the root is kept."""
        if block_hash != self._tree.root.block_hash:
            self._results.pop(block_hash, None)
        self._wanted.discard(block_hash)
        self._running.discard(block_hash)  # the shell that dropped it does not answer

    def forget_result(self, block_hash: bytes) -> None:
        """Drop the result of the previous root; its children are decided."""
        self._results.pop(block_hash, None)
