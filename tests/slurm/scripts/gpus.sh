#!/bin/sh
# gpus.sh ARGS: run agent.sh ARGS with the node's own temporary directory and GPUs. The GPUs are in
# the file nvml.<host>, if it exists, or nvml.all.
state="$PWD/nvml.$(hostname)"
[ -e "$state" ] || state="$PWD/nvml.all"
export HPCLAUNCH_STAND_IN_NVML="$state" SLURM_TMPDIR="$TMP_OF_TEST/$(hostname)"
mkdir -p -m 700 "$SLURM_TMPDIR"
exec "$(dirname "$0")/agent.sh" "$@"
