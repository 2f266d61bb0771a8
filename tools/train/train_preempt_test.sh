#!/bin/bash
# Tests runs that are asked to end: by a signal to the command, to one rank or to a launcher, and by --time_limit. They exit
# with 143, lose no step, leave no process, and the command that they print continues them to the same weights.
set -uo pipefail
train=$PWD/$1 launch=$PWD/$2
source tools/train/testing/tiny_model.sh
tiny="--model=$PWD/model --data=$PWD/text.txt --length=32 --batch=8 --strategy=all_reduce --sample_tokens=0 --mesh=dp2,pp2
  --steps=100 --checkpoint_every=25"

# The processes with an argument that contains $1: the ranks of a run directory. (grep does not match its own arguments.)
ranks_of() { grep -lz -- "$PWD/$1/[.]ranks" /proc/[0-9]*/cmdline 2>/dev/null | grep -o '[0-9]*'; }
launched_ranks_of() { grep -lz -- "--run_dir=$PWD/$1\$" /proc/[0-9]*/cmdline 2>/dev/null | grep -o '[0-9]*' | grep -vx "$pid"; }
steps_in() { wc -l 2>/dev/null <"$1/metrics.jsonl" || echo 0; }
# Starts a command in the background and waits until run directory $1 has $2 steps.
start() {
  local run=$1 steps=$2
  shift 2
  env --default-signal "$@" >out 2>err &
  pid=$!
  while [ "$(steps_in "$run")" -lt "$steps" ] && kill -0 $pid 2>/dev/null; do sleep 0.02; done
}
# The run has ended with 143, and one line on stderr matches $2.
expect_end() {
  local run=$1 line=$2
  wait $pid
  local code=$?
  [ $code = 143 ] || fail "$run exits with $code: $(cat err)"
  [ "$(grep -c "^train: $line" err)" = 1 ] || fail "$run does not print \"$line\": $(cat err)"
  [ -z "$(ranks_of "$run")$(launched_ranks_of "$run")" ] || fail "$run: ranks are left"
  ls "$run"/checkpoints/*.writing >/dev/null 2>&1 && fail "$run: half a checkpoint is left"
}
last_checkpoint() { ls -d "$1"/checkpoints/step-* | tail -n 1; }
# The last checkpoint is of the last step.
expect_nothing_lost() {
  local saved
  saved=$(last_checkpoint "$1" | grep -o '[1-9][0-9]*$')
  [ "$saved" = "$(steps_in "$1")" ] && [ "$saved" -lt 100 ] || fail "$1: step $saved of $(steps_in "$1") is saved"
}
# Runs the command that the run printed, which reaches the weights and losses of an undisturbed run.
expect_continues() {
  local command file
  command=$(sed -n 's/^train: .*; continue with: //p' err)
  $command >out 2>err || fail "$1, continued by \"$command\": $(cat err)"
  for file in calm/checkpoints/step-00000100/*.state; do
    cmp "$file" "$1/${file#calm/}" || fail "$1 has other weights"
  done
  [ "$(grep -o '"step":[^,]*,\|"loss":[^,}]*' calm/metrics.jsonl)" = "$(grep -o '"step":[^,]*,\|"loss":[^,}]*' "$1/metrics.jsonl")" ] ||
    fail "$1 has other losses"
}
saved_by() { echo "ended by $2 after the checkpoint $PWD/$1/checkpoints/step-"; }
lost() { echo "ended by SIGTERM before a checkpoint was complete (--grace_period=$2), the steps after $PWD/$1/.* are lost"; }

"$train" $tiny --run_dir=calm >out 2>err || fail "calm: $(cat err)"

# A signal to the command, whose ranks are processes or threads, and to only one rank, which is not restarted.
for engine in shared_memory in_process; do
  start $engine 3 "$train" $tiny --engine=$engine --run_dir=$engine
  kill -TERM $pid
  expect_end $engine "$(saved_by $engine SIGTERM)"
  expect_nothing_lost $engine
  expect_continues $engine
  start one_$engine 3 "$train" $tiny --engine=$engine --max_restarts=2 --run_dir=one_$engine
  kill -TERM "$(ranks_of one_$engine | shuf -n 1)"
  expect_end one_$engine "$(saved_by one_$engine SIGTERM)"
  grep -q "restart" err && fail "one_$engine: $(cat err)"
  expect_nothing_lost one_$engine
done
start user 3 "$train" $tiny --run_dir=user
kill -USR1 $pid
expect_end user "$(saved_by user SIGUSR1)"
expect_continues user
start limited 1 "$train" $tiny --steps=1000000 --run_dir=limited --time_limit=62s --grace_period=60s
expect_end limited "$(saved_by limited --time_limit)"

# Ranks that another launcher started.
for target in launcher rank; do
  start $target 3 "$launch" --np=4 --grace=60s --output=raw -- "$train" $tiny --run_dir="$PWD/$target"
  victim=$pid
  [ $target = rank ] && victim=$(launched_ranks_of rank | shuf -n 1)
  kill -TERM "$victim"
  expect_end $target "$(saved_by $target SIGTERM)"
  expect_nothing_lost $target
done

# A run that cannot end, because a rank is stopped: after the grace period, or a second SIGTERM, the checkpoint before it
# remains.
for grace in 1s 1h; do
  start stuck_$grace 27 "$train" $tiny --run_dir=stuck_$grace --grace_period=$grace
  ranks=($(ranks_of stuck_$grace))
  kill -STOP "${ranks[0]}"
  kill -TERM "${ranks[1]}"
  if [ $grace = 1h ]; then sleep 1.5; kill -TERM "${ranks[1]}"; fi
  expect_end stuck_$grace "$(lost stuck_$grace $grace)"
  [ "$(last_checkpoint stuck_$grace)" = stuck_$grace/checkpoints/step-00000025 ] || fail "stuck_$grace: $(ls stuck_$grace/checkpoints)"
done
expect_continues stuck_1h
# A second SIGTERM to the command, in a step that takes seconds.
start slow 1 "$train" $tiny --mesh=dp1 --batch=2048 --run_dir=slow --grace_period=1h
kill -TERM $pid
sleep 0.3
kill -TERM $pid
expect_end slow "ended by SIGTERM before a checkpoint was complete (--grace_period=1h), all steps are lost"
# Before the first step there is nothing to save.
env --default-signal "$train" $tiny --run_dir=early >out 2>err &
pid=$!
while [ -z "$(ranks_of early)" ] && kill -0 $pid; do sleep 0.02; done
kill -TERM $pid
expect_end early "ended by SIGTERM"

"$train" $tiny --steps=20 --checkpoint_every=2 --run_dir=warned --grace_period=1ms >out 2>err || fail "warned: $(cat err)"
[ "$(grep -c "^train: a checkpoint takes .* longer than --grace_period=1ms; " err)" = 1 ] || fail "no warning: $(cat err)"
for bad in --grace_period=0 --grace_period=30 --time_limit=soon --time_limit=1-24 --time_limit=30s --time_limit=inf; do
  "$train" $tiny --run_dir=never $bad >out 2>err
  [ $? = 2 ] && [ "$(wc -l <err)" = 1 ] && grep -q -- "^train: $bad: must be .*, such as" err || fail "$bad: $(cat err)"
done
exit $((failures > 0))
