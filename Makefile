# Each target sets up what it needs into .venv, from python3 (3.11 or newer) and its pip alone.
# Another interpreter: make PYTHON=python3.12 test.   More arguments: make test ARGS="-k loans".

PYTHON ?= python3
ARGS ?=
# Most of what tests do is wait: with four workers, two cores idled a quarter of the time.
# Workers take whole files; a selection needs none.
WORKERS ?= $(if $(ARGS),0,5)
MINUTES ?= 30
SEED ?= 1
SEEDS ?= 100
JOBS ?= 2

UV := .uv/bin/uv
BIN := .venv/bin
READY := .venv/.ready

export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv
unexport VIRTUAL_ENV
# What Python compiles is kept: without that, each process of each test compiles all again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test quick check check-lint check-format check-types check-imports \
	client console docs bench chaos chaos-real soak simulate-faults format lock clean

help: ## Show this list
	@echo "Tidegate: an event-driven GPU scheduler"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-17s %s\n", $$1, $$2}'
	@echo
	@echo '  Pass arguments on with ARGS, as in: make test ARGS="-k loans"'

demo: $(READY) ## Watch a simulated day: scheduler, agents and tenants on this machine, no broker
	@$(BIN)/tidegate demo $(ARGS)

test: $(READY) ## Run the tests, fast layers first
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

quick: $(READY) ## Run the tests that start no process and take no long time
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile --hypothesis-profile=quick \
		-m 'not slow and not process and not broker' tests/unit tests/property tests/model $(ARGS)

check: check-lint check-format check-types check-imports ## Lint, format, types and import rules (-k: do not stop at the first)

check-lint: $(READY)
	@echo "== ruff check"
	@$(BIN)/ruff check

check-format: $(READY)
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check

check-types: $(READY)
	@echo "== mypy"
	@$(BIN)/mypy

check-imports: $(READY)
	@echo "== lint-imports"
	@$(BIN)/lint-imports --no-logo

# All of it each time (-E -a): a page that is not read again complains of nothing.
docs: $(READY) ## Build the documentation's site into build/docs; a link that leads nowhere fails it
	@$(BIN)/python -m sphinx -q -E -a -W --keep-going docs build/docs $(ARGS)
	@echo "Open build/docs/index.html"

bench: $(READY) ## Run the benchmarks
	@$(BIN)/python -m benchmarks $(ARGS)

demo-real: $(READY) ## Real workers moved by a real tide, on real brokers (JOB=torch JSON=out.json TRACE=requests.csv)
	@compose/brokers up > /dev/null
	@eval "$$(compose/brokers env)" && $(BIN)/python examples/demo_real.py \
		$(if $(JSON),--json "$(JSON)") $(if $(JOB),--job "$(JOB)") $(if $(TRACE),--trace "$(TRACE)") $(ARGS)

chaos: $(READY) ## Break real brokers and services at random (MINUTES=30 SEED=1 JSON=out.json)
	@$(BIN)/python -m tests.chaos.matrix --minutes $(MINUTES) --seed $(SEED) $(if $(JSON),--json "$(JSON)") $(ARGS)

chaos-real: $(READY) ## Kill agents and workers in the middle of real training (MINUTES=30 SEED=1 JSON=out.json)
	@$(BIN)/python -m tests.chaos.real_work --minutes $(MINUTES) --seed $(SEED) $(if $(JSON),--json "$(JSON)") $(ARGS)

simulate-faults: $(READY) ## Storms of faults over the whole system in virtual time (SEEDS=1000 SEED=1 JOBS=2 JSON=out.json VERBOSE=1)
	@$(BIN)/python -m tests.whole --seeds $(SEEDS) --seed $(SEED) --jobs $(JOBS) $(if $(VERBOSE),--verbose) $(if $(JSON),--json "$(JSON)") $(ARGS)

soak: $(READY) ## Run a fleet on real brokers for long (MINUTES=30 JSON=out.json)
	@$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES) $(if $(JSON),--json "$(JSON)") $(ARGS)

format: $(READY) ## Format the code and fix what ruff can fix
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

lock: $(UV) ## Bring uv.lock up to date with pyproject.toml (ARGS=--upgrade for new versions)
	@$(UV) lock --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(ARGS)

# From a copy, as uv_build packs only what is below the project; dist/ has what comes of it.
client: $(UV) ## Build the distribution tidegate-client into dist/
	@rm -rf build/client && mkdir -p build/client
	@cp -r client/pyproject.toml tidegate_client build/client/
	@$(UV) build --quiet --wheel --out-dir dist build/client && ls dist

# Node builds it and is needed for nothing else; no script of a package is run.
console: ## Build the console in a browser into gateway/static (needs Node 18 or newer)
	@node -e 'process.exit(parseInt(process.versions.node) >= 18 ? 0 : 1)' 2>/dev/null || { \
		echo "The console is built by Node 18 or newer with npm: install nodejs and npm, then make console." >&2; \
		exit 1; }
	@cd web && npm ci --ignore-scripts --no-audit --no-fund --silent \
		&& npm run --silent types && npm run --silent check && npm run --silent build -- --logLevel warn
	@echo "Built: tidegate serve LOG opens it"

clean: ## Remove .venv, .uv and every cache
	@rm -rf web/node_modules gateway/static .venv .uv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: $(READY) ## Only set up .venv

$(READY): pyproject.toml uv.lock | $(UV)
	@echo "Setting up .venv (only when pyproject.toml or uv.lock change)"
	@$(UV) sync --quiet --frozen --all-extras \
		--python "$$($(PYTHON) -c 'import sys; print(sys.executable)')"
	@touch $@

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Tidegate needs Python 3.11 or newer as '$(PYTHON)': install python3.11 or name one with 'make PYTHON=...'." >&2; \
		exit 1; }
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || { \
		echo "Tidegate needs pip for '$(PYTHON)': install the package python3-pip." >&2; \
		exit 1; }
	@PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
		$(PYTHON) -m pip install --quiet --upgrade --target .uv 'uv>=0.9,<1'
