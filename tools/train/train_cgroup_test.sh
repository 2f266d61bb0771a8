#!/bin/bash
# A control group with too little memory kills a run, but not the same run with --memory_limit: the run changes its strategy either
# before the start, from the prediction, or while running, when it finds unpredicted memory. Losses do not change.
#
# Control groups are created in the directory that TESSERA_TEST_CGROUP names, or in this process's own group (version 1, or version
# 2 if children get the memory controller). If that is not possible the test is skipped with the reason.
# train_cgroup_test.sh TRAIN BALLAST
set -u
source base/skip_test.sh
train=$PWD/$1 ballast=$PWD/$2
cd "${TEST_TMPDIR:-/tmp}" || exit 1
export TMPDIR=$PWD

own_group() {
  local path
  if path=$(grep -m1 '^[0-9]*:\([^:]*,\)\?memory\(,[^:]*\)\?:' /proc/self/cgroup); then
    echo "/sys/fs/cgroup/memory${path#*:*:}"
  elif path=$(grep -m1 '^0::' /proc/self/cgroup); then
    echo "/sys/fs/cgroup${path#0::}"
  fi
}
fail() {
  echo "FAILED: $1"
  tail -n 30 err
  exit 1
}

parent=${TESSERA_TEST_CGROUP:-$(own_group)}
# If TESSERA_TEST_CGROUP names a group, the test is not skipped.
unable=skip_test
[ -z "${TESSERA_TEST_CGROUP:-}" ] || unable=fail
: >err
[ -n "$parent" ] || $unable "this process is in no control group with memory"
group=$parent/train_cgroup_test.$$
mkdir "$group" 2>err || $unable "no control group can be made in $parent"
leave() {
  local i
  for i in $(seq 100); do rmdir "$group" 2>/dev/null && return; sleep 0.1; done
  echo "$group is left"
}
trap leave EXIT
[ -f "$group/memory.max" ] || [ -f "$group/memory.limit_in_bytes" ] || $unable "groups in $parent have no memory controller"
[ -f "$group/memory.max" ] || [ -f "$group/memory.memsw.limit_in_bytes" ] || [ "$(wc -l </proc/swaps)" -le 1 ] ||
  $unable "groups in $parent do not limit swap, and the machine has some"

limit_to() {  # BYTES
  if [ -f "$group/memory.max" ]; then
    echo "$1" >"$group/memory.max" && echo 0 >"$group/memory.swap.max"
  else
    # The limit with swap may not be below the limit without; setting it before and after covers both orders.
    echo "$1" 2>/dev/null >"$group/memory.memsw.limit_in_bytes"
    echo "$1" >"$group/memory.limit_in_bytes" || return
    if [ -f "$group/memory.memsw.limit_in_bytes" ]; then
      echo "$1" >"$group/memory.memsw.limit_in_bytes"
    fi
  fi
}
inside() {  # COMMAND...
  bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
}
# Expects that the last command, or one of its ranks, was killed.
expect_killed() {  # EXIT_CODE RUN
  [ "$1" != 0 ] || fail "$2 lived"
  [ "$1" = 137 ] || grep -q "signal 9\|Killed\|SIGKILL" err || fail "$2 failed, but was not killed"
}
needed() {  # FLAG...
  "$train" "${run[@]}" "$@" --dry_run >said 2>err || fail "the dry run"
  python3 -c 'import json; print(json.load(open("said"))["memory"]["needed"])' || fail "the prediction"
}
same_losses() {  # NAME
  python3 - "$1" <<'END_PYTHON' || fail "the losses of $1"
import json, sys
def losses(name): return [json.loads(line)["loss"] for line in open(name + "/metrics.jsonl")]
free, held = losses("free"), losses(sys.argv[1])
assert len(free) == 6 == len(held), (free, held)
assert all(abs(a / b - 1) < 1e-5 for a, b in zip(free, held)), (free, held)
END_PYTHON
}

for i in $(seq 3000); do echo "line $i of a text that is easy to learn, line after line"; done >text.txt
run=(--data=text.txt --model=llama-10m --mesh=dp2 --zero=0 --offload=none --batch=4 --micro_batch=2 --length=64 --steps=6
  --strategy=all_reduce --sample_tokens=0 --format=json)
needed=$(needed)
limit_to 80000000 2>err || $unable "no limit can be set on $group"
inside true 2>err || $unable "no process can join $group"

"$train" "${run[@]}" --run_dir=free >out 2>err || fail "a run without a limit"

# The prediction exceeds the limit before the start.
limit=$((needed * 80 / 100))
limit_to $limit || fail "a limit of $limit bytes"
inside "$train" "${run[@]}" --run_dir=killed --force >out 2>err
expect_killed $? "a run of $needed bytes in $limit bytes"
inside "$train" "${run[@]}" --run_dir=held --memory_limit=$limit >out 2>err || fail "a run with --memory_limit=$limit"
grep "memory: strategy" err || fail "it does not say what it did"
same_losses held

# The excess appears while running: rank 1 allocates more after each step, in total 40 % of the run's memory.
soft=$((needed * 107 / 100)) hard=$((needed * 122 / 100))
leaking() {  # NAME FLAG...
  local name=$1
  shift
  inside env LD_PRELOAD="$ballast" TESSERA_TEST_BALLAST="1 $((needed * 10 / 100)) $((needed * 40 / 100)) $PWD/$name/metrics.jsonl" \
    "$train" "${run[@]}" --run_dir="$name" "$@" >out 2>err
}
limit_to $hard || fail "a limit of $hard bytes"
leaking leaked
expect_killed $? "a run that leaks in $hard bytes"
leaking saved --memory_limit=$soft || fail "a run that leaks, with --memory_limit=$soft"
grep "memory: strategy basic" err || fail "the prediction knew of the leak"
grep "memory: after [1-5] steps: .*: strategy" err || fail "it does not say what it changed"
python3 -c 'import json; assert json.load(open("saved/result.json"))["strategy_changes"]' || fail "result.json"
same_losses saved
exit 0
