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

    /// @notice Renew the sender's record and end its retirement; the value sent is added to its bond.
    /// @param profile What the machine is and asks for: canonical CBOR.
    function updateNode(bytes calldata profile) external payable;

    /// @notice Take the sender's machine off the market; its bond returns after its duties.
    function retireNode() external;

    /// @notice Acknowledge what a payer has signed for bytes that the sender, a registered relay, has
    ///   carried.
    /// @param receipt The payer's newest receipt of a channel: canonical CBOR.
    /// @param certificate The payer's node certificate, which names the key that signed it: canonical CBOR.
    function settleCarriage(bytes calldata receipt, bytes calldata certificate) external;

    /// @notice Return a machine's record; reverts with node_unknown.
    /// @param node Address of the machine.
    /// @return operator Account behind it.
    /// @return status 1 active, 2 retiring.
    /// @return roles Sum of what it offers: 1 compute, 2 verify, 4 relay, 8 storage, 16 coordinate.
    /// @return gpus Number of its GPUs.
    /// @return pricePerGpuSecond Price in 10^-18 DKB for a GPU-second.
    /// @return bond Bond in 10^-18 DKB.
    /// @return slots Tasks that it takes at a time.
    /// @return busySlots Tasks that it has.
    /// @return seenMs When it last acted, in milliseconds since 1970.
    /// @return reputationMilli Its record of verified work in thousandths.
    function nodeOf(address node) external view returns (address operator, uint8 status, uint8 roles, uint32
        gpus, uint256 pricePerGpuSecond, uint256 bond, uint32 slots, uint32 busySlots, uint64 seenMs, uint32
        reputationMilli);

    /// @notice Tell whether a machine is registered.
    /// @param node Address of the machine.
    /// @return registered Whether there is a record.
    function isRegistered(address node) external view returns (bool registered);

    /// @notice A payer's receipt was brought; its due is paid out of the payer's later earnings.
    /// @param relay The relay.
    /// @param payer Who has signed the receipt.
    /// @param size Bytes since the receipt before.
    /// @param due What the payer owes the relay now, in 10^-18 DKB.
    event CarriageAcknowledged(address indexed relay, address indexed payer, uint256 size, uint256 due);

    /// @notice A machine failed and gets no work for a while.
    /// @param node Address of the machine.
    /// @param until Until when, in milliseconds since 1970.
    /// @param failures Failures in a row.
    event NodeCoolDown(address indexed node, uint256 until, uint256 failures);

    /// @notice A machine was registered.
    /// @param node Address of the machine.
    /// @param roles Sum of what it offers: 1 compute, 2 verify, 4 relay, 8 storage, 16 coordinate.
    /// @param price Price in 10^-18 DKB for a GPU-second.
    event NodeRegistered(address indexed node, uint256 roles, uint256 price);

    /// @notice A machine leaves the market.
    /// @param node Address of the machine.
    /// @param gone False when it announces it, true when its record is gone.
    event NodeRetired(address indexed node, bool gone);

    /// @notice A machine renewed its record.
    /// @param node Address of the machine.
    /// @param roles Sum of what it offers: 1 compute, 2 verify, 4 relay, 8 storage, 16 coordinate.
    /// @param price Price in 10^-18 DKB for a GPU-second.
    event NodeUpdated(address indexed node, uint256 roles, uint256 price);
}
