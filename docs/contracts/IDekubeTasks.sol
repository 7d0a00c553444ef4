// SPDX-License-Identifier: Apache-2.0
pragma solidity >=0.8.4;

/// @title DEKUBE: the tasks contract
/// @notice Tasks of the compute market, from the locked price to the verified and paid windows.
/// @dev At 0x0000000000000000000000000000000000000702 on every chain; the node itself is behind it, no EVM.
///   Amounts are in 10^-18 DKB. What is refused reverts with Error(string): a stable code.
interface IDekubeTasks {
    /// @notice Create a task; the value sent is exactly its budget (budgetOf).
    /// @param specification The job: canonical CBOR of all that decides the result.
    function createTask(bytes calldata specification) external payable;

    /// @notice Cancel a task of the sender; what was proved is still paid.
    /// @param task Id of the task.
    function cancelTask(bytes32 task) external;

    /// @notice Accept an assigned task; the value sent is the bond that is still due.
    /// @param task Id of the task.
    function acceptTask(bytes32 task) external payable;

    /// @notice Start an accepted task.
    /// @param task Id of the task.
    /// @param machine Hash of the description of what runs it.
    function startTask(bytes32 task, bytes32 machine) external;

    /// @notice Prove a window of work.
    /// @param proof The window proof: canonical CBOR.
    function submitWindow(bytes calldata proof) external;

    /// @notice Seal what a drawn verifier found, before anybody opens anything.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    /// @param seal Hash over findings and nonce.
    function sealVerdict(bytes32 task, uint32 window, bytes32 seal) external;

    /// @notice Reveal the findings that were sealed.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    /// @param findings A finding for each drawn segment: canonical CBOR.
    /// @param nonce The nonce of the seal.
    function revealVerdict(bytes32 task, uint32 window, bytes calldata findings, bytes32 nonce) external;

    /// @notice Open the drawn segments of a proved window, as its worker.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    /// @param openings An opening for each drawn segment: canonical CBOR.
    function openWindow(bytes32 task, uint32 window, bytes calldata openings) external;

    /// @notice Do what a passed deadline of a task demands, where the chain has not yet.
    /// @param task Id of the task.
    function poke(bytes32 task) external;

    /// @notice Add the value sent to what a task of the sender may spend on verification.
    /// @param task Id of the task.
    function topUpTask(bytes32 task) external payable;

    /// @notice Resume a paused task of the sender.
    /// @param task Id of the task.
    function resumeTask(bytes32 task) external;

    /// @notice Give up a task, as its worker.
    /// @param task Id of the task.
    /// @param reason 13 input unavailable, 14 worker left, 37 job unfit.
    function giveUpTask(bytes32 task, uint8 reason) external;

    /// @notice Leave the sender's seat of a window shortly after its draw, without a fine; another machine is
    ///   drawn.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    function declineSeat(bytes32 task, uint32 window) external;

    /// @notice Have drawn machines fetch the result of an ended task of the sender that it cannot have; the
    ///   value sent pays them if they can, and comes back if the worker does not serve it.
    /// @param task Id of the task.
    function demandResult(bytes32 task) external payable;

    /// @notice Prove, as its worker, that a task's data set is not the one that it names; that ends the task.
    /// @param claim The claim with the chunks that show it: canonical CBOR.
    function claimInput(bytes calldata claim) external;

    /// @notice Prove a window up to a step that diverges, as its worker; the task ends with it if that
    ///   stands.
    /// @param proof The window proof with the claim: canonical CBOR.
    function claimDiverged(bytes calldata proof) external;

    /// @notice Make the move that is due in a dispute about a window, as one of its sides.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    /// @param game Number of the dispute.
    /// @param number Number of the move in the dispute, from 0.
    /// @param encoded The move: canonical CBOR.
    function move(bytes32 task, uint32 window, uint32 game, uint32 number, bytes calldata encoded) external;

    /// @notice Challenge a segment of a window that is not final; the value sent is the bond, of which what
    ///   is due is locked.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    /// @param seal Hash of segment, result, sender and a random salt.
    function sealChallenge(bytes32 task, uint32 window, bytes32 seal) external payable;

