// SPDX-License-Identifier: Apache-2.0
pragma solidity >=0.8.4;

/// @title DEKUBE: the registry contract
/// @notice Machines of the compute market: what they offer, their bond and their record of verified work.
/// @dev At 0x0000000000000000000000000000000000000701 on every chain; the node itself is behind it, no EVM.
///   Amounts are in 10^-18 DKB. What is refused reverts with Error(string): a stable code.
interface IDekubeRegistry {
    /// @notice Register the sender as a machine; the value sent is its bond.
    /// @param profile What the machine is and asks for: canonical CBOR.
    function registerNode(bytes calldata profile) external payable;

    /// @notice Renew the sender's record and end its retirement or suspension; the value sent is added to its
    ///   bond.
    /// @param profile What the machine is and asks for: canonical CBOR.
    function updateNode(bytes calldata profile) external payable;

    /// @notice Take the sender's machine off the market; its bond returns after its duties.
    function retireNode() external;

    /// @notice Offer the sender's machine nothing until it renews its record; its bond and duties stay.
    function suspendNode() external;

    /// @notice Say that the sender's machine is on. No task is offered to it for that; updateNode does so.
    function heartbeat() external;

    /// @notice Have a machine's earnings paid to another account; only its payout address can, at first
    ///   itself or its operator.
    /// @param node The machine.
    /// @param payout The account that is paid from now on.
    function setPayout(address node, address payout) external;

    /// @notice Set who may bond for a machine, and which shares of its pay go to that account and to the
    ///   machine's own bond; only its payout address can. A sponsor's bond that is locked keeps its terms.
    /// @param node The machine.
    /// @param sponsor Who may bond for it; zero: nobody.
    /// @param share Share of the machine's pay that its sponsor gets, in basis points.
    /// @param withhold Share of its pay that its own bond grows by, in basis points.
    /// @param until Bond of its own at which nothing more is withheld and the sponsor's returns, in 10^-18
    ///   DKB.
    function setTerms(address node, address sponsor, uint32 share, uint32 withhold, uint256 until) external;

    /// @notice Bond for a machine with the value sent, on the terms that stand for the sender; fines take it
    ///   after the machine's own bond.
    /// @param node The machine.
    /// @param share Share of the machine's pay that its sponsor gets, in basis points.
    /// @param withhold Share of its pay that its own bond grows by, in basis points.
    /// @param until Bond of its own at which nothing more is withheld and the sponsor's returns, in 10^-18
    ///   DKB.
    function sponsorNode(address node, uint32 share, uint32 withhold, uint256 until) external payable;

    /// @notice Ask for a part of the sender's bond for a machine; it is at risk until it is paid out.
    ///   Replaces what was asked for before; 0 cancels that.
    /// @param node The machine.
    /// @param amount Amount in 10^-18 DKB.
    function withdrawSponsor(address node, uint256 amount) external;

    /// @notice Report that a job on the sender's own machine was tampered with: another machine goes on, and
    ///   the sender's is off the market for a while.
    /// @param task A container's task that the sender runs or has lost.
    /// @param sign What its node has seen: 1 exec, 2 copy, 3 commit, 4 export, 5 checkpoint, 6 tracer, 7
    ///   stranger, 8 drift.
    function reportTampering(bytes32 task, uint8 sign) external;

    /// @notice Have a speed trial of the sender's machine begin.
    function askTrial() external;

    /// @notice Commit to the links of the sender's speed trial; the value sent pays its verifiers.
    /// @param links How many links the machine has computed.
    /// @param root The root over the states between them.
    function commitTrial(uint32 links, bytes32 root) external payable;

    /// @notice Show the links that were drawn of the sender's speed trial.
    /// @param links The links with their paths, in CBOR.
    function showTrial(bytes calldata links) external;

    /// @notice Give the results that the verifier computed for the links of a machine's speed trial.
    /// @param node The machine.
    /// @param results The digest of each link's result, in CBOR.
    function judgeTrial(address node, bytes calldata results) external;

    /// @notice Acknowledge what a payer has signed for bytes that the sender, a registered relay, has
    ///   carried.
    /// @param receipt The payer's newest receipt of a channel: canonical CBOR.
    /// @param certificate The payer's node certificate, which names the key that signed it: canonical CBOR.
    function settleCarriage(bytes calldata receipt, bytes calldata certificate) external;

    /// @notice Add the value sent to what the sender has put down for relays: they carry on it, and it pays
    ///   them.
    function fundCarriage() external payable;

    /// @notice Ask for a part of the sender's deposit for relays; it is paid out eight days later, less what
    ///   relays still bring receipts for. Takes the place of what was asked for before; 0 takes that back.
    /// @param amount Amount in 10^-18 DKB.
    function withdrawCarriage(uint256 amount) external;

