#!/bin/bash
# Tests runs whose data axis shrinks when a rank or a host is lost and grows when a host joins (--min_dp, --max_dp), and the
# checkpoints of copies in memory that runs write before they end. Hosts are commands of this one.
set -uo pipefail
train=$PWD/$1
source tools/train/testing/tiny_model.sh
export TESSERA_JOB_SECRET=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
common="--model=$PWD/model --data=$PWD/text.txt --length=32 --strategy=all_reduce --sample_tokens=0 --keep_checkpoints=0"

# The processes of the ranks of run $1, and that of its rank $2. (grep does not match its own arguments.)
ranks_of() { grep -lz -- "$PWD/$1/[.]ranks" /proc/[0-9]*/cmdline 2>/dev/null | grep -o '[0-9]*'; }
rank_of() {
  local process
  for process in $(ranks_of "$1"); do grep -qz "^RANK=$2\$" "/proc/$process/environ" 2>/dev/null && echo "$process"; done
}
# Waits until run $1 has $2 steps, or file $1 has a line that matches $2. Gives up when command $survivor has ended.
steps_in() { cat "$1/metrics.jsonl" 2>/dev/null | wc -l; }
await_steps() { while [ "$(steps_in "$1")" -lt "$2" ] && kill -0 $survivor 2>/dev/null; do sleep 0.02; done; }
await_line() { while ! grep -q "$2" "$1" && kill -0 $survivor 2>/dev/null; do sleep 0.05; done; }
# Starts command $2 of run $1 with further flags; output goes to $1.out$2 and $1.err$2.
pids=()
start() {
  local run=$1 node=$2
  shift 2
  env --default-signal "$train" $common --run_dir="$run" "$@" >"$run.out$node" 2>"$run.err$node" &
  pids[node]=$!
}
start_node() {
  local run=$1 node=$2
  shift 2
  start "$run" "$node" --engine=auto --nnodes=2 --node_rank="$node" --master_addr=127.0.0.1 --hang_timeout=3s "$@"
}
# Command $2 of run $1 ends with code $3.
expect_code() {
  wait "${pids[$2]}"
  local code=$?
  [ $code = "$3" ] || fail "$1: command $2 ends with $code, not $3: $(cat "$1".err*)"
}
expect_line() { grep -q "$2" "$1" || fail "no line \"$2\" in $1: $(cat "$1")"; }
expect_clean() {
  [ -z "$(ranks_of "$1")" ] || fail "$1: ranks are left"
  [ ! -e "$1/.ranks" ] || fail "$1: files are left: $(ls -A "$1/.ranks")"
}
# The step of the checkpoint in the line of file $1 that matches $2.
step_in() { grep "$2" "$1" | grep -o 'step-[0-9]*' | head -1; }
# The losses of runs $1 and $2 differ at most by the relative $3, from step $4 to before step $5 (both in the names of checkpoints).
# Run $1 has each step once.
compare() {
  python3 - "$@" <<'END' || fail "losses differ: $*"
import json, sys
runs = [{x["step"]: x["loss"] for x in map(json.loads, open(name + "/metrics.jsonl"))} for name in sys.argv[1:3]]
begin, end = (int(name.removeprefix("step-")) for name in sys.argv[4:6])
assert end > begin and len(open(sys.argv[1] + "/metrics.jsonl").readlines()) == len(runs[0])
worst = max(abs(runs[0][s] - runs[1][s]) / abs(runs[1][s]) for s in range(begin, end))
assert worst <= float(sys.argv[3]), worst
END
}
expect_same_weights() {
  local file
  for file in "$1"/*.state; do cmp "$file" "$2/${file##*/}" || fail "$1 and $2 differ"; done
}

# One host. After the last restart the ranks save their copies, without the rank that is lost; nothing has to be repeated.
small="--batch=8 --mesh=dp2,tp2 --steps=40"
"$train" $common $small --run_dir=calm >out 2>err || fail "calm: $(cat err)"
start saved 0 $small --snapshot_every=1 --max_restarts=1
survivor=${pids[0]}
await_steps saved 5
kill -9 "$(rank_of saved 3)"
await_steps saved 12
kill -9 "$(rank_of saved 0)"
expect_code saved 0 1
expect_line saved.err0 "^train: copies in memory are saved in $PWD/saved/checkpoints/step-"
expect_line saved.err0 "^train: rank 0 (pid .* was killed by SIGKILL.*; after 1 restart; continue with: .* --resume=latest"
expect_clean saved
last=$(step_in saved.err0 "are saved in")
[ "$((10#${last#step-}))" -ge "$(($(steps_in saved) - 1))" ] || fail "saved: steps are lost: $last of $(steps_in saved)"
"$train" $common $small --run_dir=saved --resume=latest >out 2>err || fail "saved again: $(cat err)"
compare saved calm 0 step-0 step-40
expect_same_weights calm/checkpoints/step-00000040 saved/checkpoints/step-00000040