    /// @notice Open a sealed challenge that was called.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    /// @param challenge Number of the challenge.
    /// @param segment The segment that is wrong.
    /// @param workDigest Digest of the work that the sender found.
    /// @param stateRoot Root of the state after the segment that the sender found.
    /// @param lossBits Bits of the sum of losses that the sender found.
    /// @param salt The salt of the seal.
    function openChallenge(bytes32 task, uint32 window, uint32 challenge, uint32 segment, bytes32 workDigest,
        bytes32 stateRoot, uint64 lossBits, bytes32 salt) external;

    /// @notice Go on with a dispute whose clock the sender missed; the value sent is paid to the other side.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    /// @param game Number of the dispute.
    function resumeDispute(bytes32 task, uint32 window, uint32 game) external payable;

    /// @notice Prove that leaves of a window do not fit each other or the job.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    /// @param segment The segment whose leaf does not fit.
    /// @param leaves Its leaf with its path, and the leaf before if that one ends elsewhere: canonical CBOR.
    function showBreak(bytes32 task, uint32 window, uint32 segment, bytes calldata leaves) external;

    /// @notice Have storage machines keep the outputs of a task's windows; the value sent is the whole
    ///   budget.
    /// @param task Id of the task.
    /// @param keyRoot Merkle root over the hashes of the task's keys.
    /// @param inputs Number of inputs that have keys.
    function askCustody(bytes32 task, bytes32 keyRoot, uint32 inputs) external payable;

    /// @notice Sign for the output of a window, as a machine drawn to keep it; the value sent is the bond.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    function takeCustody(bytes32 task, uint32 window) external payable;

    /// @notice Demand a chunk of an output of a custodian, or its delivery; of the value sent what is due is
    ///   locked.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    /// @param custodian The machine that keeps the output.
    function demandCustody(bytes32 task, uint32 window, address custodian) external payable;

    /// @notice Post the chunk that was demanded of the sender.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    /// @param chunk The chunk with its paths: canonical CBOR.
    function answerDemand(bytes32 task, uint32 window, bytes calldata chunk) external;

    /// @notice Sign for the output of a window, as the machine drawn to receive it.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    function receiveCustody(bytes32 task, uint32 window) external;

    /// @notice Show with a window's key that what lies in custody is not what its worker committed to.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    /// @param key The key of the window's output.
    /// @param path The key's path to the root in the task: canonical CBOR.
    /// @param chunk A chunk in custody with its paths: canonical CBOR.
    function revealGarbage(bytes32 task, uint32 window, bytes32 key, bytes calldata path, bytes calldata
        chunk) external;

    /// @notice Show that a chunk of an output is not what the state of the window has there.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    /// @param plain The plain chunk with its path: canonical CBOR.
    /// @param leaf A leaf of the state with its paths, or an empty list: canonical CBOR.
    function revealMismatch(bytes32 task, uint32 window, bytes calldata plain, bytes calldata leaf) external;

    /// @notice End the custody of a final window's output, as the requester.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    function endCustody(bytes32 task, uint32 window) external;

    /// @notice Have storage machines keep a task's data set before it is offered; the value sent is the whole
    ///   budget.
    /// @param task Id of the task.
    /// @param size Bytes of the data set.
    /// @param plainRoot Merkle root over its plain chunks.
    /// @param cipherRoot Merkle root over its cipher chunks.
    function keepInput(bytes32 task, uint64 size, bytes32 plainRoot, bytes32 cipherRoot) external payable;

    /// @notice Show with an input's key, as the worker, that its cipher is garbage; that ends the task.
    /// @param task Id of the task.
    /// @param key The key of the input.
    /// @param path The key's path to the root in the task: canonical CBOR.
    /// @param chunk A chunk of the cipher with its paths: canonical CBOR.
    function claimGarbage(bytes32 task, bytes32 key, bytes calldata path, bytes calldata chunk) external;

    /// @notice Prove, as its worker, that a task's blob does not decrypt to its data set; that ends the task.
    /// @param claim The claim with the chunks of the cipher that show it: canonical CBOR.
    /// @param key The key of the input.
    /// @param path The key's path to the root in the task: canonical CBOR.
    function claimKeyed(bytes calldata claim, bytes32 key, bytes calldata path) external;

    /// @notice Show, as the worker, that a private input is not the job's data set; that ends the task.
    /// @param shown The claim with the plain chunks that show it: canonical CBOR.
    function claimPlain(bytes calldata shown) external;

