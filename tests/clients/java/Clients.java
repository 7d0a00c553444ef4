import dekube.contracts.Billing;
import dekube.contracts.Registry;
import dekube.contracts.Staking;
import dekube.contracts.Tasks;
import java.io.PrintStream;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.web3j.crypto.Credentials;
import org.web3j.protocol.Web3j;
import org.web3j.protocol.core.DefaultBlockParameter;
import org.web3j.protocol.core.DefaultBlockParameterName;
import org.web3j.protocol.core.Request;
import org.web3j.protocol.core.Response;
import org.web3j.protocol.core.methods.request.EthFilter;
import org.web3j.protocol.core.methods.request.Transaction;
import org.web3j.protocol.core.methods.response.EthBlock;
import org.web3j.protocol.core.methods.response.EthLog;
import org.web3j.protocol.core.methods.response.TransactionReceipt;
import org.web3j.protocol.http.HttpService;
import org.web3j.tx.RawTransactionManager;
import org.web3j.tx.Transfer;
import org.web3j.tx.gas.StaticGasProvider;
import org.web3j.utils.Convert;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.ObjectMapper;

/** Takes web3j and wrappers of its generator, unchanged, through what they offer. */
public final class Clients {
    /** What was tried, and what of it failed. */
    static final class Report {
        int checks;
        List<String> failures = new ArrayList<>();
        long blocks;
        int transactions;
        int ofNodes;
        int logs;
        int undecodable;
    }

    /** A part of what is tried: what fails in it without being counted ends it. */
    private interface Step {
        void run() throws Exception;
    }

    private final Report report = new Report();
    private final JsonNode setting;
    private final Web3j web3;
    private final Credentials who;

    private Clients(JsonNode setting) {
        this.setting = setting;
        this.web3 = Web3j.build(new HttpService(setting.get("http").asString()));
        this.who = Credentials.create(setting.get("key").asString());
    }

    private <T> T get(String what, Callable<T> call) {
        report.checks++;
        try {
            return call.call();
        } catch (Exception | Error error) {
            report.failures.add(what + ": " + error);
            return null;
        }
    }

    private <T extends Response<?>> T ask(String what, Request<?, T> request) {
        T said = get(what, request::send);
        if (said != null && said.hasError()) {
            report.failures.add(what + ": " + said.getError().getMessage());
            return null;
        }
        return said;
    }

    private void that(String what, boolean isSo, Object seen) {
        report.checks++;
        if (!isSo) {
            report.failures.add(what + ": not so: " + seen);
        }
    }

    private void refused(String what, Callable<?> call, String words) {
        report.checks++;
        try {
            report.failures.add(what + ": not refused: " + call.call());
        } catch (Exception error) {
            if (!String.valueOf(error.getMessage()).contains(words)) {
                report.failures.add(what + ": " + error);
            }
        }
    }

    private <T> T decoded(String what, long height, Callable<T> call) {
        T found = get(what + " of block " + height, call);
        if (found == null) {
            report.undecodable++;
        }
        return found;
    }

    private String contract(String name) {
        return setting.get("contracts").get(name).asString();
    }

