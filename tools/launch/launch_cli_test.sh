#!/bin/bash
# Tests the command line: exit codes, messages, large output, signals, and that no process is left behind.
set -uo pipefail
launch=$PWD/$1
program=$PWD/$2
readme=$PWD/$3
cd "$TEST_TMPDIR"
export TESSERA_LAUNCH_TEST=cli.$$
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

# Prints the processes with the mark in their environment, except this script's own.
left_behind() {
  local file
  for file in /proc/[0-9]*/environ; do
    if tr '\0' '\n' 2>/dev/null <"$file" | grep -qx "TESSERA_LAUNCH_TEST=cli.$$" &&
        [ "$(tr '\0' ' ' 2>/dev/null <"${file%environ}cmdline" | grep -c rank_program)" != 0 ]; then
      echo "${file//[^0-9]/}"
    fi
  done
}
expect_nothing_left() {
  local i
  for i in $(seq 50); do
    [ -z "$(left_behind)" ] && return
    sleep 0.1
  done
  fail "$*: left $(left_behind)"
}
await_line() {
  local i
  for i in $(seq 100); do
    grep -q -- "$1" "$2" 2>/dev/null && return
    sleep 0.05
  done
  fail "no line $1 in $2"
}

# Bad usage: 2, one line, the flag, an example, and nothing started.
expect_usage_error() {
  local named=$1
  shift
  "$launch" "$@" >out 2>err
  local code=$?
  [ $code = 2 ] || fail "$* exits with $code, not 2"
  [ ! -s out ] || fail "$* printed on stdout"
  [ "$(wc -l <err)" = 1 ] || fail "$* printed $(wc -l <err) lines on stderr"
  grep -qF -- "for example: ./bazelw run //tools/launch -- --np=4 -- " err || fail "$* gave no example"
  grep -qF -- "$named" err || fail "$* did not name $named: $(cat err)"
}
for bad in --np=0 --np=x --np=5000 --nnodes=0 --node_rank=1 --master_port=70000 --timeout=0 --timeout=5 --grace=-1s \
    --output=prefx --bind=socket --colour=red --unknown=1; do
  expect_usage_error "${bad%%=*}" "$bad" -- "$program" say:x
done
expect_usage_error "--bind=core" --np=700 --bind=core -- "$program"
expect_usage_error "no program" --np=2
expect_usage_error "no program" --np=2 --
expect_usage_error "unexpected argument" --np=2 "$program"
expect_usage_error "no-such-program" --np=2 -- no-such-program
expect_usage_error "chmod +x" -- /etc/passwd
expect_usage_error "--master_addr" --nnodes=2 -- "$program"
expect_usage_error "TESSERA_JOB_SECRET" --nnodes=2 --master_addr=head -- "$program"
"$launch" --help | grep -q OMP_NUM_THREADS || fail "--help does not speak of OMP_NUM_THREADS"
"$launch" --help | grep -q -- "--grace=5s" || fail "--help"
for flag in $("$launch" --help | grep -o '^  --[a-z_]*'); do
  grep -q "^| .*\`$flag\`" "$readme" || fail "README.md does not explain $flag"
done

expect_usage_error "such as 500ms" --timeout=soon -- "$program"

# Success and its output.
"$launch" --np 2 -- "$program" say:hello complain:progress >out 2>err || fail "a success is not 0"
[ "$(sort out)" = "$(printf '[0] hello\n[1] hello')" ] || fail "stdout: $(cat out)"
[ "$(sort err)" = "$(printf '[0] progress\n[1] progress')" ] || fail "stderr: $(cat err)"
[ "$("$launch" --colour=always -- "$program" say:x)" = "$(printf '\e[36m[0]\e[0m x')" ] || fail "colour"
[ "$("$launch" --output=raw -- "$program" partial:x | wc -c)" = 1 ] || fail "raw output"
"$launch" --np=2 --output=./logs -- "$program" say:x || fail "log files"
[ "$(cat logs/rank1.log)" = x ] || fail "rank1.log"
"$launch" -- "$program" --help >out 2>&1
grep -qxF "[0] no action: --help" out || fail "--help behind -- is the program's"

# The ranks must not inherit an outer job's variables and sockets.
RANK=7 WORLD_SIZE=9 SLURM_PROCID=4 TESSERA_INHERITED_SOCKETS=3,4 \
  "$launch" --np=3 -- "$program" exchange 2@env:RANK >out || fail "inside an outer job"
grep -qxF "[2] RANK=2" out || fail "an outer job's rank: $(cat out)"
"$launch" --np=2 -- "$launch" --np=2 -- "$program" exchange >out || fail "a launcher in a launcher"
[ "$(sort out)" = "$(printf '[0] [0] met 1\n[1] [0] met 1')" ] || fail "a launcher in a launcher: $(cat out)"
"$launch" --output=raw -- "$program" descriptors >alone
"$launch" --output=raw --np=2 -- "$launch" --output=raw --np=1 -- "$program" descriptors >out
[ "$(sort -u out)" = "$(cat alone)" ] || fail "ranks of a launcher in a launcher have its sockets: $(cat alone out)"
"$launch" --output=raw --np=2 -- "$program" exchange complain:lost say:x <&- 2>&- >out || fail "no standard input"
[ "$(grep -c x out)" = 2 ] || fail "no standard input: $(cat out)"