    /// @notice Say that the sender serves what a jury could not fetch of its window; a larger jury is drawn.
    /// @param task Id of the task.
    /// @param window Number of the window, from 0.
    function serveWindow(bytes32 task, uint32 window) external;

    /// @notice Count the seconds of a container, as its worker; they are paid at once.
    /// @param task Id of the task.
    /// @param elapsed Seconds since the sender's container began: whole ticks.
    function meterTask(bytes32 task, uint32 elapsed) external;

    /// @notice Say how a container has ended, as its worker; its last seconds are paid and the task ends.
    /// @param task Id of the task.
    /// @param elapsed Seconds since the sender's container began.
    /// @param end How it ended, with its output and logs: canonical CBOR.
    function finishTask(bytes32 task, uint32 elapsed, bytes calldata end) external;

    /// @notice Name the checkpoint of a container that its worker has stored; pay of the interval before it
    ///   is due.
    /// @param task Id of the task.
    /// @param elapsed Seconds since the sender's container began that the checkpoint holds.
    /// @param blob Content address of the packed folder; empty: it cannot be stored.
    /// @param size Bytes of the packed folder.
    function checkpointTask(bytes32 task, uint32 elapsed, bytes calldata blob, uint64 size) external;

    /// @notice Say that a checkpoint is not there, as the machine that prepares; as requester of a container
    ///   refuse it, so that pay that waits is burned.
    /// @param task Id of the task.
    /// @param blob Content address of the checkpoint. Of a requester also zero, for what no checkpoint holds,
    ///   or the address of the last machine.
    function missCheckpoint(bytes32 task, bytes32 blob) external;

    /// @notice Say that a container of a quorum has ended, as its worker, and seal its result.
    /// @param task Id of the task.
    /// @param elapsed Seconds since the sender's container began.
    /// @param seal Hash of the task, the sender, the result and a salt.
    function sealOutput(bytes32 task, uint32 elapsed, bytes32 seal) external;

    /// @notice Open the sender's seal once all machines of a quorum have sealed.
    /// @param task Id of the task.
    /// @param result Hash of how the container ended and what it left.
    /// @param salt Salt of the seal.
    function revealOutput(bytes32 task, bytes32 result, bytes32 salt) external;

    /// @notice Create a group of tasks with its first member; the value sent is exactly the member's budget
    ///   (budgetOf).
    /// @param specification The job: canonical CBOR of all that decides the result.
    /// @param members Tasks that compute, 64 at most.
    /// @param spares Machines that stand by.
    function createGroup(bytes calldata specification, uint32 members, uint32 spares) external payable;

    /// @notice Add the next members and spares to a group of the sender; the value sent is exactly their
    ///   total budget.
    /// @param group Id of the group.
    /// @param roots The state that each starts from, empty for a spare: canonical CBOR.
    function addSeats(bytes32 group, bytes calldata roots) external payable;

    /// @notice Cancel a group of the sender; what was proved is still paid.
    /// @param group Id of the group.
    function cancelGroup(bytes32 group) external;

    /// @notice Return where a task stands; reverts with task_unknown.
    /// @param task Id of the task.
    /// @return phase Phase: 1 created, 3 matching, 4 assigned, 5 preparing, 6 running, 7 degraded, 8 paused,
    ///   9 standby, 10 output, 11 verifying, 13 settled, 14 failed, 15 cancelled, 16 expired.
    /// @return reason Why: 1 created, 2 admitted, 3 matched, 4 accepted, 5 started, 6 all windows proved, 7
    ///   verifiers drawn, 8 all windows final, 9 no match, 10 accept timeout, 11 worker declined, 12 prepare
    ///   timeout, 13 input unavailable, 14 worker left, 15 job diverged, 16 window timeout, 17 no
    ///   replacement, 18 funds low, 19 grace over, 20 attempts exhausted, 21 requester cancelled, 22
    ///   requester resumed, 23 work rejected, 24 not opened, 25 no verifier, 26 dispute unresolved, 27
    ///   predecessor void, 28 proved, 29 all sealed, 30 seal timeout, 31 all revealed, 32 reveal timeout, 33
    ///   verdicts agree, 34 verdicts differ, 35 jury upheld, 36 challenge over, 37 job unfit, 38 result
    ///   demanded, 39 result delivered, 40 result lost, 41 opening late, 42 lie proven, 43 answer missing, 44
    ///   challenged, 45 challenges lost, 46 blob missed, 47 input invalid, 48 not drawn, 49 not served, 50
    ///   served, 51 window late, 52 standing by, 53 spare called, 54 group ended, 55 not kept, 60 container
    ///   exited, 61 meter silent, 62 time used up, 63 container again, 80 tampered, 81 checkpoint refused, 82
    ///   checkpoint missed, 70 output sealed, 71 output differs, 72 no majority, 73 not revealed, 74 seat
    ///   unneeded, 75 no partner.
    /// @return requester Who pays the task.
    /// @return worker Machine that does the task; zero where there is none.
    /// @return pricePerTeraUnit Price in 10^-18 DKB per 10^12 work units.
    /// @return windows Windows that it is to have.
    /// @return nextWindow The window under way.
    /// @return finalWindows Windows that are verified and paid.
    /// @return deadlineMs Deadline of the phase in milliseconds since 1970; 0: none.
    function taskOf(bytes32 task) external view returns (uint8 phase, uint8 reason, address requester, address
        worker, uint256 pricePerTeraUnit, uint64 windows, uint64 nextWindow, uint64 finalWindows, uint64
        deadlineMs);

