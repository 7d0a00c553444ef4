// Command clients takes go-ethereum's ethclient and bindings, unchanged, through what they offer.
//
// It reads its Setting as JSON from standard input and writes a Report as JSON to standard output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math/big"
	"os"
	"strings"
	"time"

	"dekube.test/clients/contracts"
	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/accounts/abi/bind"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/ethclient/gethclient"
	"github.com/ethereum/go-ethereum/rpc"
)

const patience = 60 * time.Second

// Setting is the network to use; Machines are registered ones, Task is one of theirs.
type Setting struct {
	HTTP      string                    `json:"http"`
	WS        string                    `json:"ws"`
	ChainID   int64                     `json:"chain_id"`
	Key       string                    `json:"key"`
	Blocks    uint64                    `json:"blocks"`
	Machines  []common.Address          `json:"machines"`
	Task      common.Hash               `json:"task"`
	Contracts map[string]common.Address `json:"contracts"`
}

// Report is what was tried, and what of it failed.
type Report struct {
	Checks       int      `json:"checks"`
	Failures     []string `json:"failures"`
	Blocks       int      `json:"blocks"`
	Transactions int      `json:"transactions"`
	Native       int      `json:"native"`
	Logs         int      `json:"logs"`
	Undecodable  int      `json:"undecodable"`
}

// Run is one pass over everything, over one transport.
type Run struct {
	Setting
	*Report
	name string
	raw  *rpc.Client
	ec   *ethclient.Client
	ctx  context.Context
}

func (r *Run) check(what string, err error) bool {
	r.Checks++
	if err != nil {
		r.Failures = append(r.Failures, fmt.Sprintf("%s: %s: %v", r.name, what, err))
	}
	return err == nil
}

func (r *Run) that(what string, ok bool, seen ...any) bool {
	if ok {
		return r.check(what, nil)
	}
	return r.check(what, fmt.Errorf("not so: %v", seen))
}

// refused checks that a call failed with a message of the node, and not because its answer made no sense.
func (r *Run) refused(what string, err error, words string) {
	var told rpc.Error
	r.that(what, errors.As(err, &told) && strings.Contains(err.Error(), words), err)
}

func get[T any](r *Run, what string, call func() (T, error)) T {
	value, err := call()
	r.check(what, err)
	return value
}

type named struct {
	Hash       common.Hash  `json:"hash"`
	ParentHash common.Hash  `json:"parentHash"`
	Number     *hexutil.Big `json:"number"`
}

func (r *Run) named(block string) named {
	var found named
	r.check("eth_getBlockByNumber "+block, r.raw.CallContext(r.ctx, &found, "eth_getBlockByNumber", block, false))
	return found
}

func (r *Run) identity() {
	ec, ctx := r.ec, r.ctx
	id := get(r, "ChainID", func() (*big.Int, error) { return ec.ChainID(ctx) })
	net := get(r, "NetworkID", func() (*big.Int, error) { return ec.NetworkID(ctx) })
	r.that("chain and network", id.Int64() == r.ChainID && net.Int64() == r.ChainID, id, net)
	get(r, "PeerCount", func() (uint64, error) { return ec.PeerCount(ctx) })
	progress := get(r, "SyncProgress", func() (*ethereum.SyncProgress, error) { return ec.SyncProgress(ctx) })
	r.that("not syncing", progress == nil, progress)
	modules := get(r, "SupportedModules", func() (map[string]string, error) { return r.raw.SupportedModules() })
	r.that("modules", modules["eth"] != "" && modules["net"] != "", modules)
}

