#!/bin/bash
# A control group with less memory than a run takes kills it, and does not kill the same run with --memory_limit, which has the same
# losses. Control groups are made inside of the directory that TESSERA_TEST_CGROUP names (version 2 with the memory controller
# delegated, or version 1), and nowhere else: without one this fails, so the test is manual.
# train_cgroup_test.sh TRAIN
set -u
train=$PWD/$1
: "${TESSERA_TEST_CGROUP:?names no directory in which control groups may be made}"
group=$TESSERA_TEST_CGROUP/train_cgroup_test.$$
cd "${TEST_TMPDIR:-/tmp}" || exit 1
mkdir "$group" || exit 1
trap 'rmdir "$group"' EXIT
for i in $(seq 3000); do echo "line $i of a text that is easy to learn, line after line"; done >text.txt
run=(--data=text.txt --model=llama-10m --mesh=dp2 --zero=0 --offload=none --batch=4 --micro_batch=2 --length=512 --steps=3
  --sample_tokens=0 --format=json)

limit_to() {  # BYTES
  if [ -f "$group/memory.max" ]; then
    echo "$1" >"$group/memory.max" && echo 0 >"$group/memory.swap.max"
  else
    echo "$1" >"$group/memory.limit_in_bytes"
  fi
}
inside() {  # COMMAND...
  bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
}
fail() {
  echo "FAILED: $1"
  cat err
  exit 1
}

"$train" "${run[@]}" --dry_run >said 2>err || fail "the dry run"
needed=$(python3 -c 'import json; print(json.load(open("said"))["memory"]["needed"])') || fail "the prediction"
limit=$((needed * 80 / 100))
"$train" "${run[@]}" --run_dir=free >out 2>err || fail "a run without a limit"
limit_to $limit || fail "a limit of $limit bytes"

inside "$train" "${run[@]}" --run_dir=killed >out 2>err && fail "a run of $needed bytes lived in $limit"
grep -q "signal 9\|Killed\|SIGKILL" err || fail "a run of $needed bytes in $limit bytes failed, but was not killed"

inside "$train" "${run[@]}" --run_dir=held --memory_limit=$limit >out 2>err || fail "a run with --memory_limit=$limit"
grep "memory: strategy" err || fail "it does not say what it did"
python3 - <<'END' || fail "the losses"
import json
def losses(name): return [json.loads(line)["loss"] for line in open(name + "/metrics.jsonl")]
free, held = losses("free"), losses("held")
assert len(free) == 3 and all(abs(a / b - 1) < 1e-5 for a, b in zip(free, held)), (free, held)
END