    /// @notice Return what createTask must be sent for a specification.
    /// @param specification The job: canonical CBOR of all that decides the result.
    /// @return budget What is locked in all, in 10^-18 DKB.
    function budgetOf(bytes calldata specification) external view returns (uint256 budget);

    /// @notice A sealed challenge has to be opened now.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    /// @param challenge Number of the challenge.
    /// @param challenger Who sealed it.
    event ChallengeCalled(bytes32 indexed task, uint256 number, uint256 challenge, address indexed
        challenger);

    /// @notice Somebody sealed a challenge of a window.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    /// @param challenge Number of the challenge.
    /// @param challenger Who sealed it.
    event ChallengeSealed(bytes32 indexed task, uint256 number, uint256 challenge, address indexed
        challenger);

    /// @notice A checkpoint of a container was stored, as its worker says.
    /// @param task Id of the task.
    /// @param worker Machine that does the task; zero where there is none.
    /// @param blob Content address of the packed folder; zero: an empty one.
    /// @param size Bytes of the packed folder.
    /// @param elapsed Seconds of the task that it holds.
    event CheckpointStored(bytes32 indexed task, address indexed worker, bytes32 blob, uint256 size, uint256
        elapsed);

    /// @notice A worker proved what ends a task.
    /// @param task Id of the task.
    /// @param claimant The worker, which is paid for its preparation.
    /// @param reason Why: 1 created, 2 admitted, 3 matched, 4 accepted, 5 started, 6 all windows proved, 7
    ///   verifiers drawn, 8 all windows final, 9 no match, 10 accept timeout, 11 worker declined, 12 prepare
    ///   timeout, 13 input unavailable, 14 worker left, 15 job diverged, 16 window timeout, 17 no
    ///   replacement, 18 funds low, 19 grace over, 20 attempts exhausted, 21 requester cancelled, 22
    ///   requester resumed, 23 work rejected, 24 not opened, 25 no verifier, 26 dispute unresolved, 27
    ///   predecessor void, 28 proved, 29 all sealed, 30 seal timeout, 31 all revealed, 32 reveal timeout, 33
    ///   verdicts agree, 34 verdicts differ, 35 jury upheld, 36 challenge over, 37 job unfit, 38 result
    ///   demanded, 39 result delivered, 40 result lost, 41 opening late, 42 lie proven, 43 answer missing, 44
    ///   challenged, 45 challenges lost, 46 blob missed, 47 input invalid, 48 not drawn, 49 not served, 50
    ///   served, 51 window late, 52 standing by, 53 spare called, 54 group ended, 55 not kept, 60 container
    ///   exited, 61 meter silent, 62 time used up, 63 container again, 80 tampered, 81 checkpoint refused, 82
    ///   checkpoint missed, 70 output sealed, 71 output differs, 72 no majority, 73 not revealed, 74 seat
    ///   unneeded, 75 no partner.
    /// @param fault What is wrong with the data set: 1 size, 2 form, 3 label, 4 node, 5 root, 6 garbage; 0 if
    ///   the job diverges.
    event ClaimUpheld(bytes32 indexed task, address indexed claimant, uint256 reason, uint256 fault);

