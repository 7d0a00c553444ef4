// SPDX-License-Identifier: Apache-2.0
pragma solidity >=0.8.4;

/// @title DEKUBE: the staking contract
/// @notice Stake of validators, their keys, and what epochs and proven faults do to them.
/// @dev At 0x0000000000000000000000000000000000000704 on every chain; the node itself is behind it, no EVM.
///   Amounts are in 10^-18 DKB. What is refused reverts with Error(string): a stable code.
interface IDekubeStaking {
    /// @notice Stake the value sent, as a validator with these keys.
    /// @param voteKey Key that the validator's votes are signed with.
    /// @param possession Signature of the vote key over the digest of possession.
    /// @param vrfKey Key that its share of the randomness is proved with.
    /// @param vrfPossession Proof of the VRF key over the same digest.
    function stake(bytes32 voteKey, bytes calldata possession, bytes32 vrfKey, bytes calldata vrfPossession)
        external payable;

    /// @notice Take back a part of the stake; it is paid out later.
    /// @param amount Amount in 10^-18 DKB.
    function unstake(uint256 amount) external;

    /// @notice Return stake and keys of a validator; zeros for none.
    /// @param validator Address of the validator.
    /// @return amount Amount in 10^-18 DKB.
    /// @return voteKey Key that the validator's votes are signed with.
    /// @return vrfKey Key that its share of the randomness is proved with.
    function stakeOf(address validator) external view returns (uint256 amount, bytes32 voteKey, bytes32
        vrfKey);

    /// @notice Return what an account has unstaked and not received yet.
    /// @param validator Address of the validator.
    /// @return amount Amount in 10^-18 DKB.
    /// @return nextReleaseMs When the next part is paid out, in milliseconds since 1970; 0: never.
    function unbondingOf(address validator) external view returns (uint256 amount, uint64 nextReleaseMs);

    /// @notice Return until when a validator has no seat.
    /// @param validator Address of the validator.
    /// @return epoch First epoch that may seat it; 0: now.
    function jailedUntil(address validator) external view returns (uint32 epoch);

    /// @notice Return the least stake of a validator.
    /// @return amount Amount in 10^-18 DKB.
    function minimumStake() external view returns (uint256 amount);

    /// @notice The committee of a later epoch was drawn.
    /// @param epoch Number of the epoch.
    /// @param committeeHash Hash of the committee's description.
    /// @param seats Number of seats.
    /// @param weight Weight of votes in all.
    /// @param anchors Seats that the largest stakes have without a lottery.
    /// @param lotteryWeight Weight of votes of the seats that were drawn.
    event CommitteeSelected(uint256 indexed epoch, bytes32 committeeHash, uint256 seats, uint256 weight,
        uint256 anchors, uint256 lotteryWeight);

    /// @notice An epoch began.
    /// @param epoch Number of the epoch.
    /// @param committeeHash Hash of the committee's description.
    /// @param seats Number of seats.
    /// @param weight Weight of votes in all.
    /// @param version Version of the rules that it follows.
    event EpochBegan(uint256 indexed epoch, bytes32 committeeHash, uint256 seats, uint256 weight, uint256
        version);

    /// @notice A validator was proven to have signed two votes where one is allowed.
    /// @param operator The validator.
    /// @param reporter Who brought the proof.
    /// @param fault Number of the kind of fault.
    /// @param epoch Number of the epoch.
    /// @param view_ View of the votes.
    event Equivocated(address indexed operator, address indexed reporter, uint256 fault, uint256 epoch,
        uint256 view_);

    /// @notice A validator was absent for too long and has no seat for a while.
    /// @param validator Address of the validator.
    /// @param epoch Number of the epoch.
    /// @param untilEpoch First epoch that may seat it again.
    /// @param times How often it was jailed in a row.
    /// @param burned Burned, in 10^-18 DKB.
    event Jailed(address indexed validator, uint256 indexed epoch, uint256 untilEpoch, uint256 times, uint256
        burned);

    /// @notice More weight was drawn by lottery than is safe.
    /// @param epoch Number of the epoch.
    /// @param lotteryWeight Weight of votes of the seats that were drawn.
    /// @param weight Weight of votes in all.
    event LotteryTooLarge(uint256 indexed epoch, uint256 lotteryWeight, uint256 weight);

    /// @notice Stake was taken for proven faults.
    /// @param operator The validator.
    /// @param amount Amount in 10^-18 DKB.
    /// @param total Taken so far, in 10^-18 DKB.
    /// @param reward For the reporter, in 10^-18 DKB.
    event Slashed(address indexed operator, uint256 amount, uint256 total, uint256 reward);

    /// @notice A validator added to its stake or changed its keys.
    /// @param validator Address of the validator.
    /// @param voteKey Key that the validator's votes are signed with.
    /// @param amount Amount in 10^-18 DKB.
    /// @param total Sum afterwards, in 10^-18 DKB.
    event Staked(address indexed validator, bytes32 indexed voteKey, uint256 amount, uint256 total);

    /// @notice What was unstaked was paid out.
    /// @param validator Address of the validator.
    /// @param amount Amount in 10^-18 DKB.
    event Unbonded(address indexed validator, uint256 amount);

    /// @notice A validator took back a part of its stake.
    /// @param validator Address of the validator.
    /// @param amount Amount in 10^-18 DKB.
    /// @param total Sum afterwards, in 10^-18 DKB.
    /// @param releaseTimeMs When it is paid out, in milliseconds since 1970.
    event Unstaked(address indexed validator, uint256 amount, uint256 total, uint256 releaseTimeMs);

    /// @notice Enough weight has signalled another version of the rules.
    /// @param version Number of the version.
    /// @param epoch First epoch that follows it.
    event VersionScheduled(uint256 indexed version, uint256 indexed epoch);
}
