#!/bin/sh
# gpus.sh ARGS: agent.sh ARGS on a node of its own temporary directory and its own GPUs: those that
# nvml.<host> tells of, if it is there, else nvml.all.
state="$PWD/nvml.$(hostname)"
[ -e "$state" ] || state="$PWD/nvml.all"
export HPCLAUNCH_STAND_IN_NVML="$state" SLURM_TMPDIR="$TMP_OF_TEST/$(hostname)"
mkdir -p -m 700 "$SLURM_TMPDIR"
exec "$(dirname "$0")/agent.sh" "$@"
