#!/bin/bash
# Runs two ranks with different NCCL_HOSTIDs, so that they can share a GPU: nccl_test.sh PROGRAM.
set -uo pipefail
program=$1 ranks=2
unset XML_OUTPUT_FILE TEST_PREMATURE_EXIT_FILE TEST_WARNINGS_OUTPUT_FILE
export MASTER_ADDR=127.0.0.1 WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks
export HOME=$TEST_TMPDIR
TESSERA_JOB_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export TESSERA_JOB_SECRET
MASTER_PORT=$((20000 + RANDOM % 12000))
export MASTER_PORT
processes=()
for ((rank = 0; rank < ranks; ++rank)); do
  RANK=$rank LOCAL_RANK=$rank NCCL_HOSTID=$rank "$program" --gtest_brief=0 > "$TEST_TMPDIR/rank.$rank" 2>&1 &
  processes+=($!)
done
failed=0
for ((rank = 0; rank < ranks; ++rank)); do
  wait "${processes[rank]}" || failed=1
  sed "s/^/[$rank] /" "$TEST_TMPDIR/rank.$rank"
done
exit $failed
