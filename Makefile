# The habits of this project: see `make help`. `make demo` and `make test` need Debian (or the like)
# and Python only.

PYTHON ?= python3
MINUTES ?= 60
VENV := .venv
VERSIONS := 2.4.1 2.5.1 2.6.0 2.7.1 2.8.0 2.10.0 2.12.0 2.13.0 2.14.0 2.15.0
BIN := $(VENV)/bin
GPU := .venv-gpu
GPU_PYTHON ?= 3.12
SYSTEM := slurmctld slurmd slurm-client munge iproute2 nftables fuse3 util-linux procps g++ cmake chromium zsh fish
APT := DEBIAN_FRONTEND=noninteractive apt-get install -qqy --no-install-recommends
ROOT := [ "$$(id -u)" = 0 ]
# See tests/surroundings.py. The locale apart: it changes how the names of the others are written.
SURROUNDINGS := umask,descriptors,home,tmpdir,stranger locale
SHORT := not compiles and not requeues and not frameworks and not recipes and not benches
# What starts no process, and a few cases where there are many
QUICK := $(SHORT) and not starts and not slurm and not gpu and not exhaustive
RUN := $(BIN)/pytest -n 5 --dist loadfile --no-loadscope-reorder     # five clusters: most jobs wait

.PHONY: demo test lint types pytest test-surroundings $(SURROUNDINGS:%=test-in-%) test-compiled test-requeue test-frameworks test-recipes test-benches test-torch
.PHONY: sim fuzz soak chaos test-kills test-leaks bench docs test-gpu gpu-bundle bench-gpu system clean

.PHONY: help quick coverage
help:     ## these targets; where a duration is named, it is on two cores
	@awk -F ' *## ' '/^[a-z-]+:.* ## / { sub(/:.*/, "", $$1); printf "%-18s %s\n", $$1, $$2 }' Makefile

quick: lint types     ## style, types, and the tests that start no process; a minute
	$(BIN)/pytest -q -n $$((2 * $$(nproc))) --maxprocesses 8 --dist worksteal --hypothesis-profile quick \
	  --ignore tests/slurm --ignore tests/gpu -m '$(QUICK)'

demo: $(VENV)/ready     ## train on this machine, kill a worker, see it go on; a minute
	$(BIN)/python demo.py

test: $(VENV)/ready system lint types pytest     ## everything that must hold before a commit; 12 minutes

lint: $(VENV)/ready     ## style, by ruff; a second
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready     ## types, by mypy; seconds, the first time half a minute
	$(BIN)/mypy

pytest: $(VENV)/ready     ## the tests alone; 12 minutes
	$(RUN) -m '$(SHORT)'

coverage: $(VENV)/coverage system     ## covered lines of launcher/, processes included; 15 minutes
	$(BIN)/python tests/reached_lines.py $(RUN) -m '$(SHORT)'

test-surroundings: $(SURROUNDINGS:%=test-in-%)     ## where umask, locale, ... are unusual; two runs, each about as long as make test

# What decides or simulates starts nothing and reads nothing, and is the same anywhere.
$(SURROUNDINGS:%=test-in-%): test-in-%: $(VENV)/ready system
	$(RUN) -m '$(SHORT)' --surroundings $* tests/agent tests/system tests/worker tests/cli tests/docs tests/slurm

test-compiled: $(VENV)/frameworks system     ## DeepSpeed, a program in C++ and torch.compile; 10 minutes
	$(BIN)/pytest -m compiles

test-requeue: $(VENV)/frameworks system     ## jobs that Slurm starts again, as root; 10 minutes
	$(BIN)/pytest -m requeues

test-frameworks: $(VENV)/frameworks system     ## each framework: trainings, interrupted and killed, and checkpoints, as root; 20 minutes
	$(RUN) -m 'frameworks and not compiles'

test-recipes: $(VENV)/ready system     ## job scripts of clusters' documentation, as root; 5 minutes
	$(RUN) -m recipes

test-benches: $(VENV)/ready system     ## each measurement at its smallest; 3 minutes
	$(BIN)/pytest -m benches

test-torch: system     ## what holds for every torch: VERSIONS="2.4.1 2.15.0", some 6 GB and 15 minutes each
	if $(ROOT); then export HPCLAUNCH_SLURM_REQUIRED=1; fi; tests/every_torch $(VERSIONS)