    /// @notice Return a machine's record; reverts with node_unknown.
    /// @param node Address of the machine.
    /// @return operator Account behind it.
    /// @return status 1 active, 2 retiring, 3 suspended.
    /// @return roles Sum of what it offers: 1 compute, 2 verify, 4 relay, 8 storage, 16 coordinate, 32
    ///   container, 128 only containers, 64 unisolated, 256 no root, 512 no archives.
    /// @return gpus Number of its GPUs.
    /// @return pricePerTeraUnit Price in 10^-18 DKB per 10^12 work units.
    /// @return bond Bond in 10^-18 DKB.
    /// @return slots Tasks that it takes at a time.
    /// @return busySlots Tasks that it has.
    /// @return seenMs When it last acted, in milliseconds since 1970.
    /// @return reputationMilli Its record of verified work in thousandths.
    function nodeOf(address node) external view returns (address operator, uint8 status, uint8 roles, uint32
        gpus, uint256 pricePerTeraUnit, uint256 bond, uint32 slots, uint32 busySlots, uint64 seenMs, uint32
        reputationMilli);

    /// @notice Return who bonds for a machine, or may; reverts with node_unknown.
    /// @param node Address of the machine.
    /// @return sponsor Who bonds for it, or may; zero: nobody.
    /// @return bond Bond in 10^-18 DKB.
    /// @return leaving What of it is being taken back, in 10^-18 DKB.
    /// @return releaseMs When it is paid out, in milliseconds since 1970; 0: never.
    /// @return share Share of the machine's pay that its sponsor gets, in basis points.
    /// @return withhold Share of its pay that its own bond grows by, in basis points.
    /// @return until Bond of its own at which nothing more is withheld and the sponsor's returns, in 10^-18
    ///   DKB.
    /// @return withheld What of the machine's own bond came out of its pay, in 10^-18 DKB.
    function sponsorOf(address node) external view returns (address sponsor, uint256 bond, uint256 leaving,
        uint64 releaseMs, uint32 share, uint32 withhold, uint256 until, uint256 withheld);

    /// @notice Tell whether a machine is registered.
    /// @param node Address of the machine.
    /// @return registered Whether there is a record.
    function isRegistered(address node) external view returns (bool registered);

    /// @notice Return what an account has put down for relays.
    /// @param payer Who pays relays.
    /// @return deposit All that is there, in 10^-18 DKB.
    /// @return withdrawing What of it is being taken back, in 10^-18 DKB.
    /// @return releaseMs When it is paid out, in milliseconds since 1970; 0: never.
    function carriageOf(address payer) external view returns (uint256 deposit, uint256 withdrawing, uint64
        releaseMs);

    /// @notice A payer's receipt was brought; what is left due is paid out of the payer's later earnings.
    /// @param relay The relay.
    /// @param payer Who has signed the receipt.
    /// @param size Bytes since the receipt before.
    /// @param due What the payer owes the relay beyond what its deposit has paid, in 10^-18 DKB.
    event CarriageAcknowledged(address indexed relay, address indexed payer, uint256 size, uint256 due);

    /// @notice A payer has put down more for relays.
    /// @param payer Who pays relays.
    /// @param amount Amount in 10^-18 DKB.
    /// @param deposit What the payer has put down for relays afterwards, in 10^-18 DKB.
    event CarriageFunded(address indexed payer, uint256 amount, uint256 deposit);

    /// @notice A relay was paid out of a payer's deposit.
    /// @param relay The relay.
    /// @param payer Who pays relays.
    /// @param amount Amount in 10^-18 DKB.
    /// @param deposit What the payer has put down for relays afterwards, in 10^-18 DKB.
    event CarriagePaid(address indexed relay, address indexed payer, uint256 amount, uint256 deposit);

    /// @notice What a payer had asked for was paid out.
    /// @param payer Who pays relays.
    /// @param amount Amount in 10^-18 DKB.
    /// @param deposit What the payer has put down for relays afterwards, in 10^-18 DKB.
    event CarriageReturned(address indexed payer, uint256 amount, uint256 deposit);

    /// @notice A payer asks for a part of its deposit; 0: it no longer does.
    /// @param payer Who pays relays.
    /// @param amount Amount in 10^-18 DKB.
    /// @param releaseMs When it is paid out, in milliseconds since 1970; 0: never.
    event CarriageWithdrawal(address indexed payer, uint256 amount, uint256 releaseMs);