    /// @notice A container has ended, as its worker says; nobody has checked that.
    /// @param task Id of the task.
    /// @param worker Machine that does the task; zero where there is none.
    /// @param kind How: 1 exited, 2 signalled, 3 out of memory, 4 out of disk, 5 not started, 6 stopped, 7
    ///   idle.
    /// @param code Exit code, or number of the signal.
    /// @param output Content address of what it left; zero: nothing.
    /// @param logs Content address of the end of what it printed; zero: nothing.
    event ContainerEnded(bytes32 indexed task, address indexed worker, uint256 kind, uint256 code, bytes32
        output, bytes32 logs);

    /// @notice A machine was drawn to keep the output of a window.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    /// @param custodian The machine.
    /// @param bond What it locks as it signs.
    event CustodianDrawn(bytes32 indexed task, uint256 number, address indexed custodian, uint256 bond);

    /// @notice The requester demands an output of the machine that keeps it.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    /// @param custodian The machine.
    /// @param kind 1: a chunk on chain, 2: a delivery of the whole.
    /// @param chunk Number of the chunk.
    /// @param receiver The machine that receives a delivery.
    event CustodyDemanded(bytes32 indexed task, uint256 number, address indexed custodian, uint256 kind,
        uint256 chunk, address receiver);

    /// @notice The custody of a window's output ended.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    event CustodyEnded(bytes32 indexed task, uint256 number);

    /// @notice A machine lost its bond for an output that it does not serve.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    /// @param custodian The machine.
    event CustodyLost(bytes32 indexed task, uint256 number, address indexed custodian);

    /// @notice A demand was answered.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    /// @param custodian The machine that keeps the output.
    /// @param kind 1: a chunk on chain, 2: a delivery.
    event CustodyServed(bytes32 indexed task, uint256 number, address indexed custodian, uint256 kind);

    /// @notice A machine keeps the output of a window.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    /// @param custodian The machine.
    event CustodyTaken(bytes32 indexed task, uint256 number, address indexed custodian);

    /// @notice None of the drawn machines keeps an output: its window will be void.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    event CustodyUnkept(bytes32 indexed task, uint256 number);

    /// @notice A side of a dispute made a move.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    /// @param game Number of the dispute.
    /// @param move Number of the move.
    /// @param player Who made it.
    event DisputeMove(bytes32 indexed task, uint256 number, uint256 game, uint256 move, address indexed
        player);

    /// @notice A dispute about a window was opened, suspended, resumed or ended.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    /// @param game Number of the dispute.
    /// @param phase Phase: 1 opening, 2 running, 3 suspended, 4 over, 5 silent.
    /// @param ending How it ended: 0 none, 1 element wrong, 2 commitment broken, 3 accused inconsistent, 4
    ///   element right, 5 challenger inconsistent, 6 moves exhausted, 7 accused silent, 8 challenger silent,
    ///   9 dropped, 10 same root, 11 rerun wrong, 12 rerun refuted.
    /// @param challenger Who says that the segment is wrong.
    event DisputePhase(bytes32 indexed task, uint256 number, uint256 game, uint256 phase, uint256 ending,
        address challenger);

    /// @notice A worker claims that the job diverges; verifiers run it again.
    /// @param task Id of the task.
    /// @param worker The worker.
    /// @param window Number of the window.
    /// @param step The step that diverges, from 0.
    /// @param store Number of the store without a value in the job's program.
    event DivergenceClaimed(bytes32 indexed task, address indexed worker, uint256 window, uint256 step,
        uint256 store);

    /// @notice A group was created.
    /// @param group Id of the group.
    /// @param requester Who pays the task.
    /// @param spec Hash of the specification of its first member.
    /// @param members Tasks that compute.
    /// @param spares Machines that stand by.
    event GroupCreated(bytes32 indexed group, address indexed requester, bytes32 spec, uint256 members,
        uint256 spares);