    private void reads() throws Exception {
        String me = who.getAddress();
        String staking = contract("staking");
        that("the chain", ask("eth_chainId", web3.ethChainId()).getChainId().longValue() == setting.get("chain_id").asLong(), "");
        ask("net_version", web3.netVersion());
        ask("net_listening", web3.netListening());
        that("peers", ask("net_peerCount", web3.netPeerCount()).getQuantity().signum() > 0, "");
        ask("web3_clientVersion", web3.web3ClientVersion());
        ask("web3_sha3", web3.web3Sha3("0x00"));
        ask("eth_syncing", web3.ethSyncing());
        ask("eth_accounts", web3.ethAccounts());
        that("a price", ask("eth_gasPrice", web3.ethGasPrice()).getGasPrice().signum() > 0, "");
        ask("eth_maxPriorityFeePerGas", web3.ethMaxPriorityFeePerGas()).getMaxPriorityFeePerGas();
        for (int count : new int[] {0, 1, 5}) {
            for (List<Double> percentiles : List.of(List.<Double>of(), List.of(10.0, 50.0))) {
                ask("eth_feeHistory", web3.ethFeeHistory(count, DefaultBlockParameterName.LATEST, percentiles)).getFeeHistory();
            }
        }
        for (DefaultBlockParameterName tag : List.of(DefaultBlockParameterName.LATEST, DefaultBlockParameterName.PENDING,
            DefaultBlockParameterName.SAFE, DefaultBlockParameterName.FINALIZED, DefaultBlockParameterName.EARLIEST)) {
            for (boolean whole : new boolean[] {false, true}) {
                EthBlock said = ask("eth_getBlockByNumber " + tag, web3.ethGetBlockByNumber(tag, whole));
                that("a block", said.getBlock() != null && said.getBlock().getNumber() != null, tag);
            }
            ask("eth_getBlockReceipts", web3.ethGetBlockReceipts(tag));
            ask("eth_getBlockTransactionCountByNumber", web3.ethGetBlockTransactionCountByNumber(tag)).getTransactionCount();
        }
        EthBlock.Block newest = ask("eth_getBlockByNumber", web3.ethGetBlockByNumber(DefaultBlockParameterName.LATEST, false)).getBlock();
        DefaultBlockParameter at = DefaultBlockParameter.valueOf(newest.getNumber());
        that("the same", ask("eth_getBlockByHash", web3.ethGetBlockByHash(newest.getHash(), true)).getBlock().getNumber().equals(newest.getNumber()), "");
        ask("eth_getBlockTransactionCountByHash", web3.ethGetBlockTransactionCountByHash(newest.getHash())).getTransactionCount();
        ask("eth_getUncleCountByBlockHash", web3.ethGetUncleCountByBlockHash(newest.getHash())).getUncleCount();
        ask("eth_getUncleCountByBlockNumber", web3.ethGetUncleCountByBlockNumber(at)).getUncleCount();
        that("coins", ask("eth_getBalance", web3.ethGetBalance(me, at)).getBalance().signum() > 0, me);
        ask("eth_getTransactionCount", web3.ethGetTransactionCount(me, DefaultBlockParameterName.PENDING)).getTransactionCount();
        that("code", ask("eth_getCode", web3.ethGetCode(staking, at)).getCode().length() > 2, staking);
        ask("eth_getStorageAt", web3.ethGetStorageAt(staking, BigInteger.ZERO, at));
        that("no transaction", ask("unknown", web3.ethGetTransactionByHash("0x" + "01".repeat(32))).getTransaction().isEmpty(), "");
        that("no receipt", ask("unknown", web3.ethGetTransactionReceipt("0x" + "01".repeat(32))).getTransactionReceipt().isEmpty(), "");
        ask("txpool_status", web3.txPoolStatus());
        BigInteger blocks = ask("eth_newBlockFilter", web3.ethNewBlockFilter()).getFilterId();
        BigInteger pool = ask("eth_newPendingTransactionFilter", web3.ethNewPendingTransactionFilter()).getFilterId();
        BigInteger logs = ask("eth_newFilter", web3.ethNewFilter(new EthFilter(at, DefaultBlockParameterName.LATEST, contract("registry")))).getFilterId();
        for (BigInteger filter : List.of(blocks, pool, logs)) {
            ask("eth_getFilterChanges", web3.ethGetFilterChanges(filter)).getLogs();
            that("uninstalled", ask("eth_uninstallFilter", web3.ethUninstallFilter(filter)).isUninstalled(), filter);
        }
        refused("eth_getProof", () -> told(web3.ethGetProof(me, List.of(), "latest").send()), "does not exist");
    }

    private static Object told(Response<?> said) {
        if (said.hasError()) {
            throw new IllegalStateException(said.getError().getMessage());
        }
        return said.getResult();
    }

    private void calls() throws Exception {
        StaticGasProvider gas = new StaticGasProvider(web3.ethGasPrice().send().getGasPrice(), BigInteger.valueOf(300_000));
        RawTransactionManager sender = new RawTransactionManager(web3, who, setting.get("chain_id").asLong(), 120, 500);
        Registry registry = Registry.load(contract("registry"), web3, sender, gas);
        Tasks tasks = Tasks.load(contract("tasks"), web3, sender, gas);
        Billing billing = Billing.load(contract("billing"), web3, sender, gas);
        Staking staking = Staking.load(contract("staking"), web3, sender, gas);
        that("a least stake", get("minimumStake", staking.minimumStake()::send).signum() > 0, "");
        for (JsonNode machine : setting.get("machines")) {
            that("a machine", get("isRegistered", registry.isRegistered(machine.asString())::send), machine);
            get("nodeOf", registry.nodeOf(machine.asString())::send);
        }
        byte[] task = org.web3j.utils.Numeric.hexStringToByteArray(setting.get("task").asString());
        if (new BigInteger(1, task).signum() != 0) {
            var found = get("taskOf", tasks.taskOf(task)::send);
            that("a task", found != null && found.component6().signum() > 0, found);
            get("escrowOf", billing.escrowOf(task)::send);
        }
        refused("an unknown task", tasks.taskOf(new byte[32])::send, "task_unknown");
        Transaction asked = Transaction.createEthCallTransaction(who.getAddress(), contract("tasks"), tasks.taskOf(new byte[32]).encodeFunctionCall());
        refused("its gas", () -> told(web3.ethEstimateGas(asked).send()), "execution reverted: task_unknown");
        Transaction least = Transaction.createEthCallTransaction(who.getAddress(), contract("staking"), staking.minimumStake().encodeFunctionCall());
        that("gas of a view", ask("eth_estimateGas", web3.ethEstimateGas(least)).getAmountUsed().longValue() >= 21_000, "");
        TransactionReceipt receipt = get("fundCarriage", registry.fundCarriage(BigInteger.valueOf(1_000_000))::send);
        if (receipt != null) {
            that("fundCarriage succeeded", receipt.isStatusOK(), receipt);
            that("its event", Registry.getCarriageFundedEvents(receipt).size() == 1, receipt);
        }
        receipt = get("withdrawCarriage", registry.withdrawCarriage(BigInteger.ONE)::send);
        that("withdrawCarriage succeeded", receipt != null && receipt.isStatusOK(), receipt);
        receipt = get("a transfer", Transfer.sendFundsEIP1559(web3, who, "0x" + "fa".repeat(20), java.math.BigDecimal.ONE,
            Convert.Unit.WEI, BigInteger.valueOf(21_000), BigInteger.ZERO, web3.ethGasPrice().send().getGasPrice())::send);
        that("it succeeded", receipt != null && receipt.isStatusOK(), receipt);
    }