func (r *Run) blocks() {
	ec, ctx := r.ec, r.ctx
	for _, tag := range []rpc.BlockNumber{
		rpc.LatestBlockNumber, rpc.PendingBlockNumber, rpc.SafeBlockNumber, rpc.FinalizedBlockNumber,
		rpc.EarliestBlockNumber, 0, 1, 2,
	} {
		number := big.NewInt(tag.Int64())
		header := get(r, "HeaderByNumber "+tag.String(), func() (*types.Header, error) { return ec.HeaderByNumber(ctx, number) })
		block := get(r, "BlockByNumber "+tag.String(), func() (*types.Block, error) { return ec.BlockByNumber(ctx, number) })
		r.that("a header and its block", header != nil && block != nil)
		receipts := rpc.BlockNumberOrHashWithNumber(tag)
		get(r, "BlockReceipts "+tag.String(), func() ([]*types.Receipt, error) { return ec.BlockReceipts(ctx, receipts) })
	}
	newest := r.named("latest")
	header := get(r, "HeaderByHash", func() (*types.Header, error) { return ec.HeaderByHash(ctx, newest.Hash) })
	r.that("the header of the hash", header != nil && header.ParentHash == newest.ParentHash, header)
	block := get(r, "BlockByHash", func() (*types.Block, error) { return ec.BlockByHash(ctx, newest.Hash) })
	r.that("the block of the hash", block != nil && block.Number().Cmp(newest.Number.ToInt()) == 0, block)
	count := get(r, "TransactionCount", func() (uint, error) { return ec.TransactionCount(ctx, newest.Hash) })
	r.that("as many as in the block", block != nil && int(count) == len(block.Transactions()), count)
	for _, canonical := range []bool{false, true} {
		which := rpc.BlockNumberOrHashWithHash(newest.Hash, canonical)
		got := get(r, "BlockReceipts of a hash", func() ([]*types.Receipt, error) { return ec.BlockReceipts(ctx, which) })
		r.that("a receipt for each", len(got) == int(count), got)
	}
	get(r, "PendingTransactionCount", func() (uint, error) { return ec.PendingTransactionCount(ctx) })
	_, err := ec.BlockByHash(ctx, common.Hash{1})
	r.that("no block of an unknown hash", errors.Is(err, ethereum.NotFound), err)
	_, err = ec.HeaderByNumber(ctx, big.NewInt(1<<40))
	r.that("no header above the newest", errors.Is(err, ethereum.NotFound), err)
	_, _, err = ec.TransactionByHash(ctx, common.Hash{1})
	r.that("no transaction of an unknown hash", errors.Is(err, ethereum.NotFound), err)
	_, err = ec.TransactionReceipt(ctx, common.Hash{1})
	r.that("no receipt of an unknown hash", errors.Is(err, ethereum.NotFound), err)
	for _, method := range []string{"eth_getHeaderByNumber", "eth_getHeaderByHash"} {
		var found *types.Header
		given := any("latest")
		if method == "eth_getHeaderByHash" {
			given = newest.Hash
		}
		r.check(method, r.raw.CallContext(ctx, &found, method, given))
		r.that(method+" has a header", found != nil && found.TxHash != common.Hash{}, found)
	}
}

