#!/bin/bash
# Ranks that the real mpirun started find each other, with nothing set and by TCP.
set -euo pipefail
flavor=$1 program=$PWD/$2
TMPDIR=$(mktemp -d /tmp/mpi.XXXXXX)
export TMPDIR HOME=$TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
expect() {
  echo "$1"
  [ "$1" = "ranks 0 1 2 3 4" ]
}
case $flavor in
  openmpi)
    expect "$(mpirun.openmpi -n 5 "$program")"
    expect "$(MASTER_ADDR=localhost MASTER_PORT=$((10000 + RANDOM % 10000)) mpirun.openmpi -x MASTER_ADDR -x MASTER_PORT \
      -n 5 "$program")"
    ;;
  mpich)  # Its ranks are not told what their job is called.
    expect "$(TESSERA_JOB_ID=test-$$-$RANDOM mpiexec.mpich -n 5 "$program")"
    ;;
  *) echo "unknown MPI: $flavor"; exit 1 ;;
esac
