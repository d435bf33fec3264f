#!/bin/sh
# agent.sh ARGS: hpclaunch ARGS, whose exit code is kept in the file code.<task of the step>.
hpclaunch "$@"
code=$?
echo "$code" >"code.$SLURM_PROCID.new"
mv "code.$SLURM_PROCID.new" "code.$SLURM_PROCID"
exit "$code"