func (r *Run) accounts(who common.Address) {
	ec, ctx, newest := r.ec, r.ctx, r.named("latest")
	number, slot, staking := newest.Number.ToInt(), common.Hash{}, r.Contracts["staking"]
	balances := []*big.Int{
		get(r, "BalanceAt", func() (*big.Int, error) { return ec.BalanceAt(ctx, who, nil) }),
		get(r, "BalanceAt a number", func() (*big.Int, error) { return ec.BalanceAt(ctx, who, number) }),
		get(r, "BalanceAtHash", func() (*big.Int, error) { return ec.BalanceAtHash(ctx, who, newest.Hash) }),
		get(r, "PendingBalanceAt", func() (*big.Int, error) { return ec.PendingBalanceAt(ctx, who) }),
	}
	for _, balance := range balances {
		r.that("a balance", balance != nil && balance.Sign() > 0, balance)
	}
	get(r, "NonceAt", func() (uint64, error) { return ec.NonceAt(ctx, who, nil) })
	get(r, "NonceAtHash", func() (uint64, error) { return ec.NonceAtHash(ctx, who, newest.Hash) })
	get(r, "PendingNonceAt", func() (uint64, error) { return ec.PendingNonceAt(ctx, who) })
	codes := [][]byte{
		get(r, "CodeAt", func() ([]byte, error) { return ec.CodeAt(ctx, staking, number) }),
		get(r, "CodeAtHash", func() ([]byte, error) { return ec.CodeAtHash(ctx, staking, newest.Hash) }),
		get(r, "PendingCodeAt", func() ([]byte, error) { return ec.PendingCodeAt(ctx, staking) }),
	}
	for _, code := range codes {
		r.that("a contract has code", len(code) > 0, code)
	}
	get(r, "StorageAt", func() ([]byte, error) { return ec.StorageAt(ctx, staking, slot, number) })
	get(r, "StorageAtHash", func() ([]byte, error) { return ec.StorageAtHash(ctx, staking, slot, newest.Hash) })
	get(r, "PendingStorageAt", func() ([]byte, error) { return ec.PendingStorageAt(ctx, staking, slot) })
}

func (r *Run) fees() {
	ec, ctx := r.ec, r.ctx
	price := get(r, "SuggestGasPrice", func() (*big.Int, error) { return ec.SuggestGasPrice(ctx) })
	r.that("a price", price != nil && price.Sign() > 0, price)
	get(r, "SuggestGasTipCap", func() (*big.Int, error) { return ec.SuggestGasTipCap(ctx) })
	for _, percentiles := range [][]float64{nil, {}, {10, 50}} {
		for _, blocks := range []uint64{0, 1, 5} {
			what := fmt.Sprintf("FeeHistory %d %v", blocks, percentiles)
			history := get(r, what, func() (*ethereum.FeeHistory, error) { return ec.FeeHistory(ctx, blocks, nil, percentiles) })
			if history == nil {
				continue
			}
			r.that(what, len(history.GasUsedRatio) <= int(blocks) && (blocks == 0 || len(history.BaseFee) == len(history.GasUsedRatio)+1), history)
			rewards := 0
			if len(percentiles) > 0 {
				rewards = len(history.GasUsedRatio)
			}
			r.that(what+": rewards", len(history.Reward) == rewards, history.Reward)
		}
	}
}

