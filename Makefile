# Every target sets itself up: a virtual environment in .venv, the package and what it needs.
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 "$$HOME"/.pyenv/versions/3.1[2-9]*/bin/python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test quick browser engine check digest prove live bench calls budgets machines mutants newcomer night pictures site soak fleets endurance run docs clean

demo: $(READY)          ## a fleet against a strict, faulty provider: first direct, then through the scheduler
	$(BIN)/hivemind demo

# The hundreds of processes that tests start need not compile the package each.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --dist loadgroup --no-loadscope-reorder

test: $(READY) browser engine  ## all tests; six minutes on two cores
	@# More processes than cores: many tests wait for other programs.
	$(PYTEST) -n 4

quick: $(READY)         ## the tests in a minute: without whole scenarios, pages in a browser, real agents and all but a few real proxies
	$(PYTEST) -n 3 -m "quick or not (slow or long)"

run: $(READY)           ## the proxy, for your own agents
	$(BIN)/hivemind run

check: $(READY)         ## format, lint, types, generated docs fresh, a third of the decision digest
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/hivemind lab docs --check
	$(BIN)/hivemind lab digest --quick

digest: $(READY)        ## whether the scheduler decides as before, by a hash for each world; a minute and a half
	$(BIN)/hivemind lab digest

docs: $(READY)          ## write the generated parts of docs/
	$(BIN)/hivemind lab docs

site: $(READY)          ## docs/ as a site, in build/site; it can be read and searched from the disk, and fetches nothing
	$(BIN)/python -m pip install --quiet --group site
	$(BIN)/zensical build --clean --config-file lab/mkdocs.yml
	npm install --silent --no-save --no-audit --no-fund --prefix build/npm iframe-worker@1.0.4
	cp build/npm/node_modules/iframe-worker/shim/index.js build/site/assets/javascripts/iframe-worker.js
	perl -pi -e 's|https://unpkg.com/iframe-worker/shim|./assets/javascripts/iframe-worker.js|' build/site/*.html
	perl -pi -e 's|https://unpkg.com/iframe-worker/shim|../assets/javascripts/iframe-worker.js|' build/site/*/*.html

pictures: $(READY) browser  ## all pictures of README and docs/ anew, from real runs; three minutes
	$(BIN)/python -m lab.bench.newcomer.pictures

newcomer: $(READY)      ## a new user: empty home, the wheel, every line of README and docs/start.md, a real agent; three minutes
	$(BIN)/python -m lab.bench.newcomer --write

bench: $(READY)         ## the price of a request beside bare mitmdump, as ratios of one run; twelve minutes, an idle machine
	$(BIN)/python -m lab.bench

calls: $(READY)         ## the same counted, not timed: calls, hooks, tasks, timers, writes, garbage
	$(BIN)/python -m lab.bench.calls

budgets: $(READY)       ## how large the code is, beside its budgets in pyproject.toml; lowers those that are too large
	$(BIN)/python -m lab.budgets --lower

machines: $(READY) engine  ## four proxies, 200 agents and an engine; what is killed, cut and emptied; 15 minutes
	$(BIN)/python -m lab.bench.machines --output docs/cluster.md

# One change in each longer function of the kernel and the wire; MUTANTS='hivemind_addon.kernel.pool*' takes others.
MUTANTS ?= *__mutmut_25
mutants: $(READY)       ## change one place of the core or the wire at a time: which changes no quick test notices; 50 minutes
	$(BIN)/mutmut run '$(MUTANTS)'
	$(BIN)/mutmut results | grep -v 'not checked' || true

soak: $(READY)          ## a week of requests in five minutes, one in eight faulty: nothing may grow
	$(BIN)/python -m lab.bench.soak

night: $(READY)         ## the same in mitmweb with an open page, and 500 held requests; five minutes
	$(BIN)/python -m lab.bench.soak --web --minutes 4

prove: $(READY)         ## policies judged on many worlds, with seeds that nothing was tuned on; half an hour on two cores
	$(BIN)/hivemind lab prove --report --output docs

live: $(READY)          ## two scenarios on real sockets beside virtual time, and the nearest peer; ten minutes
	$(BIN)/hivemind lab prove --live --output docs

fleets: $(READY)        ## thirty real agents of every kind against faulty providers, direct and through the proxy; about an hour
	$(BIN)/python -m lab.fleets

endurance: $(READY)     ## how long real agents wait, silently and with keep-alives; takes half an hour
	$(BIN)/python -m lab.fleets.endurance

$(READY): pyproject.toml lab/constraints.txt
	@if [ -z "$(PYTHON)" ]; then echo "hivemind_addon needs Python 3.12 or newer: install one (for example your system's package python3.12 with python3.12-venv) and run make again." >&2; exit 1; fi
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint lab/constraints.txt --editable . --group dev
	touch $(READY)

browser:                ## Chromium for the tests of pages; without it and without root they are skipped
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core; } || true

engine:                 ## Redis for the tests of a cluster, which start their own; without it and without root they are skipped
	@command -v valkey-server >/dev/null || command -v redis-server >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends redis-server && \
	{ service redis-server stop; update-rc.d redis-server disable; } >/dev/null 2>&1; } || true

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
