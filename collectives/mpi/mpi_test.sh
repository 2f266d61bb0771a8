#!/bin/bash
# Runs a test program as an MPI job: mpi_test.sh FLAVOR RANKS PASSES PROGRAM [ARGUMENT...]. It passes if PASSES ranks
# report success and, unless PASSES < RANKS or an argument names a fault, mpirun exits with 0.
set -uo pipefail
flavor=$1 ranks=$2 passes=$3 program=$PWD/$4
shift 4
# Open MPI creates sockets in TMPDIR, and their path must be short.
TMPDIR=$(mktemp -d /tmp/mpi.XXXXXX)
export TMPDIR HOME=${HOME:-$TEST_TMPDIR}
trap 'rm -rf "$TMPDIR"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# Jobs in sandboxes with separate pid namespaces would share one file in /dev/shm.
export OMPI_MCA_btl_vader_backing_directory=$TMPDIR
# The ranks share the test's environment; without this each would write the test's report.
unset XML_OUTPUT_FILE TEST_PREMATURE_EXIT_FILE TEST_WARNINGS_OUTPUT_FILE
case $flavor in
  openmpi) run=(mpirun.openmpi --mca btl self,vader,tcp --enable-recovery -n "$ranks") ;;
  mpich) run=(mpiexec.mpich -disable-auto-cleanup -n "$ranks") ;;
  *) echo "unknown MPI: $flavor"; exit 1 ;;
esac
"${run[@]}" "$program" --gtest_brief=1 "$@" > "$TMPDIR/output" 2>&1
status=$?
cat "$TMPDIR/output"
seen=$(grep -c '^rank [0-9]* passed$' "$TMPDIR/output")
echo "$seen of $ranks ranks passed; $passes are needed; mpirun ended with $status"
[ "$seen" = "$passes" ] && { [ $# -gt 0 ] || [ "$status" = 0 ]; }