func (r *Run) sends(key, newcomer string) {
	ec, ctx := r.ec, r.ctx
	secret, err := crypto.HexToECDSA(strings.TrimPrefix(key, "0x"))
	if !r.check("the key", err) {
		return
	}
	who, to := crypto.PubkeyToAddress(secret.PublicKey), common.HexToAddress(newcomer)
	signer := types.LatestSignerForChainID(big.NewInt(r.ChainID))
	nonce := get(r, "PendingNonceAt", func() (uint64, error) { return ec.PendingNonceAt(ctx, who) })
	price := get(r, "SuggestGasPrice", func() (*big.Int, error) { return ec.SuggestGasPrice(ctx) })
	bodies := []types.TxData{
		&types.DynamicFeeTx{ChainID: big.NewInt(r.ChainID), Nonce: nonce, GasFeeCap: price, GasTipCap: big.NewInt(1), Gas: 21000, To: &to, Value: big.NewInt(7)},
		&types.LegacyTx{Nonce: nonce + 1, GasPrice: price, Gas: 21000, To: &to, Value: big.NewInt(8), Data: []byte("note")},
		&types.DynamicFeeTx{ChainID: big.NewInt(r.ChainID), Nonce: nonce + 2, GasFeeCap: price, GasTipCap: new(big.Int), Gas: 21000, To: &to, Value: big.NewInt(9)},
	}
	for number, body := range bodies {
		tx, err := types.SignNewTx(secret, signer, body)
		if !r.check("sign", err) {
			return
		}
		if number == 2 {
			receipt := get(r, "SendTransactionSync", func() (*types.Receipt, error) { return ec.SendTransactionSync(ctx, tx, nil) })
			r.that("the receipt of what was sent", receipt != nil && receipt.TxHash == tx.Hash() && receipt.Status == 1, receipt)
		} else {
			r.check("SendTransaction", ec.SendTransaction(ctx, tx))
		}
		receipt, err := bind.WaitMined(ctx, ec, tx)
		if !r.check("WaitMined", err) {
			return
		}
		r.that("the receipt", receipt.Status == 1 && receipt.GasUsed == 21000 && receipt.Type == tx.Type(), receipt)
		found, isPending, err := ec.TransactionByHash(ctx, tx.Hash())
		r.check("TransactionByHash", err)
		r.that("what was sent", !isPending && found != nil && found.Hash() == tx.Hash(), found)
		sender := get(r, "TransactionSender", func() (common.Address, error) {
			return ec.TransactionSender(ctx, tx, receipt.BlockHash, receipt.TransactionIndex)
		})
		r.that("who sent it", sender == who, sender)
		there := get(r, "TransactionInBlock", func() (*types.Transaction, error) {
			return ec.TransactionInBlock(ctx, receipt.BlockHash, receipt.TransactionIndex)
		})
		r.that("it is in its block", there != nil && there.Hash() == tx.Hash(), there)
	}
	// What waits: of a later nonce, so it stays where it is.
	later, err := types.SignNewTx(secret, signer, &types.LegacyTx{Nonce: nonce + 50, GasPrice: price, Gas: 21000, To: &to, Value: big.NewInt(1)})
	r.check("sign", err)
	err = ec.SendTransaction(ctx, later)
	r.that("a later nonce", err == nil || strings.Contains(err.Error(), "already known"), err)
	found, isPending, err := ec.TransactionByHash(ctx, later.Hash())
	r.check("TransactionByHash of what waits", err)
	r.that("it waits", isPending && found != nil && found.Hash() == later.Hash(), found)
	var pool map[string]map[string]map[string]*types.Transaction
	r.check("txpool_content", r.raw.CallContext(ctx, &pool, "txpool_content"))
	r.that("the pool", len(pool["queued"]) > 0, pool)
	var of map[string]map[string]*types.Transaction
	r.check("txpool_contentFrom", r.raw.CallContext(ctx, &of, "txpool_contentFrom", who))
	r.that("of the sender", len(of["queued"]) > 0, of)
	used, err := types.SignNewTx(secret, signer, &types.LegacyTx{Nonce: 0, GasPrice: price, Gas: 21000, To: &to, Value: big.NewInt(3)})
	r.check("sign", err)
	r.refused("a used nonce", ec.SendTransaction(ctx, used), "nonce too low")
}

