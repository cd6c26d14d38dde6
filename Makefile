# Every target runs in .venv, which `setup` makes. Variables: CONFIG, RUN, ARGS (more flags for fit or pytest).
SHELL := /bin/bash
BIN := .venv/bin
CONFIG ?= configs/digits-cpu.yaml
RUN ?= runs/digits-cpu
MODEL := models/SmolLM2-135M-Instruct
ARGS ?=
# Compiled once, torch, Lightning and Megatron import ten seconds faster in each of the processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup setup-sglang fit test test-all tests test-numeric check format ui smollm2 lock

setup:
	@scripts/setup.sh

setup-sglang:
	@scripts/setup.sh sglang

fit: setup
	$(BIN)/relax-lightning fit --config $(CONFIG) $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright

test: setup-sglang
	@$(MAKE) --no-print-directory --jobs 2 check tests

# With the long tail, and what rounding decides as on other CPUs.
test-all: setup-sglang
	@$(MAKE) --no-print-directory --jobs 2 check tests MARKS=
	@$(MAKE) --no-print-directory test-numeric

# Two workers of one thread each: the tests start their own processes, and idle threads spin on a small machine.
MARKS := -m "not slow"
tests: $(MODEL)/config.json
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(MARKS) -n 2 --dist loadfile --no-loadscope-reorder --durations=15 $(ARGS)

# What rounding decides, as on two other kinds of CPU: torch without vectors, and AVX2 with two threads.
NUMERIC := tests/algorithms tests/megatron/models/test_fused_layer.py tests/megatron/test_host_optimizer.py \
	tests/megatron/test_hugging_face.py tests/megatron/test_role.py tests/rollout/test_engine_contract.py \
	tests/rollout/test_sampling.py tests/rollout/test_turns.py tests/training/test_critic_warmup.py \
	tests/training/test_offload_in_training.py tests/training/test_options.py tests/training/test_reference.py \
	tests/training/test_resume.py tests/training/test_shaping.py
numeric-default: CPU := ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1
numeric-avx2: CPU := ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 OMP_NUM_THREADS=2
numeric-%: $(MODEL)/config.json
	$(CPU) $(BIN)/python -m pytest -k 'not sglang' $(NUMERIC) $(ARGS)

test-numeric: $(MODEL)/config.json
	@$(MAKE) --no-print-directory --jobs 2 numeric-default numeric-avx2

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

ui: export RUN := $(RUN)
ui: setup
	@$(BIN)/python -c 'from importlib.metadata import version; version("mlflow")' 2>/dev/null || $(BIN)/uv pip install --quiet --python $(BIN)/python \
		--editable '.[ui]' --constraint requirements.lock
	$(BIN)/mlflow ui --workers 1 --backend-store-uri "$$($(BIN)/python -c \
		'import os; from relax_lightning.config.loader import mlflow_uri; print(mlflow_uri(os.environ["RUN"]))')"

$(MODEL)/config.json: | setup
	$(BIN)/python scripts/get_smollm2.py --output $(MODEL)

smollm2: setup $(MODEL)/config.json
	$(BIN)/relax-lightning fit --config configs/smollm2-chain-sum.yaml $(ARGS)

# Writes the locks anew: what the base and `dev` need, and what `sglang` adds, in versions that all extras can live with.
COMPILE = $(BIN)/uv pip compile pyproject.toml --python-version 3.12 --quiet --no-annotate --no-header
lock: setup
	@$(COMPILE) --upgrade --all-extras --output-file .venv/all-extras.txt
	@echo "# Made by 'make lock': the base and the extra dev, for Python 3.12; see there." >.venv/requirements.lock
	@$(COMPILE) --extra dev --constraint .venv/all-extras.txt >>.venv/requirements.lock
	@echo "# Made by 'make lock': what the extra sglang adds to requirements.lock; see there." >requirements-sglang.lock
	@comm -13 <(grep '==' .venv/requirements.lock | sort) <($(COMPILE) --extra dev --extra sglang \
		--constraint .venv/all-extras.txt | sort) >>requirements-sglang.lock
	@mv .venv/requirements.lock requirements.lock