    private void walk() throws Exception {
        String parent = "0x" + "00".repeat(32);
        for (long height = 0; height < setting.get("blocks").asLong(); height++) {
            while (web3.ethBlockNumber().send().getBlockNumber().longValue() < height) {
                Thread.sleep(100);
            }
            report.blocks++;
            long at = height;
            DefaultBlockParameter number = DefaultBlockParameter.valueOf(BigInteger.valueOf(height));
            EthBlock.Block block = decoded("block", height, () -> (EthBlock.Block) told(web3.ethGetBlockByNumber(number, true).send()));
            if (block == null) {
                continue;
            }
            that("the parent's hash", block.getParentHash().equals(parent), height);
            parent = block.getHash();
            decoded("numbers", height, () -> List.of(block.getNumber(), block.getTimestamp(), block.getGasLimit(),
                block.getGasUsed(), block.getBaseFeePerGas(), block.getSize(), block.getDifficulty(), block.getNonce()));
            List<TransactionReceipt> receipts = decoded("receipts", height, () -> web3.ethGetBlockReceipts(number).send().getBlockReceipts().orElseThrow());
            that("a receipt for each", receipts != null && receipts.size() == block.getTransactions().size(), height);
            for (EthBlock.TransactionResult<?> result : block.getTransactions()) {
                report.transactions++;
                EthBlock.TransactionObject shown = (EthBlock.TransactionObject) result.get();
                decoded("transaction", height, () -> List.of(shown.getNonce(), shown.getValue(), shown.getGas(), shown.getGasPrice(),
                    shown.getBlockNumber(), shown.getTransactionIndex(), shown.getV(), shown.getTo(), shown.getFrom(), shown.getInput()));
                var again = decoded("transaction by hash", height, () -> web3.ethGetTransactionByHash(shown.getHash()).send().getTransaction().orElseThrow());
                that("the same by its hash", again != null && again.getInput().equals(shown.getInput()), height);
                decoded("receipt", height, () -> {
                    TransactionReceipt one = web3.ethGetTransactionReceipt(shown.getHash()).send().getTransactionReceipt().orElseThrow();
                    return List.of(one.getGasUsed(), one.getCumulativeGasUsed(), one.getBlockNumber(), one.getLogs(), one.isStatusOK());
                });
                if ("0x0".equals(shown.getR())) {
                    report.ofNodes++;
                }
            }
            if (height > 0) {
                var logs = decoded("logs", height, () -> web3.ethGetLogs(new EthFilter(block.getHash())).send().getLogs());
                report.logs += logs == null ? 0 : logs.size();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        ObjectMapper mapper = new ObjectMapper();
        Clients it = new Clients(mapper.readTree(System.in));
        for (Step step : List.<Step>of(it::reads, it::calls, it::walk)) {
            it.get("the step", () -> {
                step.run();
                return true;
            });
        }
        it.web3.shutdown();
        Map<String, Object> said = new HashMap<>();
        said.put("checks", it.report.checks);
        said.put("failures", it.report.failures);
        said.put("blocks", it.report.blocks);
        said.put("transactions", it.report.transactions);
        said.put("native", it.report.ofNodes);
        said.put("logs", it.report.logs);
        said.put("undecodable", it.report.undecodable);
        out.println(mapper.writeValueAsString(said));
        System.exit(0);
    }
}