// calls uses the generated bindings: views, reverts, writes and their events.
func (r *Run) calls(key string) {
	ec, ctx := r.ec, r.ctx
	secret, _ := crypto.HexToECDSA(strings.TrimPrefix(key, "0x"))
	who := crypto.PubkeyToAddress(secret.PublicKey)
	registry, err := contracts.NewRegistry(r.Contracts["registry"], ec)
	r.check("NewRegistry", err)
	tasks, err := contracts.NewTasks(r.Contracts["tasks"], ec)
	r.check("NewTasks", err)
	billing, err := contracts.NewBilling(r.Contracts["billing"], ec)
	r.check("NewBilling", err)
	staking, err := contracts.NewStaking(r.Contracts["staking"], ec)
	r.check("NewStaking", err)
	newest := r.named("latest")
	for _, options := range []*bind.CallOpts{
		nil, {Context: ctx}, {Context: ctx, Pending: true}, {Context: ctx, BlockNumber: newest.Number.ToInt()}, {Context: ctx, BlockHash: newest.Hash},
	} {
		least := get(r, "minimumStake", func() (*big.Int, error) { return staking.MinimumStake(options) })
		r.that("a least stake", least != nil && least.Sign() > 0, least)
	}
	for _, machine := range r.Machines {
		is := get(r, "isRegistered", func() (bool, error) { return registry.IsRegistered(nil, machine) })
		node, err := registry.NodeOf(nil, machine)
		r.check("nodeOf", err)
		r.that("a machine", is && node.Slots > 0, is, node)
	}
	if r.Task != (common.Hash{}) {
		task, err := tasks.TaskOf(nil, r.Task)
		r.check("taskOf", err)
		r.that("a task", task.Windows > 0, task)
		escrow, err := billing.EscrowOf(nil, r.Task)
		r.check("escrowOf", err)
		r.that("its escrow", escrow.Deposited != nil && escrow.Deposited.Sign() > 0, escrow)
	}
	_, err = tasks.TaskOf(nil, common.Hash{1})
	r.refused("taskOf an unknown task", err, "execution reverted: task_unknown")
	var withData rpc.DataError
	r.that("a revert has data", errors.As(err, &withData) && withData.ErrorData() != nil, err)

	// What a view says is also what an estimate of it says.
	parsed, err := contracts.TasksMetaData.GetAbi()
	r.check("GetAbi", err)
	unknown, err := parsed.Pack("taskOf", common.Hash{1})
	r.check("Pack", err)
	at := r.Contracts["tasks"]
	_, err = ec.EstimateGas(ctx, ethereum.CallMsg{From: who, To: &at, Data: unknown})
	r.refused("EstimateGas of a view that reverts", err, "execution reverted: task_unknown")
	least, err := contracts.StakingMetaData.GetAbi()
	r.check("GetAbi", err)
	data, err := least.Pack("minimumStake")
	r.check("Pack", err)
	at = r.Contracts["staking"]
	asked := ethereum.CallMsg{From: who, To: &at, Data: data}
	for what, call := range map[string]func() (uint64, error){
		"EstimateGas":            func() (uint64, error) { return ec.EstimateGas(ctx, asked) },
		"EstimateGasAtBlock":     func() (uint64, error) { return ec.EstimateGasAtBlock(ctx, asked, newest.Number.ToInt()) },
		"EstimateGasAtBlockHash": func() (uint64, error) { return ec.EstimateGasAtBlockHash(ctx, asked, newest.Hash) },
	} {
		gas := get(r, what+" of a view", call)
		r.that("gas", gas >= 21000, gas)
	}
	for what, call := range map[string]func() ([]byte, error){
		"CallContract":        func() ([]byte, error) { return ec.CallContract(ctx, asked, nil) },
		"CallContractAtHash":  func() ([]byte, error) { return ec.CallContractAtHash(ctx, asked, newest.Hash) },
		"PendingCallContract": func() ([]byte, error) { return ec.PendingCallContract(ctx, asked) },
		"gethclient.CallContract": func() ([]byte, error) {
			return gethclient.New(r.raw).CallContract(ctx, asked, nil, nil)
		},
	} {
		said := get(r, what, call)
		r.that(what, len(said) == 32, said)
	}

	// A write and its event.
	options, err := bind.NewKeyedTransactorWithChainID(secret, big.NewInt(r.ChainID))
	r.check("NewKeyedTransactor", err)
	options.Context, options.Value = ctx, big.NewInt(1_000_000)
	funded := make(chan *contracts.RegistryCarriageFunded, 16)
	if strings.HasPrefix(r.name, "ws") {
		watching, err := registry.WatchCarriageFunded(nil, funded, nil)
		if r.check("WatchCarriageFunded", err) {
			defer watching.Unsubscribe()
		}
	}
	tx, err := registry.FundCarriage(options)
	if !r.check("fundCarriage", err) {
		return
	}
	receipt, err := bind.WaitMined(ctx, ec, tx)
	if !r.check("WaitMined", err) {
		return
	}
	r.that("fundCarriage succeeded", receipt.Status == 1 && len(receipt.Logs) > 0, receipt)
	for _, log := range receipt.Logs {
		event, err := registry.ParseCarriageFunded(*log)
		r.check("ParseCarriageFunded", err)
		r.that("the event", event != nil && event.Amount.Int64() == 1_000_000, event)
		r.that("a log's time", log.BlockTimestamp > 0, log)
	}
	height := receipt.BlockNumber.Uint64()
	events, err := registry.FilterCarriageFunded(&bind.FilterOpts{Start: height, End: &height}, nil)
	if r.check("FilterCarriageFunded", err) {
		r.that("the event by filter", events.Next(), events.Error())
		r.check("Close", events.Close())
	}
	if strings.HasPrefix(r.name, "ws") {
		select {
		case event := <-funded:
			r.that("the event by subscription", event.Raw.TxHash == tx.Hash(), event)
		case <-time.After(patience):
			r.check("the event by subscription", errors.New("not told"))
		}
	}
	options.Value = nil
	tx, err = registry.WithdrawCarriage(options, big.NewInt(1))
	if r.check("withdrawCarriage", err) {
		receipt, err = bind.WaitMined(ctx, ec, tx)
		r.check("WaitMined", err)
		r.that("withdrawCarriage succeeded", receipt != nil && receipt.Status == 1, receipt)
	}
	options.Value = big.NewInt(1)
	_, err = registry.WithdrawCarriage(options, big.NewInt(1))
	r.that("value for what takes none", err != nil && strings.Contains(err.Error(), "takes no value"), err)
	_, err = staking.Stake(options, common.Hash{}, []byte{1}, common.Hash{}, []byte{2})
	r.that("a stake without keys", err != nil && strings.Contains(err.Error(), "execution reverted"), err)
}

