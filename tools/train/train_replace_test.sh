#!/bin/bash
# Tests runs that lose ranks while they have copies of the state in memory: the other ranks stay, a new process replaces the lost
# one, and the weights and losses are those of an undisturbed run.
set -uo pipefail
train=$PWD/$1
preload=$PWD/$2
source tools/train/testing/tiny_model.sh
steps=40
tiny="--model=$PWD/model --data=$PWD/text.txt --length=32 --batch=8 --strategy=all_reduce --sample_tokens=0 --mesh=dp2,tp2
  --steps=$steps"

# The processes of the ranks of run directory $1, and the process of its rank $2. (grep does not match its own arguments.)
ranks_of() { grep -lz -- "$PWD/$1/[.]ranks" /proc/[0-9]*/cmdline 2>/dev/null | grep -o '[0-9]*'; }
rank_of() {
  local process
  for process in $(ranks_of "$1"); do grep -qz "^RANK=$2\$" "/proc/$process/environ" 2>/dev/null && echo "$process"; done
}
steps_in() { wc -l 2>/dev/null <"$1/metrics.jsonl" || echo 0; }
await_steps() { while [ "$(steps_in "$1")" -lt "$2" ] && kill -0 $pid 2>/dev/null; do sleep 0.02; done; }
# Starts run $1 with further flags, and waits until it has 5 steps.
start() {
  local run=$1
  shift
  env --default-signal "$train" $tiny --snapshot_every=1 --run_dir="$run" "$@" >out 2>err &
  pid=$!
  await_steps "$run" 5
}
# Run $1 has ended well, after $2 lines that match $3, with the weights and losses of the undisturbed run.
expect_same() {
  local file
  wait $pid || fail "$1 exits with $?: $(cat err)"
  [ "$(grep -c "^train: $3" err)" = "$2" ] || fail "$1 does not print \"$3\" $2 times: $(cat err)"
  for file in calm/checkpoints/step-000000$steps/*.state; do
    cmp "$file" "$1/${file#calm/}" || fail "$1 has other weights"
  done
  [ "$(grep -o '"step":[^,]*,\|"loss":[^,}]*' calm/metrics.jsonl)" = "$(grep -o '"step":[^,]*,\|"loss":[^,}]*' "$1/metrics.jsonl")" ] ||
    fail "$1 has other losses"
  expect_clean "$1"
}
expect_clean() {
  [ -z "$(ranks_of "$1")" ] || fail "$1: ranks are left"
  [ ! -e "$1/.ranks" ] || fail "$1: files are left"
}

"$train" $tiny --run_dir=calm >out 2>err || fail "calm: $(cat err)"

# Any rank, rank 0 included, which keeps the rendezvous and the outputs. The others keep their processes.
for victim in 0 3; do
  start kill$victim --max_restarts=2
  kept=$(ranks_of kill$victim | grep -vx "$(rank_of kill$victim $victim)")
  kill -9 "$(rank_of kill$victim $victim)"
  await_steps kill$victim 20
  for process in $kept; do
    ranks_of kill$victim | grep -qx "$process" || fail "kill$victim: process $process has ended"
  done
  expect_same kill$victim 1 "rank $victim (pid [0-9]*) was killed by SIGKILL after [0-9.]* s; replaced, 1 of 2"
  grep -q "^train: continues after step [0-9]* from copies in memory" err || fail "kill$victim: $(cat err)"
done

# One rank after the other, also the one that is already a replacement; over Gloo; copies every few steps.
start twice --max_restarts=3 --snapshot_every=4
kill -9 "$(rank_of twice 2)"
await_steps twice 15
kill -9 "$(rank_of twice 2)"
await_steps twice 25
kill -9 "$(rank_of twice 1)"
expect_same twice 3 "rank [12] (pid [0-9]*) was killed by SIGKILL"
start gloo --max_restarts=1 --engine=gloo
kill -9 "$(rank_of gloo 1)"
expect_same gloo 1 "continues after step [0-9]* from copies in memory"

# The number of steps between copies is measured once, and the replacement of a rank goes on with it.
start measured --max_restarts=1 --snapshot_every=auto --mtbf=1h --steps=$steps
await_steps measured 25
kill -9 "$(rank_of measured 1)"
expect_same measured 1 "copies in memory after every [0-9 ]*steps\?: a copy takes [0-9.]* ms, a step [0-9.]* ms, and a failure is expected every 15m"
grep -q "^train: continues after step [0-9]* from copies in memory" err || fail "measured: $(cat err)"
grep -q "^copies     after every [0-9 ]*steps\?: a copy takes" out || fail "measured: $(cat out)"

# A rank together with the one that holds its copy: the last checkpoint, and without one the beginning.
start both --max_restarts=2 --checkpoint_every=3
kill -9 "$(rank_of both 1)" "$(rank_of both 2)"
expect_same both 1 "copies in memory were lost; continues from $PWD/both/checkpoints/step-"
start beginning --max_restarts=2
kill -9 "$(rank_of beginning 1)" "$(rank_of beginning 2)"
expect_same beginning 1 "copies in memory were lost; continues from the beginning"

# A rank that is stopped, or does not answer, is named, killed and replaced.
start stopped --max_restarts=1 --hang_timeout=1s
kill -STOP "$(rank_of stopped 1)"
expect_same stopped 1 "rank 1 has been stopped for 1s (--hang_timeout); killed"
grep -q "^train: rank 1 .* was killed by SIGKILL .*; replaced, 1 of 1" err || fail "stopped: $(cat err)"
start silent --max_restarts=1 --timeout_seconds=2 --hang_timeout=1h
kill -STOP "$(rank_of silent 1)"
expect_same silent 1 "rank 1 has not answered for 2s (--timeout_seconds) while others wait for it; killed"

# A disk that is full for one checkpoint, and a clock that jumps, disturb nobody.
export LD_PRELOAD=$preload TESSERA_TEST_DISK=$PWD/full TESSERA_TEST_CLOCK=$PWD/jump
start disk --max_restarts=3 --checkpoint_every=2 --keep_checkpoints=1
echo 28 >full
echo 3600 >jump
continues="^train: the run continues: checkpoint of step [0-9]* was not written; .*/disk/checkpoints/step-.*No space left"
while ! grep -q "$continues" err && kill -0 $pid 2>/dev/null; do sleep 0.02; done
rm full jump
expect_same disk 0 "copies in memory were lost"
grep -q "$continues" err || fail "disk: $(cat err)"
unset LD_PRELOAD

# No more replacements than allowed; what a signal does after one.
start once --max_restarts=1
kill -9 "$(rank_of once 3)"
await_steps once 15
kill -9 "$(rank_of once 3)"
wait $pid
[ $? = 1 ] && grep -q "^train: rank 3 (pid .* was killed by SIGKILL.*; after 1 restart" err || fail "once: $(cat err)"
expect_clean once
start signal --max_restarts=1 --steps=2000
kill -9 "$(rank_of signal 0)"
await_steps signal 15
kill -TERM $pid
wait $pid
[ $? = 143 ] && grep -q "^train: ended by SIGTERM after the checkpoint" err || fail "signal: $(cat err)"
expect_clean signal

[ $failures = 0 ] && echo PASSED
exit $failures
