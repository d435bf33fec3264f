#!/bin/sh
# again.sh ARGS: agent.sh ARGS, and again after the seconds that again.<host> says, if it is there.
again="again.$(hostname)"
while "$(dirname "$0")/agent.sh" "$@"; code=$?; [ -e "$again" ]; do
  sleep "$(cat "$again")"
  rm "$again"
done
exit "$code"