func (r *Run) logs() {
	ec, ctx := r.ec, r.ctx
	registry := r.Contracts["registry"]
	all := get(r, "FilterLogs", func() ([]types.Log, error) {
		return ec.FilterLogs(ctx, ethereum.FilterQuery{Addresses: []common.Address{registry}})
	})
	newest := get(r, "BlockNumber", func() (uint64, error) { return ec.BlockNumber(ctx) })
	first := uint64(1)
	if newest > 9_999 {
		first = newest - 9_999
	}
	all = get(r, "FilterLogs of a range", func() ([]types.Log, error) {
		return ec.FilterLogs(ctx, ethereum.FilterQuery{FromBlock: new(big.Int).SetUint64(first), ToBlock: new(big.Int).SetUint64(newest)})
	})
	if !r.that("there are logs", len(all) > 0, all) {
		return
	}
	one := all[len(all)-1]
	of := get(r, "FilterLogs of a block", func() ([]types.Log, error) {
		return ec.FilterLogs(ctx, ethereum.FilterQuery{BlockHash: &one.BlockHash})
	})
	r.that("among those of its block", len(of) > 0 && of[len(of)-1].Index >= one.Index, of)
	by := get(r, "FilterLogs of topics", func() ([]types.Log, error) {
		return ec.FilterLogs(ctx, ethereum.FilterQuery{
			FromBlock: new(big.Int).SetUint64(first), Addresses: []common.Address{one.Address, registry},
			Topics: [][]common.Hash{{one.Topics[0], {1}}, nil},
		})
	})
	r.that("of topics", len(by) > 0, by)
	_, err := ec.FilterLogs(ctx, ethereum.FilterQuery{FromBlock: big.NewInt(5), ToBlock: big.NewInt(3)})
	r.refused("a range that is reversed", err, "invalid block range")
}

