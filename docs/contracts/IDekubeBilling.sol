// SPDX-License-Identifier: Apache-2.0
pragma solidity >=0.8.4;

/// @title DEKUBE: the billing contract
/// @notice What is locked for tasks and machines, and who was paid. Only the chain itself moves it.
/// @dev At 0x0000000000000000000000000000000000000703 on every chain; the node itself is behind it, no EVM.
///   Amounts are in 10^-18 DKB. What is refused reverts with Error(string): a stable code.
interface IDekubeBilling {
    /// @notice Return the sums of an escrow; reverts with escrow_unknown.
    /// @param escrow Id of the escrow: that of its task, or of a machine's bond.
    /// @return deposited Paid in, in 10^-18 DKB; the sum of the others.
    /// @return held Still locked, in 10^-18 DKB.
    /// @return paid Paid out, in 10^-18 DKB.
    /// @return refunded Given back, in 10^-18 DKB.
    /// @return burned Burned, in 10^-18 DKB.
    function escrowOf(bytes32 escrow) external view returns (uint256 deposited, uint256 held, uint256 paid,
        uint256 refunded, uint256 burned);

    /// @notice Return what an account was ever paid for a role.
    /// @param who The account.
    /// @param role For what: 1 compute, 2 verify, 3 coordinate, 4 relay, 5 storage.
    /// @return amount Amount in 10^-18 DKB.
    function earned(address who, uint8 role) external view returns (uint256 amount);

    /// @notice Money was burned.
    /// @param escrow Id of the escrow: that of its task, or of a machine's bond.
    /// @param amount Amount in 10^-18 DKB.
    /// @param purpose Why it moved: 1 price, 2 verification, 3 protocol fee, 4 top up, 5 worker bond, 6 node
    ///   bond, 7 window pay, 8 window hold, 9 hold release, 10 verifier fee, 11 juror fee, 12 kill fee, 13
    ///   worker fine, 14 verifier fine, 15 hold forfeit, 16 unspent, 17 bond return, 18 carriage, 19 demand,
    ///   20 result lost, 21 sponsor bond, 22 withheld, 23 challenge bond, 24 challenge lost, 25 lie proven,
    ///   26 dispute resumed, 27 preparation, 28 claim gas, 29 check fund, 30 check, 31 claim check, 32 not
    ///   served, 33 standby, 34 metered, 35 seconds held, 36 disk, 40 custody, 41 custody pay, 42 custody
    ///   bond, 43 custody lost, 44 custody demand.
    event Burned(bytes32 indexed escrow, uint256 amount, uint256 purpose);

    /// @notice Money was locked.
    /// @param escrow Id of the escrow: that of its task, or of a machine's bond.
    /// @param from Who paid it.
    /// @param amount Amount in 10^-18 DKB.
    /// @param purpose Why it moved: 1 price, 2 verification, 3 protocol fee, 4 top up, 5 worker bond, 6 node
    ///   bond, 7 window pay, 8 window hold, 9 hold release, 10 verifier fee, 11 juror fee, 12 kill fee, 13
    ///   worker fine, 14 verifier fine, 15 hold forfeit, 16 unspent, 17 bond return, 18 carriage, 19 demand,
    ///   20 result lost, 21 sponsor bond, 22 withheld, 23 challenge bond, 24 challenge lost, 25 lie proven,
    ///   26 dispute resumed, 27 preparation, 28 claim gas, 29 check fund, 30 check, 31 claim check, 32 not
    ///   served, 33 standby, 34 metered, 35 seconds held, 36 disk, 40 custody, 41 custody pay, 42 custody
    ///   bond, 43 custody lost, 44 custody demand.
    event Locked(bytes32 indexed escrow, address indexed from, uint256 amount, uint256 purpose);

    /// @notice Money was paid out.
    /// @param escrow Id of the escrow: that of its task, or of a machine's bond.
    /// @param to Who received it.
    /// @param amount Amount in 10^-18 DKB.
    /// @param purpose Why it moved: 1 price, 2 verification, 3 protocol fee, 4 top up, 5 worker bond, 6 node
    ///   bond, 7 window pay, 8 window hold, 9 hold release, 10 verifier fee, 11 juror fee, 12 kill fee, 13
    ///   worker fine, 14 verifier fine, 15 hold forfeit, 16 unspent, 17 bond return, 18 carriage, 19 demand,
    ///   20 result lost, 21 sponsor bond, 22 withheld, 23 challenge bond, 24 challenge lost, 25 lie proven,
    ///   26 dispute resumed, 27 preparation, 28 claim gas, 29 check fund, 30 check, 31 claim check, 32 not
    ///   served, 33 standby, 34 metered, 35 seconds held, 36 disk, 40 custody, 41 custody pay, 42 custody
    ///   bond, 43 custody lost, 44 custody demand.
    event Paid(bytes32 indexed escrow, address indexed to, uint256 amount, uint256 purpose);

    /// @notice Money was given back.
    /// @param escrow Id of the escrow: that of its task, or of a machine's bond.
    /// @param to Who received it.
    /// @param amount Amount in 10^-18 DKB.
    /// @param purpose Why it moved: 1 price, 2 verification, 3 protocol fee, 4 top up, 5 worker bond, 6 node
    ///   bond, 7 window pay, 8 window hold, 9 hold release, 10 verifier fee, 11 juror fee, 12 kill fee, 13
    ///   worker fine, 14 verifier fine, 15 hold forfeit, 16 unspent, 17 bond return, 18 carriage, 19 demand,
    ///   20 result lost, 21 sponsor bond, 22 withheld, 23 challenge bond, 24 challenge lost, 25 lie proven,
    ///   26 dispute resumed, 27 preparation, 28 claim gas, 29 check fund, 30 check, 31 claim check, 32 not
    ///   served, 33 standby, 34 metered, 35 seconds held, 36 disk, 40 custody, 41 custody pay, 42 custody
    ///   bond, 43 custody lost, 44 custody demand.
    event Refunded(bytes32 indexed escrow, address indexed to, uint256 amount, uint256 purpose);
}
