# The habits of this project. `make demo` and `make test` need Debian (or the like) and Python only.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SLURM := slurmctld slurmd slurm-client munge iproute2 util-linux
APT := DEBIAN_FRONTEND=noninteractive apt-get install -qqy --no-install-recommends
ROOT := [ "$$(id -u)" = 0 ]

.PHONY: demo test lint types pytest sim bench slurm clean

demo: $(VENV)/ready     ## train on this machine, kill a worker, see it go on
	$(BIN)/python demo.py

test: $(VENV)/ready slurm lint types pytest     ## everything that must hold before a commit

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy

pytest: $(VENV)/ready
	$(BIN)/pytest

sim: $(VENV)/ready     ## a hundred thousand simulated clusters
	$(BIN)/python tests/sim/replay.py --seeds 100000

bench: $(VENV)/ready     ## side by side with torchrun; prints the ratios
	$(BIN)/python bench/launch_and_restart.py
	$(BIN)/python bench/idle_agent.py
	$(BIN)/python bench/restarts_never_hang.py

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { $(ROOT) && apt-get update -qq && $(APT) python3-venv; } \
	  || { echo 'Python cannot make virtual environments here: apt install python3-venv'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[workers,dev]'
	@touch $@

slurm:     # without root its tests are skipped, and say so
	@command -v slurmctld slurmd scontrol munged ip nsenter >/dev/null || ! $(ROOT) \
	  || { apt-get update -qq && $(APT) $(SLURM); }

clean:
	rm -rf $(VENV) demo-run build *.egg-info launcher/*.egg-info
