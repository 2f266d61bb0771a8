#!/bin/bash
# Runs three ranks through the MPI library of this build.
set -euo pipefail
flavor=$1 program=$PWD/$2
# Open MPI creates sockets in TMPDIR, and their path must be short.
TMPDIR=$(mktemp -d /tmp/mpi.XXXXXX)
export TMPDIR HOME=${HOME:-$TEST_TMPDIR}
trap 'rm -rf "$TMPDIR"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
case $flavor in
  openmpi) output=$(mpirun.openmpi --mca btl self,vader,tcp -n 3 "$program") ;;
  mpich) output=$(mpiexec.mpich -n 3 "$program") ;;
  *) echo "unknown MPI: $flavor"; exit 1 ;;
esac
echo "$output"
[ "$output" = "3 ranks, sum 3" ]