func (r *Run) batches() {
	ctx := r.ctx
	ask := func(count int) ([]rpc.BatchElem, error) {
		batch := make([]rpc.BatchElem, count)
		for i := range batch {
			batch[i] = rpc.BatchElem{Method: "eth_getBlockByNumber", Args: []any{hexutil.EncodeUint64(uint64(i % 3)), false}, Result: new(named)}
		}
		limited, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		return batch, r.raw.BatchCallContext(limited, batch)
	}
	batch, err := ask(100)
	r.check("a batch", err)
	for _, one := range batch {
		r.check("of a batch", one.Error)
	}
	batch, err = ask(1_001) // more than any batch may have
	r.check("a batch that is refused as a whole", err)
	r.refused("its first call", batch[0].Error, "batch over 1000")
	r.that("the others", errors.Is(batch[1].Error, rpc.ErrMissingBatchResponse), batch[1].Error)
	limited, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err = r.raw.CallContext(limited, nil, "eth_getBlockByNumber", "latest", strings.Split(strings.Repeat("x ", 70_000), " "))
	r.refused("a call of too many values", err, "more than")
}

// absent names what the chain has not; it is refused by a message of the node.
func (r *Run) absent(who common.Address) {
	geth, ec, ctx := gethclient.New(r.raw), r.ec, r.ctx
	_, err := geth.GetProof(ctx, who, nil, nil)
	r.refused("GetProof", err, "does not exist")
	_, _, _, err = geth.CreateAccessList(ctx, ethereum.CallMsg{From: who, To: &who})
	r.refused("CreateAccessList", err, "does not exist")
	_, err = ec.SimulateV1(ctx, ethclient.SimulateOptions{}, nil)
	r.refused("SimulateV1", err, "does not exist")
	_, err = ec.BlobBaseFee(ctx)
	r.refused("BlobBaseFee", err, "does not exist")
	_, err = geth.TraceTransaction(ctx, common.Hash{1}, nil)
	r.refused("TraceTransaction", err, "does not exist")
}

func (r *Run) news() {
	ec, ctx, geth := r.ec, r.ctx, gethclient.New(r.raw)
	heads, pending := make(chan *types.Header, 64), make(chan common.Hash, 1024)
	following, err := ec.SubscribeNewHead(ctx, heads)
	if !r.check("SubscribeNewHead", err) {
		return
	}
	defer following.Unsubscribe()
	arrivals, err := geth.SubscribePendingTransactions(ctx, pending)
	if r.check("SubscribePendingTransactions", err) {
		defer arrivals.Unsubscribe()
	}
	var before *types.Header
	for range 5 {
		select {
		case head := <-heads:
			r.that("each head", before == nil || head.Number.Uint64() == before.Number.Uint64()+1, before, head)
			before = head
		case err := <-following.Err():
			r.check("heads", err)
			return
		case <-time.After(patience):
			r.check("heads", errors.New("none came"))
			return
		}
	}
	whole := make(chan *types.Transaction)
	_, err = geth.SubscribeFullPendingTransactions(ctx, whole)
	r.refused("SubscribeFullPendingTransactions", err, "whole transactions")
	_, err = ec.SubscribeTransactionReceipts(ctx, nil, make(chan []*types.Receipt))
	r.refused("SubscribeTransactionReceipts", err, "")
}