    /// @notice A group changed its phase.
    /// @param group Id of the group.
    /// @param before The phase before, numbered alike.
    /// @param phase Phase: 1 matching, 2 running, 3 paused, 4 ended.
    /// @param reason Why: 1 created, 2 admitted, 3 matched, 4 accepted, 5 started, 6 all windows proved, 7
    ///   verifiers drawn, 8 all windows final, 9 no match, 10 accept timeout, 11 worker declined, 12 prepare
    ///   timeout, 13 input unavailable, 14 worker left, 15 job diverged, 16 window timeout, 17 no
    ///   replacement, 18 funds low, 19 grace over, 20 attempts exhausted, 21 requester cancelled, 22
    ///   requester resumed, 23 work rejected, 24 not opened, 25 no verifier, 26 dispute unresolved, 27
    ///   predecessor void, 28 proved, 29 all sealed, 30 seal timeout, 31 all revealed, 32 reveal timeout, 33
    ///   verdicts agree, 34 verdicts differ, 35 jury upheld, 36 challenge over, 37 job unfit, 38 result
    ///   demanded, 39 result delivered, 40 result lost, 41 opening late, 42 lie proven, 43 answer missing, 44
    ///   challenged, 45 challenges lost, 46 blob missed, 47 input invalid, 48 not drawn, 49 not served, 50
    ///   served, 51 window late, 52 standing by, 53 spare called, 54 group ended, 55 not kept, 60 container
    ///   exited, 61 meter silent, 62 time used up, 63 container again, 80 tampered, 81 checkpoint refused, 82
    ///   checkpoint missed, 70 output sealed, 71 output differs, 72 no majority, 73 not revealed, 74 seat
    ///   unneeded, 75 no partner.
    event GroupPhase(bytes32 indexed group, uint256 before, uint256 phase, uint256 reason);

    /// @notice A task was created as a seat of a group.
    /// @param group Id of the group.
    /// @param task Id of the task.
    /// @param seat Number of the seat; members first, then spares.
    event GroupSeat(bytes32 indexed group, bytes32 indexed task, uint256 seat);

    /// @notice A machine of a quorum has opened its seal.
    /// @param task Id of the task.
    /// @param worker Machine that does the task; zero where there is none.
    /// @param result Hash of how its container ended and what it left.
    event OutputRevealed(bytes32 indexed task, address indexed worker, bytes32 result);

    /// @notice A machine of a quorum has sealed what its container left.
    /// @param task Id of the task.
    /// @param worker Machine that does the task; zero where there is none.
    /// @param seal Hash over the result and a salt.
    event OutputSealed(bytes32 indexed task, address indexed worker, bytes32 seal);

    /// @notice A quorum of machines that run one container has moved on.
    /// @param quorum Id of the task of its first seat.
    /// @param before The phase before, numbered alike.
    /// @param phase 1 running, 2 revealing, 3 third, 4 showing, 5 stopping, 6 ended.
    /// @param result Result of most of them; zero: none yet.
    event QuorumPhase(bytes32 indexed quorum, uint256 before, uint256 phase, bytes32 result);

    /// @notice A drawn machine left its seat of a window; another is drawn.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    /// @param verifier The machine.
    event SeatDeclined(bytes32 indexed task, uint256 number, address indexed verifier);

    /// @notice A machine was drawn to check a window.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    /// @param verifier The machine.
    event SeatDrawn(bytes32 indexed task, uint256 number, address indexed verifier);

    /// @notice Seconds of a container are neither kept nor paid: its worker has left, or its checkpoint
    ///   cannot be had.
    /// @param task Id of the task.
    /// @param worker Machine that does the task; zero where there is none.
    /// @param lost Seconds that another machine does again.
    /// @param amount Pay that returns to the task, in 10^-18 DKB.
    event SecondsLost(bytes32 indexed task, address indexed worker, uint256 lost, uint256 amount);

    /// @notice Seconds of a container were counted or paid.
    /// @param task Id of the task.
    /// @param worker Machine that does the task; zero where there is none.
    /// @param added Seconds that were added.
    /// @param total Seconds of the task in all.
    /// @param paid Price of the added seconds, in 10^-18 DKB.
    event SecondsMetered(bytes32 indexed task, address indexed worker, uint256 added, uint256 total, uint256
        paid);

    /// @notice A task was created.
    /// @param task Id of the task.
    /// @param requester Who pays the task.
    /// @param spec Hash of its specification.
    /// @param budget What is locked in all, in 10^-18 DKB.
    event TaskCreated(bytes32 indexed task, address indexed requester, bytes32 spec, uint256 budget);