# torchrun's defaults, which its ranks do not inherit.
PET_NPROC_PER_NODE=3 PET_NNODES=1 PET_NODE_RANK=0 PET_MASTER_ADDR=pod-0 TESSERA_LAUNCHER=none \
  "$launch" --output=raw -- sh -c 'echo $RANK $WORLD_SIZE ${PET_NNODES-unset} ${TESSERA_LAUNCHER-unset}' >out || fail "PET_NPROC_PER_NODE"
[ "$(sort out)" = "$(printf '%s 3 unset unset\n' 0 1 2)" ] || fail "ranks of PET_NPROC_PER_NODE: $(cat out)"
PET_NPROC_PER_NODE=auto "$launch" --output=raw -- sh -c 'echo $WORLD_SIZE' >out && [ "$(cat out)" = 1 ] || fail "auto: $(cat out)"
PET_NNODES=1:3 "$launch" -- true 2>err && fail "elastic range"
grep -q '^launch: PET_NNODES=1:3: expected a whole number; .* --nnodes' err || fail "elastic range: $(cat err)"
PET_NPROC_PER_NODE=gpu PET_NNODES=1:3 "$launch" --np 1 --nnodes=1 -- true || fail "overridden variables"
PET_NPROC_PER_NODE=2 PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=pod-0 PET_MASTER_PORT=23456 TESSERA_JOB_SECRET=0123456789abcdef \
  "$launch" --output=raw --np=1 -- sh -c 'echo $RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT' >out || fail "PET_NNODES"
[ "$(cat out)" = "1 2 pod-0 23456" ] || fail "PET_NNODES: $(cat out)"

# Failure: 1 and one line at the end.
"$launch" --np=3 -- "$program" 1@exit:7 sleep:60000 >out 2>err
[ $? = 1 ] || fail "a failed rank is not 1"
grep -Eqx 'launch: rank 1 \(pid [0-9]+\) exited with code 7 after 0\.[0-9]+ s, the first to fail; all ranks were ended' \
  err || fail "message: $(cat err)"
"$launch" --np=2 -- "$program" 0@die:9 sleep:60000 2>err
[ $? = 1 ] && grep -q "rank 0 (pid [0-9]*) was killed by SIGKILL" err || fail "a killed rank: $(cat err)"
"$launch" --timeout=200ms -- "$program" sleep:60000 2>err
[ $? = 1 ] && grep -qF "rank 0 of 1 still ran after --timeout=200ms" err || fail "timeout: $(cat err)"
"$launch" -- "$program" say:x >/dev/full 2>err
[ $? = 1 ] && grep -q "standard output could not be written" err || fail "a full standard output"
echo "no program" >text && chmod +x text
"$launch" -- ./text 2>err
[ $? = 1 ] && grep -q "rank 0 did not start: cannot execute" err || fail "a text as a program: $(cat err)"
"$launch" --np=4 -- "$program" background:60000 daemon:60000 || fail "background processes"
"$launch" --np=2 -- "$program" lines:100000:100 sleep:60000 2>err | head -1 >/dev/null
expect_nothing_left "failures"

# 32 ranks with 10,000 lines each: all lines arrive, complete and in order.
"$launch" --np=32 -- "$program" lines:10000:40 >out || fail "32 ranks"
python3 - <<'PYTHON' || fail "lines were lost or mixed"
counts = {}
with open("out") as file:
    for line in file:
        rank, _, text = line.rstrip("\n").partition("] ")
        number = counts.get(rank, 0)
        assert text == "%d %s" % (number, "" if number % 2 == 0 else "x" * 40), line
        counts[rank] = number + 1
assert counts == {"[%2d" % rank: 10000 for rank in range(32)}, counts
PYTHON
expect_nothing_left "32 ranks"

# Signals. A background job of a script ignores SIGINT unless told otherwise.
for signal in INT TERM HUP; do
  rm -f out  # Or await_line finds the lines of the run before.
  env --default-signal "$launch" --np=2 -- "$program" say:ready sleep:60000 >out 2>err &
  pid=$!
  await_line '\[0\] ready' out
  await_line '\[1\] ready' out
  kill -$signal $pid
  wait $pid
  code=$?
  [ $code = $((128 + $(kill -l $signal))) ] || fail "SIG$signal gives $code"
  grep -qx "launch: ended by SIG$signal" err || fail "SIG$signal: $(cat err)"
  expect_nothing_left "SIG$signal"
done

# After kill -9 of the launcher no rank is left, not even one that ignores all signals.
rm -f out
"$launch" --np=4 -- "$program" ignore:15 ignore:1 ignore:2 say:ready sleep:60000 >out 2>err &
pid=$!
for rank in 0 1 2 3; do await_line "\[$rank\] ready" out; done
[ "$(left_behind | wc -l)" -ge 4 ] || fail "the ranks are not seen at all"
{ kill -9 $pid; wait $pid; } 2>/dev/null
expect_nothing_left "kill -9"
exit $((failures > 0))
