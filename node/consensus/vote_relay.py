"""Relays consensus messages between seats without a direct connection: the topic ``consensus``, and proposals on
request. See network.md 7.3.

``consensus.vote_relay`` decides what is verified and forwarded; this module connects it with the peers. A proposal
is too large to be forwarded unrequested. A seat without a connection to the leader requests it from the peer that
sent the first vote for it. A node that is asked for a proposal it lacks requests it in turn.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import trio

from consensus.events import Epoch
from consensus.inbound import Allowance
from consensus.service import ConsensusService
from consensus.vote_relay import (
    PAYLOAD_BYTES_MAX,
    Judged,
    Opinion,
    Statement,
    VoteRelay,
    decode_wanted,
    encode_wanted,
)
from consensus.votes import Certificate
from consensus.wire import (
    Certificates,
    GetBlock,
    GetCertificates,
    Message,
    Proposal,
    Votes,
    decode_message,
)
from p2p.gossip.core import Verdict
from p2p.secure.frame import TrafficClass
from p2p.service import GossipItem, Network
from state.primitives.committee import Committee
from state.primitives.token_bucket import RateLimiter
from state.primitives.votes import NOTARIZE, Candidate, Vote

__all__ = ["KIND_PROPOSAL", "KIND_PROPOSAL_WANTED", "TOPIC_CONSENSUS", "VoteRelayService"]

TOPIC_CONSENSUS: Final = "consensus"
KIND_PROPOSAL_WANTED: Final = 0x05
KIND_PROPOSAL: Final = 0x06
PUBLISHED_PER_S: Final = 64.0
"""Votes and certificates that this seat publishes: far more than an honest seat sends."""
PUBLISHED_BURST: Final = 256.0
CHECKS_MAX: Final = 512
"""Signatures verified in one batch."""
PROPOSALS_MAX: Final = 4
PROPOSALS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Proposals kept for requests: of the current view, and the nearest ones above it."""
WANTED_MAX: Final = 8
"""Candidates whose proposals others wait for here."""
WAITING_MAX: Final = 16
"""Waiting peers for each of them."""
ASKED_MAX: Final = 3
"""Outstanding requests for one proposal; more would only transfer it several times."""
ASKED_CANDIDATES_MAX: Final = 16
ASK_ANOTHER_S: Final = 0.3
"""Time until another peer is asked too, ..."""
LOOK_S: Final = 0.1
"""... interval of that check, ..."""
DUE_S: Final = 2.0
"""... and how long a request counts as outstanding."""
TAKES_MAX: Final = 4
"""Answers processed at the same time."""
ANSWERS_OF_ONE_MAX: Final = 2
"""Answers of one peer that are processed or wait, ..."""
ANSWERS_MAX: Final = 16
"""... and of all peers."""
QUESTION_BYTES_MAX: Final = 64
"""Maximum size of a request of the core."""

_VERDICTS: Final = {
    Opinion.FORWARD: Verdict.ACCEPT,
    Opinion.IGNORE: Verdict.IGNORE,
    Opinion.REJECT: Verdict.REJECT,
}


