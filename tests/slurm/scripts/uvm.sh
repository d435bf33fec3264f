#!/bin/sh
# uvm.sh COMMAND: on a host that has /dev/nvidia-uvm, as those with an NVIDIA driver do.
exec unshare --mount sh -c '
  dev=$TMP_OF_TEST/dev && mkdir "$dev" && mount -t tmpfs tmpfs "$dev" &&
  cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty "$dev" &&
  mkdir "$dev/shm" && mount --bind /dev/shm "$dev/shm" && touch "$dev/nvidia-uvm" &&
  mount --rbind "$dev" /dev && exec "$@"' sh "$@"
