#!/bin/bash
# Tests runs on several nodes (--nnodes), as commands of one host: what each prints, and that the run goes on with the weights and
# losses of an undisturbed one when a node is lost, a rank dies, or a node in reserve takes over.
set -uo pipefail
train=$PWD/$1
source tools/train/testing/tiny_model.sh
export TESSERA_JOB_SECRET=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
steps=150
common="--model=$PWD/model --data=$PWD/text.txt --length=32 --batch=8 --strategy=all_reduce --sample_tokens=0 --mesh=dp2
  --steps=$steps --engine=auto"

# The processes of the ranks of run $1, and that of its rank $2. (grep does not match its own arguments.)
ranks_of() { grep -lz -- "$PWD/$1/[.]ranks" /proc/[0-9]*/cmdline 2>/dev/null | grep -o '[0-9]*'; }
rank_of() {
  local process
  for process in $(ranks_of "$1"); do grep -qz "^RANK=$2\$" "/proc/$process/environ" 2>/dev/null && echo "$process"; done
}
steps_in() { cat "$1/metrics.jsonl" 2>/dev/null | wc -l; }
# Waits until run $1 has $2 steps, or $3 processes of ranks. Gives up when node $survivor has ended.
survivor=0
await_steps() { while [ "$(steps_in "$1")" -lt "$2" ] && kill -0 ${nodes[$survivor]} 2>/dev/null; do sleep 0.02; done; }
await_line() { while ! grep -q "$2" "$1" && kill -0 ${nodes[$survivor]} 2>/dev/null; do sleep 0.05; done; }
# Starts node $2 of run $1 with further flags; output goes to $1.out$2 and $1.err$2.
nodes=()
start() {
  local run=$1 node=$2
  shift 2
  env --default-signal "$train" $common --run_dir="$run" --nnodes=2 --node_rank="$node" --master_addr=127.0.0.1 "$@" >"$run.out$node" 2>"$run.err$node" &
  nodes[node]=$!
}
# Node $2 of run $1 ends with code $3.
expect_code() {
  wait "${nodes[$2]}"
  local code=$?
  [ $code = "$3" ] || fail "$1: node $2 ends with $code, not $3: $(cat "$1".err*)"
}
expect_line() { grep -q "$2" "$1" || fail "no line \"$2\" in $1: $(cat "$1")"; }
# Run $1 has ended well, with the weights and losses of the undisturbed run, and rank 0 on node $2.
expect_same() {
  local file
  for file in calm/checkpoints/step-*$steps/*.state; do cmp "$file" "$1/${file#calm/}" || fail "$1 has other weights"; done
  [ "$(grep -o '"step":[^,]*,\|"loss":[^,}]*' calm/metrics.jsonl)" = "$(grep -o '"step":[^,]*,\|"loss":[^,}]*' "$1/metrics.jsonl")" ] ||
    fail "$1 has other losses"
  expect_line "$1.out$2" "steps of 256 tokens"
  [ "$(cat "$1".out* | grep -c "steps of")" = 1 ] || fail "$1: several nodes print the result"
  expect_clean "$1"
}
expect_clean() {
  [ -z "$(ranks_of "$1")" ] || fail "$1: ranks are left"
  [ ! -e "$1/.ranks" ] || fail "$1: files are left: $(ls -A "$1/.ranks")"
}
copies="--max_restarts=4 --snapshot_every=1 --hang_timeout=5s"

"$train" $common --run_dir=calm >out 2>err || fail "calm: $(cat err)"

# Node 1 is lost, and the node in reserve starts its rank.
for node in 0 1 2; do start lost $node $copies; done
await_steps lost 20
kill -9 ${nodes[1]}
for node in 0 2; do expect_code lost $node 0; done
expect_same lost 0
expect_line lost.err0 "the node of rank 1 has been silent for 5s; other nodes start new processes in its place"
expect_line lost.err0 "continues after step [0-9]* from copies in memory"
expect_line lost.err2 "node 2 is in reserve until another one is lost"

# A lost node that is started again takes over when the next one is lost.
for node in 0 1 2; do start turns $node $copies --steps=20000; done
await_steps turns 20
kill -9 ${nodes[1]}
await_line turns.err0 "continues after step [0-9]* from copies in memory"
[ "$(ps -o ppid= -p "$(rank_of turns 1)" | tr -d ' ')" = ${nodes[2]} ] || fail "rank 1 is not on the node in reserve"
start turns 1 $copies --steps=20000
await_line turns.err1 "node 1 is in reserve until another one is lost"
kill -9 ${nodes[2]}
while [ "$(grep -c "from copies in memory" turns.err0)" -lt 2 ] && kill -0 ${nodes[0]}; do sleep 0.05; done
[ "$(ps -o ppid= -p "$(rank_of turns 1)" | tr -d ' ')" = ${nodes[1]} ] || fail "rank 1 is not on the node that came back"
kill -TERM ${nodes[0]}
for node in 0 1; do expect_code turns $node 143; done
expect_clean turns

# A node replaces its own ranks. Rank 0 is lost together with the first node.
survivor=1
for node in 0 1; do start first $node $copies; done
await_steps first 15
kill -9 "$(rank_of first 1)"
await_line first.err1 "rank 1 (pid [0-9]*) was killed by SIGKILL after [0-9.]* s; replaced, 1 of 4"
await_steps first 30
kill -9 ${nodes[0]}
expect_code first 1 0
expect_same first 1

# The first node comes back to a run that has checkpoints, and does not disturb it.
for node in 0 1; do start back $node $copies --steps=20000 --checkpoint_every=10; done
await_steps back 25
kill -9 ${nodes[0]}
await_line back.err1 "continues after step [0-9]* from copies in memory"
wait ${nodes[0]}
start back 0 $copies --steps=20000 --checkpoint_every=10
await_line back.err0 "node 0 is in reserve until another one is lost"
kill -INT ${nodes[1]}
expect_code back 1 130
expect_code back 0 1
expect_line back.err0 "^train: .*ended by SIGINT"
expect_clean back
survivor=0

# Without copies all nodes restart from the last checkpoint.
for node in 0 1; do start again $node --max_restarts=1 --checkpoint_every=10; done
await_steps again 25
kill -9 "$(rank_of again 1)"
for node in 0 1; do expect_code again $node 0; done
expect_same again 0
expect_line again.err0 "node 1: rank 1 (pid [0-9]*) was killed by SIGKILL.*; restart 1 of 1"

# A signal to any node ends all of them.
for node in 0 1; do start interrupt $node $copies --steps=20000; done
await_steps interrupt 5
kill -INT ${nodes[1]}
expect_code interrupt 1 130
expect_code interrupt 0 1
expect_line interrupt.err0 "^train: node 1: ended by SIGINT"
expect_clean interrupt
for node in 0 1; do start preempt $node --steps=20000; done
await_steps preempt 5
kill -TERM ${nodes[1]}
for node in 0 1; do expect_code preempt $node 143; done
expect_line preempt.err0 "^train: ended by SIG[A-Z1]* after the checkpoint .*step-"
expect_clean preempt

# Bad usage.
refuse() {
  "$train" $common "$@" >out 2>err
  [ $? = 2 ] && [ "$(wc -l <err)" = 1 ] && [ ! -e refused ] || fail "$*: $(cat err)"
}
nodes2="--nnodes=2 --run_dir=refused --master_addr=127.0.0.1"
refuse $nodes2 --node_rank=2
refuse $nodes2 --node_rank=-1
refuse $nodes2 --mesh=dp3 --batch=9
refuse $nodes2 --engine=shared_memory
refuse $nodes2 --master_addr=
refuse --nnodes=2 --master_addr=127.0.0.1
refuse --nnodes=0
TESSERA_JOB_SECRET='' refuse $nodes2
start twice 0 --steps=20000
start twice 1 --steps=20000
await_steps twice 5
second=${nodes[1]}
start twice 1
expect_code twice 1 1
expect_line twice.err1 "node 1 of the run .* is already running"
kill -INT ${nodes[0]}
expect_code twice 0 130
wait $second
expect_clean twice

[ $failures = 0 ] && echo PASSED
exit $failures