# A rank that dies twice in a row: fewer ranks go on, with the bits of a run that resumes on that mesh.
start fewer 0 $small --snapshot_every=1 --max_restarts=3 --min_dp=1
survivor=${pids[0]}
await_steps fewer 5
kill -9 "$(rank_of fewer 1)"
await_steps fewer 12
kill -9 "$(rank_of fewer 1)"
expect_code fewer 0 0
expect_line fewer.err0 "killed by SIGKILL.*; restart 2 of 3 on tp2 from $PWD/fewer/checkpoints/step-"
at=$(step_in fewer.err0 "are saved in")
"$train" $common $small --mesh=tp2 --run_dir=resumed --resume=fewer/checkpoints/$at >out 2>err || fail "resumed: $(cat err)"
compare fewer resumed 0 $at step-40
compare fewer calm 1e-5 step-0 step-40
expect_same_weights fewer/checkpoints/step-00000040 resumed/checkpoints/step-00000040

# Two hosts. One is lost, and the run goes on without it; it comes back, and the run grows.
long="--batch=8 --mesh=dp2 --lr_schedule=constant --warmup_steps=0"
for node in 0 1; do start_node hosts $node $long --steps=100000 --snapshot_every=1 --max_restarts=2 --min_dp=1; done
survivor=${pids[0]}
await_steps hosts 10
kill -9 ${pids[1]}
await_line hosts.err0 "continues on dp1 (of dp2), 1 of 2 hosts, from .*; grows when a host joins"
start_node hosts 1 $long --steps=100000 --snapshot_every=1 --max_restarts=2 --min_dp=1
await_line hosts.err0 "continues on dp2, 2 of 2 hosts, from "
less=$(step_in hosts.err0 "continues on dp1") more=$(step_in hosts.err0 "continues on dp2")
await_steps hosts $((10#${more#step-} + 10))
kill -TERM ${pids[1]}
for node in 0 1; do expect_code hosts $node 143; done
expect_line hosts.err0 "the node of rank 1 has been silent for 3s; the others save their copies in memory"
expect_line hosts.err0 "a new host joins: ends after step [0-9]* of 100000 with a checkpoint"
expect_clean hosts
end=$(ls hosts/checkpoints | tail -1)
resume="$long --steps=$((10#${end#step-}))"
"$train" $common $resume --run_dir=on_dp2 --resume=hosts/checkpoints/$more >out 2>err || fail "on dp2: $(cat err)"
"$train" $common $resume --run_dir=on_dp1 --resume=hosts/checkpoints/$less --mesh=dp1 >out 2>err || fail "on dp1: $(cat err)"
compare hosts on_dp1 0 $less $more
compare hosts on_dp2 0 $more $end
compare hosts on_dp1 1e-4 $less $end
expect_same_weights on_dp2/checkpoints/$end hosts/checkpoints/$end

# Without copies, and the first host is lost: the other one goes on from the last checkpoint.
for node in 0 1; do start_node alone $node $small --mesh=dp2 --checkpoint_every=5 --max_restarts=1 --min_dp=1; done
survivor=${pids[1]}
await_steps alone 8
kill -9 ${pids[0]}
expect_code alone 1 0
expect_line alone.err1 "continues on dp1 (of dp2), 1 of 2 hosts, from "
expect_line alone.out1 "steps of 256 tokens"
expect_clean alone
compare alone calm 1e-5 step-0 step-40

# A rank of the second host dies twice in a row: its command ends, and the first host goes on.
for node in 0 1; do start_node leaves $node $small --mesh=dp2 --snapshot_every=1 --max_restarts=3 --min_dp=1; done
survivor=${pids[0]}
await_steps leaves 5
kill -9 "$(rank_of leaves 1)"
await_steps leaves 12
kill -9 "$(rank_of leaves 1)"
expect_code leaves 1 1
expect_code leaves 0 0
expect_line leaves.err1 "^train: this host leaves the run: rank 1 (pid [0-9]*) was killed by SIGKILL after [0-9.]* s; all ranks were ended$"
expect_line leaves.err0 "continues on dp1 (of dp2), 1 of 2 hosts, from "
expect_clean leaves
compare leaves calm 1e-5 step-0 step-40

# More hosts than at the start.
wide="$long --steps=100000 --max_restarts=1 --max_dp=4"
for node in 0 1; do start_node wide $node $wide; done
survivor=${pids[0]}
await_steps wide 5
for node in 2 3; do start_node wide $node $wide; done
await_line wide.err0 "continues on dp4 (of dp2), 4 of 2 hosts, from "
more=$(step_in wide.err0 "continues on dp4")
await_steps wide $((10#${more#step-} + 5))
kill -TERM ${pids[3]}
for node in 0 1 2 3; do expect_code wide $node 143; done
expect_clean wide

# Bad usage.
refuse() {
  "$train" $common $small "$@" >out 2>err
  [ $? = 2 ] && [ "$(wc -l <err)" = 1 ] && grep -q -- "$2" err || fail "$*: $(cat err)"
}
refuse --max_restarts=1 --min_dp=4
refuse --max_restarts=1 --max_dp=4
refuse --max_restarts=0 --min_dp=1
refuse --max_restarts=1 --elastic
grep -q -- --min_dp=1 err || fail "no word of --min_dp: $(cat err)"
refuse --mesh=dp4 --min_dp=3 --max_restarts=1

[ $failures = 0 ] && echo PASSED
exit $failures