class VoteRelayService:
    """Publishes this seat's messages, checks those of others, and fetches proposals. Its methods run on the event
    loop.

    It is the listener of the consensus service. ``following`` returns the committee of an epoch, None while
    unknown.
    """

    def __init__(
        self, network: Network, service: ConsensusService, *, genesis_hash: bytes,
        following: Callable[[int], Committee | None],
    ) -> None:  # fmt: skip
        self._network = network
        self._service = service
        self._following = following
        self._own = network.identity.address
        self._core = VoteRelay(genesis_hash, self._own)
        self._rate = RateLimiter(per_s=PUBLISHED_PER_S, burst=PUBLISHED_BURST)
        self._allowance = Allowance()
        self._proposals: dict[Candidate, bytes] = {}
        self._waiting: OrderedDict[Candidate, list[bytes]] = OrderedDict()
        self._asked: OrderedDict[Candidate, dict[bytes, float | None]] = OrderedDict()
        """Requested peers with the time of the request; None once the answer has arrived."""
        self._answers = Counter[bytes]()
        """For each peer, the number of answers that are processed or wait."""
        self._takes = trio.CapacityLimiter(TAKES_MAX)
        self._lacks = trio.Event()
        self._turn = 0
        self._nursery: trio.Nursery | None = None
        network.on_gossip_batch(TOPIC_CONSENSUS, self.validate, payload_bytes_max=PAYLOAD_BYTES_MAX)
        network.on_message(KIND_PROPOSAL_WANTED, self._on_wanted)
        network.on_message(KIND_PROPOSAL, self._on_proposal)
        network.on_peer(self._on_peer)

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._ask_others()
        finally:
            self._nursery = None

    # What the consensus service tells.

    def entered(self, epoch: Epoch, view: int) -> None:
        """Note the current epoch and view."""
        following = self._following(epoch.number + 1) if epoch.number != self._core.epoch else None
        for statement in self._core.entered(epoch.number, view, epoch.committee, following):
            self._service.take_relayed(self._own, statement)
        for kept in (self._waiting, self._asked):
            for old in [candidate for candidate in kept if candidate[:2] < (epoch.number, view)]:
                del kept[old]
        for candidate in self._core.candidates():
            self._consider(candidate)

    def heard(self, vote: Vote, sender: bytes) -> None:
        """Note a verified vote. If its leader is not connected, the proposal is requested."""
        self._core.heard(vote, sender)
        if vote.kind == NOTARIZE and self._core.is_current(vote.candidate):
            self._consider(vote.candidate)

    def certified(self, certificate: Certificate) -> None:
        """Note a verified certificate."""
        self._core.certified(certificate)

    def proposed(self, candidate: Candidate, data: bytes) -> None:
        """Keep a verified proposal for requests, and send it to the waiting peers."""
        self._proposals[candidate] = data
        present = self._core.epoch, self._core.view
        while len(self._proposals) > 1 and (
            len(self._proposals) > PROPOSALS_MAX or sum(map(len, self._proposals.values())) > PROPOSALS_BYTES_MAX
        ):
            first, last = min(self._proposals), max(self._proposals)
            del self._proposals[first if first[:2] < present else last]
        self._asked.pop(candidate, None)
        for peer in self._waiting.pop(candidate, ()):
            self._serve(peer, data)

    # What this node says.

    def sent(self, data: bytes, attached: frozenset[bytes]) -> None:
        """Publish a message that was sent to the peers ``attached``, if a live seat is not among them."""
        if not self._core.has_seat() or not self._core.lacking(attached):
            return
        message = decode_message(data)
        if isinstance(message, Proposal):
            candidate = message.candidate
            seat = self._service.status().seat
            if seat is None:
                return
            self.proposed(candidate, data)
            message = Votes((Vote(NOTARIZE, *candidate, seat, message.signature),))
        self._publish(message)

    def _publish(self, message: Message) -> None:
        now = trio.current_time()
        payloads = [payload for payload in self._core.publish(message) if self._rate.allows(None, now)]
        if payloads:
            self._network.publish(TOPIC_CONSENSUS, *payloads)
            self._network.counters["vote_relay_published"] += len(payloads)

    def route(self, address: bytes, data: bytes) -> bytes:
        """Return the peers to send a small message for a seat: others if that helps.

        A request goes to a connected peer that may have the answer. A certificate that a leader needs is published
        as well.
        """
        is_there = self._hears(address)
        if len(data) > QUESTION_BYTES_MAX and is_there:
            return address
        message = decode_message(data)
        match message:
            case GetBlock(block_hash):
                holders = [holder for holder in self._core.holders(block_hash) if self._hears(holder)]
                if is_there and (not holders or address in holders):
                    return address
                choices = [*holders, address] if is_there else holders
            case GetCertificates() if not is_there:
                choices = []
            case Certificates() if not is_there and self._core.has_seat():
                self._publish(message)
                return address
            case _:
                return address
        if not choices:
            attached = [peer.address for peer in self._network.peers() if peer.is_attached]
            choices = [peer for peer in attached if self._core.is_seat(peer)] or attached or [address]
        self._turn += 1
        chosen = choices[self._turn % len(choices)]
        self._network.counters["vote_relay_questions_redirected"] += chosen != address
        return chosen

    def _hears(self, address: bytes) -> bool:
        peer = self._network.peer(address)
        return peer is not None and peer.is_attached

    # What others say.

    async def validate(self, items: Sequence[GossipItem]) -> list[Verdict]:
        """Check forwarded messages. After one invalid message, the rest of that peer's batch is ignored."""
        opinions: list[Opinion] = []
        liars: set[bytes] = set()
        while len(opinions) < len(items):
            now_ms = int(trio.current_time() * 1_000)
            turn: list[tuple[GossipItem, Judged]] = []
            checks = 0
            for item in items[len(opinions) :]:
                judged = self._core.judge(item.payload, item.peer, now_ms)
                if judged.opinion is None and item.peer in liars:
                    judged = Judged(Opinion.IGNORE)
                turn.append((item, judged))
                checks += len(judged.checks)
                if checks >= CHECKS_MAX:
                    break
            unsure = {judged.statement: judged.checks for _, judged in turn if judged.opinion is None}
            valid = dict(zip(unsure, await self._service.verify(list(unsure.values())), strict=True))
            for item, judged in turn:
                opinion = self._settle(item.peer, judged, valid)
                opinions.append(opinion)
                if opinion is Opinion.REJECT:
                    liars.add(item.peer)
            await trio.lowlevel.checkpoint()
        for opinion in opinions:
            self._network.counters[f"vote_relay_{opinion.value}"] += 1
        return [_VERDICTS[opinion] for opinion in opinions]

    def _settle(self, peer: bytes, judged: Judged, valid: dict[Statement | None, bool]) -> Opinion:
        if judged.opinion is not None:
            return judged.opinion
        if not valid[judged.statement]:
            return Opinion.REJECT
        assert judged.statement is not None
        opinion, is_news = self._core.settle(judged.statement, peer, int(trio.current_time() * 1_000))
        if is_news:
            self._service.take_relayed(peer, judged.statement)
        return opinion

    # Proposals on request.

    def _consider(self, candidate: Candidate) -> None:
        """Request a proposal that this seat, or another node, will not get from its leader.

        The first peer that reported it is asked, then only peers that voted for it, because these have it.
        """
        if self._is_lacking(candidate):
            self._lacks.set()
            for source in self._core.sources(candidate):
                if self._core.is_voter(source, candidate) or not self._asked.get(candidate):
                    self._ask(candidate, source)

    def _is_lacking(self, candidate: Candidate) -> bool:
        if candidate in self._proposals:
            return False
        leader = self._core.leader(candidate.epoch, candidate.view)
        is_cut_off = (
            self._core.has_seat() and leader is not None and leader != self._own and not self._hears(leader)
        )
        return is_cut_off or candidate in self._waiting

    async def _ask_others(self) -> None:
        """While proposals are missing, ask another peer if no answer arrives."""
        while True:
            lacking = [candidate for candidate in self._core.candidates() if self._is_lacking(candidate)]
            if not lacking:
                self._lacks = trio.Event()
                await self._lacks.wait()
            await trio.sleep(LOOK_S)
            late_s = trio.current_time() - ASK_ANOTHER_S
            for candidate in lacking:
                asked = self._asked.get(candidate, {})
                is_late = all(at_s is None or at_s <= late_s for at_s in asked.values())
                if is_late and not any(peer in self._answers for peer in asked):
                    self._ask_another(candidate)

    def _ask_another(self, candidate: Candidate) -> None:
        """Ask one more of the peers that reported it, first those that certainly have it."""
        if candidate[:2] < (self._core.epoch, self._core.view) or not self._is_lacking(candidate):
            return
        sources = self._core.sources(candidate)
        for source in sorted(sources, key=lambda source: not self._core.is_voter(source, candidate)):
            if self._ask(candidate, source):
                return

    def _ask(self, candidate: Candidate, peer: bytes) -> bool:
        """Ask a peer once, unless it waits for the same proposal here; return whether it was asked."""
        asked, now = self._asked.get(candidate, {}), trio.current_time()
        due = sum([at_s is not None and now - at_s < DUE_S for at_s in asked.values()])
        if peer in asked or due >= ASKED_MAX or not self._hears(peer):
            return False
        if peer in self._waiting.get(candidate, ()) and not self._core.is_voter(peer, candidate):
            return False
        question = encode_wanted(candidate)
        if not self._network.send(peer, TrafficClass.CONSENSUS, KIND_PROPOSAL_WANTED, question):
            return False
        self._asked.setdefault(candidate, asked)[peer] = now
        while len(self._asked) > ASKED_CANDIDATES_MAX:
            self._asked.popitem(last=False)
        self._network.counters["vote_relay_proposals_asked"] += 1
        return True

    def _on_peer(self, peer: bytes, is_there: bool) -> None:
        """Ask another peer for what a disconnected peer was asked for."""
        if is_there:
            return
        self._lacks.set()  # it may have been a leader
        for candidate in [known for known, asked in self._asked.items() if peer in asked]:
            del self._asked[candidate][peer]
            self._ask_another(candidate)

    async def _on_wanted(self, peer: bytes, body: bytes) -> None:
        candidate = decode_wanted(body)
        data = self._proposals.get(candidate)
        if data is not None:
            self._serve(peer, data)
            return
        if not self._core.knows(candidate) or not self._core.is_current(candidate):
            return
        if candidate not in self._waiting and len(self._waiting) >= WANTED_MAX:
            return
        waiting = self._waiting.setdefault(candidate, [])
        if peer not in waiting and len(waiting) < WAITING_MAX:
            waiting.append(peer)
        self._consider(candidate)

    def _serve(self, peer: bytes, data: bytes) -> None:
        now_ms, is_seat = int(trio.current_time() * 1_000), self._core.is_seat(peer)
        if self._hears(peer) and self._allowance.may(peer, now_ms, is_seat=is_seat):
            self._allowance.charge(peer, len(data), now_ms, is_seat=is_seat)
            self._network.send(peer, TrafficClass.BLOCK, KIND_PROPOSAL, data)
            self._network.counters["vote_relay_proposals_served"] += 1

    async def _on_proposal(self, peer: bytes, body: bytes) -> None:
        """Accept one answer for each request. Which request it answers is known only after decoding."""
        due = next((asked for asked in self._asked.values() if asked.get(peer) is not None), None)
        if due is None or self._nursery is None:
            return
        if self._answers[peer] >= ANSWERS_OF_ONE_MAX or self._answers.total() >= ANSWERS_MAX:
            return
        due[peer] = None
        candidates = [candidate for candidate, asked in self._asked.items() if peer in asked]
        self._answers[peer] += 1
        self._nursery.start_soon(self._take, peer, body, candidates, name="consensus")

    async def _take(self, peer: bytes, body: bytes, candidates: Sequence[Candidate]) -> None:
        try:
            async with self._takes:
                is_taken = await self._service.take_proposal(peer, body, candidates)
        finally:
            self._answers[peer] -= 1
            if not self._answers[peer]:
                del self._answers[peer]
        self._network.counters[f"vote_relay_proposals_{'taken' if is_taken else 'false'}"] += 1
        for candidate in () if is_taken else candidates:
            self._ask_another(candidate)