// walk reads every block from the genesis on in all ways in which a typed client reads them.
func (r *Run) walk() {
	ec, ctx := r.ec, r.ctx
	undecodable := func(what string, height uint64, err error) {
		r.Undecodable++
		r.check(fmt.Sprintf("%s of block %d", what, height), err)
	}
	registry, _ := contracts.RegistryMetaData.GetAbi()
	tasks, _ := contracts.TasksMetaData.GetAbi()
	parent := common.Hash{}
	for height := uint64(0); height < r.Setting.Blocks; height++ {
		number := new(big.Int).SetUint64(height)
		for {
			newest, err := ec.BlockNumber(ctx)
			if !r.check("BlockNumber", err) {
				return
			}
			if newest >= height {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		r.Report.Blocks++
		name := r.named(hexutil.EncodeUint64(height))
		r.that("the parent's hash", name.ParentHash == parent, height)
		parent = name.Hash
		if _, err := ec.HeaderByNumber(ctx, number); err != nil {
			undecodable("header", height, err)
		}
		block, err := ec.BlockByNumber(ctx, number)
		if err != nil {
			undecodable("block", height, err)
			continue
		}
		receipts, err := ec.BlockReceipts(ctx, rpc.BlockNumberOrHashWithNumber(rpc.BlockNumber(height)))
		if err != nil {
			undecodable("receipts", height, err)
			continue
		}
		r.that("a receipt for each", len(receipts) == len(block.Transactions()), height)
		bloom := types.Bloom{}
		for index, receipt := range receipts {
			r.Transactions++
			for at := range bloom {
				bloom[at] |= receipt.Bloom[at]
			}
			r.that("the bloom of a receipt", types.CreateBloom(receipt) == receipt.Bloom, height)
			r.that("where it is", receipt.BlockHash == name.Hash && int(receipt.TransactionIndex) == index, receipt)
			tx := block.Transactions()[index]
			r.that("one type", tx.Type() == receipt.Type, height)
			sender, err := ec.TransactionSender(ctx, tx, name.Hash, uint(index))
			if err != nil {
				undecodable("sender", height, err)
			}
			r.that("a sender", sender != common.Address{}, height)
			found, isPending, err := ec.TransactionByHash(ctx, receipt.TxHash)
			if err != nil {
				undecodable("transaction", height, err)
				continue
			}
			r.that("the same by its hash", !isPending && found.Hash() == tx.Hash(), height)
			if again, err := ec.TransactionReceipt(ctx, receipt.TxHash); err != nil {
				undecodable("receipt", height, err)
			} else {
				r.that("the same receipt", again.TxHash == receipt.TxHash && len(again.Logs) == len(receipt.Logs), height)
			}
			if _, sign, _ := tx.RawSignatureValues(); sign.Sign() != 0 {
				continue
			}
			r.Native++
			switch data := tx.Data(); *tx.To() {
			case r.Contracts["registry"]:
				_, err = registry.MethodById(data)
			case r.Contracts["tasks"]:
				_, err = tasks.MethodById(data)
			}
			if err != nil {
				undecodable("call", height, err)
			}
		}
		logs, err := ec.FilterLogs(ctx, ethereum.FilterQuery{BlockHash: &name.Hash})
		if height > 0 {
			if err != nil {
				undecodable("logs", height, err)
			}
			r.Logs += len(logs)
			for _, one := range logs {
				r.that("the block's bloom has each log", types.BloomLookup(block.Bloom(), one.Address), height)
			}
		}
	}
}


func main() {
	var setting Setting
	if err := json.NewDecoder(os.Stdin).Decode(&setting); err != nil {
		log.Fatal(err)
	}
	report := &Report{Failures: []string{}}
	secret, err := crypto.HexToECDSA(strings.TrimPrefix(setting.Key, "0x"))
	if err != nil {
		log.Fatal(err)
	}
	who := crypto.PubkeyToAddress(secret.PublicKey)
	for _, url := range []string{setting.HTTP, setting.WS} {
		ctx := context.Background()
		raw, err := rpc.DialContext(ctx, url)
		if err != nil {
			log.Fatal(err)
		}
		r := &Run{setting, report, strings.Split(url, ":")[0], raw, ethclient.NewClient(raw), ctx}
		steps := []func(){
			r.identity, r.blocks, func() { r.accounts(who) }, r.fees, func() { r.sends(setting.Key, "0x00000000000000000000000000000000000face0") },
			func() { r.calls(setting.Key) }, r.logs, r.batches, func() { r.absent(who) },
		}
		if r.name == "ws" {
			steps = append(steps, r.news)
		} else {
			steps = append(steps, r.walk)
		}
		for _, step := range steps {
			step()
		}
		raw.Close()
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		log.Fatal(err)
	}
}
