#!/bin/bash
# Ranks started by the real mpirun find each other, by default and over TCP.
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
  mpich)  # Its ranks do not know the job's name.
    expect "$(TESSERA_JOB_ID=test-$$-$RANDOM mpiexec.mpich -n 5 "$program")"
    ;;
  *) echo "unknown MPI: $flavor"; exit 1 ;;
esac