sim: $(VENV)/ready     ## all orders of a few events, and a hundred thousand simulated clusters; an hour
	$(BIN)/python tests/sim/search.py
	$(BIN)/python tests/sim/replay.py --seeds 100000

fuzz: $(VENV)/ready     ## any data for every parser of what comes from outside; an hour, or MINUTES=5
	$(BIN)/python tests/fuzz.py --minutes $(MINUTES)

test-leaks: $(VENV)/ready system     ## what 1,000 launches and 1,000 restarts leave behind; 20 minutes
	$(BIN)/python tests/leaks.py

test-kills: $(VENV)/frameworks     ## two hundred kills while saving, for every format; hours
	cd tests/system/checkpoints && PYTHONPATH=. $(CURDIR)/$(BIN)/python kills.py --kills 200
	$(BIN)/python tests/system/staging/kill_points.py
	$(BIN)/python tests/system/staging/random_kills.py --kills 200
	$(BIN)/python tests/system/staging/node_kills.py --seconds 300

soak: $(VENV)/ready system     ## thirty random faults in one job on a real cluster, as root; several minutes
	$(BIN)/pytest -s tests/slurm/soak.py

chaos: $(VENV)/ready system     ## faults of all kinds in one job for half an hour, as root; its goodput
	$(BIN)/python bench/chaos.py

bench: $(VENV)/ready system     ## side by side with torchrun; prints the ratios
	$(BIN)/python bench/help_text.py
	$(BIN)/python bench/checkpoints.py
	$(BIN)/python bench/launch_and_restart.py
	$(BIN)/python bench/first_step.py --shapes 2x4
	$(BIN)/python bench/on_slurm.py
	$(BIN)/python bench/on_slurm_losses.py
	$(BIN)/python bench/false_alarms.py
	$(BIN)/python bench/idle_agent.py
	$(BIN)/python bench/head_scale.py
	$(BIN)/python bench/journal.py
	$(BIN)/python bench/many_agents.py
	$(BIN)/python bench/metrics.py
	$(BIN)/python bench/node_copies.py
	$(BIN)/python bench/questions.py
	$(BIN)/python bench/restarts_never_hang.py
	$(BIN)/python bench/staging.py
	$(BIN)/python bench/staging_losses.py

docs: $(VENV)/docs     ## the site of docs/ in build/site, and the manual page build/hpclaunch.1; seconds
	NO_MKDOCS_2_WARNING=1 $(BIN)/python docs/build.py

test-gpu: $(GPU)/ready     ## what needs an NVIDIA GPU; PYTHON is one whose torch has CUDA, if any
	HPCLAUNCH_GPU_REQUIRED=1 $(GPU)/bin/python -m pytest tests/gpu

gpu-bundle: $(VENV)/ready     ## what test-gpu needs where there is no network, as wheels in .wheels
	tests/gpu/bundle $(BIN)/python .wheels $(GPU_PYTHON)

bench-gpu: $(GPU)/ready     ## figures of that GPU, into bench/results
	$(GPU)/bin/python bench/gpu/figures.py

$(GPU)/ready: pyproject.toml
	PYTHON=$(PYTHON) tests/gpu/prepare $(GPU)
	@touch $@

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { $(ROOT) && apt-get update -qq && $(APT) python3-venv; } \
	  || { echo 'Python cannot make virtual environments here: apt install python3-venv'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[workers,dev]'
	@touch $@

$(VENV)/docs: $(VENV)/ready
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/frameworks: $(VENV)/ready
	DS_BUILD_OPS=0 $(BIN)/pip install -q -c constraints.txt -e '.[frameworks]'
	@touch $@

$(VENV)/coverage: $(VENV)/ready
	$(BIN)/pip install -q -c constraints.txt -e '.[coverage]'
	@touch $@

system:     # without root the tests that need it are skipped, and say so
	@which slurmctld slurmd scontrol munged ip nft fusermount3 nsenter pkill g++ cmake chromium zsh fish >/dev/null || ! $(ROOT) \
	  || { apt-get update -qq && $(APT) $(SYSTEM); }

clean:     ## remove the virtual environments and what was built
	rm -rf $(VENV) $(GPU) demo-run build *.egg-info launcher/*.egg-info