    /// @notice A task changed its phase.
    /// @param task Id of the task.
    /// @param before The phase before, numbered alike.
    /// @param phase Phase: 1 created, 3 matching, 4 assigned, 5 preparing, 6 running, 7 degraded, 8 paused, 9
    ///   standby, 10 output, 11 verifying, 13 settled, 14 failed, 15 cancelled, 16 expired.
    /// @param reason Why: 1 created, 2 admitted, 3 matched, 4 accepted, 5 started, 6 all windows proved, 7
    ///   verifiers drawn, 8 all windows final, 9 no match, 10 accept timeout, 11 worker declined, 12 prepare
    ///   timeout, 13 input unavailable, 14 worker left, 15 job diverged, 16 window timeout, 17 no
    ///   replacement, 18 funds low, 19 grace over, 20 attempts exhausted, 21 requester cancelled, 22
    ///   requester resumed, 23 work rejected, 24 not opened, 25 no verifier, 26 dispute unresolved, 27
    ///   predecessor void, 28 proved, 29 all sealed, 30 seal timeout, 31 all revealed, 32 reveal timeout, 33
    ///   verdicts agree, 34 verdicts differ, 35 jury upheld, 36 challenge over, 37 job unfit, 38 result
    ///   demanded, 39 result delivered, 40 result lost, 41 opening late, 42 lie proven, 43 answer missing, 44
    ///   challenged, 45 challenges lost, 46 blob missed, 47 input invalid, 48 not drawn, 49 not served, 50
    ///   served, 51 window late, 52 standing by, 53 spare called, 54 group ended, 55 not kept, 60 container
    ///   exited, 61 meter silent, 62 time used up, 63 container again, 80 tampered, 81 checkpoint refused, 82
    ///   checkpoint missed, 70 output sealed, 71 output differs, 72 no majority, 73 not revealed, 74 seat
    ///   unneeded, 75 no partner.
    /// @param actor Who caused it; zero: the chain itself.
    /// @param evidence Hash of what shows it, such as the transaction.
    event TaskPhase(bytes32 indexed task, uint256 before, uint256 phase, uint256 reason, address actor,
        bytes32 evidence);

    /// @notice A window of a task changed its phase.
    /// @param task Id of the task.
    /// @param number Number of the window, from 0.
    /// @param before The phase before, numbered alike.
    /// @param phase Phase: 1 proved, 2 sealing, 3 revealing, 4 opening, 5 disputed, 6 jury sealing, 7 jury
    ///   revealing, 8 accepted, 9 final, 10 void, 11 demanded, 12 delivery sealing, 13 delivery revealing, 14
    ///   lost, 15 doubted.
    /// @param reason Why: 1 created, 2 admitted, 3 matched, 4 accepted, 5 started, 6 all windows proved, 7
    ///   verifiers drawn, 8 all windows final, 9 no match, 10 accept timeout, 11 worker declined, 12 prepare
    ///   timeout, 13 input unavailable, 14 worker left, 15 job diverged, 16 window timeout, 17 no
    ///   replacement, 18 funds low, 19 grace over, 20 attempts exhausted, 21 requester cancelled, 22
    ///   requester resumed, 23 work rejected, 24 not opened, 25 no verifier, 26 dispute unresolved, 27
    ///   predecessor void, 28 proved, 29 all sealed, 30 seal timeout, 31 all revealed, 32 reveal timeout, 33
    ///   verdicts agree, 34 verdicts differ, 35 jury upheld, 36 challenge over, 37 job unfit, 38 result
    ///   demanded, 39 result delivered, 40 result lost, 41 opening late, 42 lie proven, 43 answer missing, 44
    ///   challenged, 45 challenges lost, 46 blob missed, 47 input invalid, 48 not drawn, 49 not served, 50
    ///   served, 51 window late, 52 standing by, 53 spare called, 54 group ended, 55 not kept, 60 container
    ///   exited, 61 meter silent, 62 time used up, 63 container again, 80 tampered, 81 checkpoint refused, 82
    ///   checkpoint missed, 70 output sealed, 71 output differs, 72 no majority, 73 not revealed, 74 seat
    ///   unneeded, 75 no partner.
    /// @param actor Who caused it; zero: the chain itself.
    event WindowPhase(bytes32 indexed task, uint256 number, uint256 before, uint256 phase, uint256 reason,
        address actor);

    /// @notice A task was given to a machine, which may accept it.
    /// @param task Id of the task.
    /// @param worker Machine that does the task; zero where there is none.
    /// @param price Price in 10^-18 DKB per 10^12 work units.
    event WorkerAssigned(bytes32 indexed task, address indexed worker, uint256 price);
}
