#!/bin/bash
# Control groups with less memory than a run takes kill it, and do not kill the same run with --memory_limit: neither where the
# prediction says it before the start, nor where memory that nobody predicted is found while it runs. Losses stay what they were.
#
# Control groups are made inside of the directory that TESSERA_TEST_CGROUP names, or else of this process's own group (version 1, or
# version 2 where children get the memory controller). Where that is not possible the test is skipped, and says why.
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
# Whoever names a group expects the test to run.
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
    # With swap, which may not be less than without: whichever order is right.
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
# The last command was: a rank, or the process that started it.
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

# Known before the start.
limit=$((needed * 80 / 100))
limit_to $limit || fail "a limit of $limit bytes"
inside "$train" "${run[@]}" --run_dir=killed --force >out 2>err
expect_killed $? "a run of $needed bytes in $limit bytes"
inside "$train" "${run[@]}" --run_dir=held --memory_limit=$limit >out 2>err || fail "a run with --memory_limit=$limit"
grep "memory: strategy" err || fail "it does not say what it did"
same_losses held

# Found while it runs: rank 1 takes more after each step, in all 40 % of what the whole run needs.
soft=$((needed * 107 / 100)) hard=$((needed * 130 / 100))
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