    /// @notice A machine failed and gets no work for a while.
    /// @param node Address of the machine.
    /// @param until Until when, in milliseconds since 1970.
    /// @param failures Failures in a row.
    event NodeCoolDown(address indexed node, uint256 until, uint256 failures);

    /// @notice A machine's earnings go to another account.
    /// @param node Address of the machine.
    /// @param payout The account that is paid.
    event NodePayout(address indexed node, address indexed payout);

    /// @notice A machine was registered.
    /// @param node Address of the machine.
    /// @param roles Sum of what it offers: 1 compute, 2 verify, 4 relay, 8 storage, 16 coordinate, 32
    ///   container, 128 only containers, 64 unisolated, 256 no root, 512 no archives.
    /// @param price Price in 10^-18 DKB per 10^12 work units.
    event NodeRegistered(address indexed node, uint256 roles, uint256 price);

    /// @notice A machine leaves the market.
    /// @param node Address of the machine.
    /// @param gone False when it announces it, true when its record is gone.
    event NodeRetired(address indexed node, bool gone);

    /// @notice A machine has shown that it is on.
    /// @param node Address of the machine.
    event NodeSeen(address indexed node);

    /// @notice Somebody bonds for a machine.
    /// @param node Address of the machine.
    /// @param sponsor Who bonds for it.
    /// @param amount Amount in 10^-18 DKB.
    /// @param total Sum afterwards, in 10^-18 DKB.
    event NodeSponsored(address indexed node, address indexed sponsor, uint256 amount, uint256 total);

    /// @notice A machine is off until it renews its record.
    /// @param node Address of the machine.
    event NodeSuspended(address indexed node);

    /// @notice A machine has reported itself: a job on it was tampered with.
    /// @param node Address of the machine.
    /// @param task Id of the task.
    /// @param sign What its node has seen: 1 exec, 2 copy, 3 commit, 4 export, 5 checkpoint, 6 tracer, 7
    ///   stranger, 8 drift.
    /// @param until Until when it is off the market, in milliseconds since 1970.
    /// @param reports Which of its reports this is.
    event NodeTampered(address indexed node, bytes32 indexed task, uint256 sign, uint256 until, uint256
        reports);

    /// @notice The terms of a machine's sponsor were set.
    /// @param node Address of the machine.
    /// @param sponsor Who may bond for it; zero: nobody.
    /// @param share Share of the machine's pay that its sponsor gets, in basis points.
    /// @param withhold Share of its pay that its own bond grows by, in basis points.
    /// @param until Bond of its own at which nothing more is withheld and the sponsor's returns, in 10^-18
    ///   DKB.
    event NodeTerms(address indexed node, address indexed sponsor, uint256 share, uint256 withhold, uint256
        until);

    /// @notice A machine renewed its record.
    /// @param node Address of the machine.
    /// @param roles Sum of what it offers: 1 compute, 2 verify, 4 relay, 8 storage, 16 coordinate, 32
    ///   container, 128 only containers, 64 unisolated, 256 no root, 512 no archives.
    /// @param price Price in 10^-18 DKB per 10^12 work units.
    event NodeUpdated(address indexed node, uint256 roles, uint256 price);

    /// @notice A bond for a machine is being taken back; 0: it no longer is.
    /// @param node Address of the machine.
    /// @param sponsor Who bonds for it.
    /// @param amount Amount in 10^-18 DKB.
    /// @param releaseMs When it is paid out, in milliseconds since 1970; 0: never.
    event SponsorLeaving(address indexed node, address indexed sponsor, uint256 amount, uint256 releaseMs);

    /// @notice A bond for a machine was paid out.
    /// @param node Address of the machine.
    /// @param sponsor Whose it is.
    /// @param amount Amount in 10^-18 DKB.
    event SponsorReturned(address indexed node, address indexed sponsor, uint256 amount);

    /// @notice A speed trial of a machine has begun.
    /// @param node Address of the machine.
    /// @param seed What its chain follows from.
    /// @param width Rows and columns of its matrices.
    /// @param until Until when it commits, in milliseconds since 1970.
    event TrialBegun(address indexed node, bytes32 seed, uint256 width, uint256 until);

    /// @notice A verifier was drawn for a speed trial.
    /// @param node Address of the machine.
    /// @param verifier The verifier's machine.
    event TrialDrawn(address indexed node, address indexed verifier);

    /// @notice A speed trial is over.
    /// @param node Address of the machine.
    /// @param rate Work units a second that it measured, 0 for none.
    /// @param reason How it ended (market.md R48).
    event TrialEnded(address indexed node, uint256 rate, uint256 reason);

    /// @notice A round of speed trials is over: each machine that is on was tried in it.
    /// @param number Rounds that are over.
    event TrialRoundEnded(uint256 number);
}
