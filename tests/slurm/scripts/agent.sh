#!/bin/sh
# agent.sh ARGS: run hpclaunch ARGS, and write its exit code to the file code.<task of the step>.
hpclaunch "$@"
code=$?
echo "$code" >"code.$SLURM_PROCID.new"
mv "code.$SLURM_PROCID.new" "code.$SLURM_PROCID"
exit "$code"
