#!/bin/bash
# Tests what every tool shares: bazel run's directory, limits of file size, closed descriptors, links and pipes.
set -uo pipefail
schedule=$PWD/$1 mesh=$PWD/$2 launch=$PWD/$3 tokenize=$PWD/$4
cd "$TEST_TMPDIR"
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
few=(--schedule=1f1b --stages=2 --microbatches=4)
many=(--schedule=1f1b --stages=8 --microbatches=64)

# Relative paths of a program that bazel run starts, and of its children.
mkdir user runfiles
cd runfiles
export BUILD_WORKING_DIRECTORY=$TEST_TMPDIR/user
"$schedule" "${few[@]}" --quiet --svg=a.svg --trace=a.json || fail "schedule in bazel run"
"$mesh" --svg=m.svg >/dev/null || fail "mesh in bazel run"
"$launch" --output=./logs -- sh -c 'echo "$(pwd) ${BUILD_WORKING_DIRECTORY-unset}"' || fail "launch in bazel run"
mkdir ../user/below
"$launch" --output=raw -- sh -c 'cd below && exec "$0" --svg=m.svg' "$mesh" >/dev/null || fail "a tool in another directory"
BUILD_WORKING_DIRECTORY=/missing "$mesh" >/dev/null 2>err
[ $? = 1 ] && [ "$(wc -l <err)" = 1 ] && grep -q "BUILD_WORKING_DIRECTORY=/missing" err || fail "a missing directory: $(cat err)"
rm err
unset BUILD_WORKING_DIRECTORY
cd ..
[ -z "$(ls runfiles)" ] || fail "in the runfiles: $(ls runfiles)"
[ "$(cat user/logs/rank0.log)" = "$TEST_TMPDIR/user unset" ] || fail "a rank: $(cat user/logs/rank0.log)"
for file in a.svg a.json m.svg below/m.svg; do [ -s user/$file ] || fail "there is no $file"; done

# A limit of file size: one line, exit code 1, and nothing left.
mkdir limited
head -c 300000 /dev/urandom | base64 >text
(ulimit -f 4; exec "$schedule" "${many[@]}" --quiet --svg=limited/s.svg) 2>err
[ $? = 1 ] && [ "$(wc -l <err)" = 1 ] && grep -q "File too large" err || fail "schedule --svg: $(cat err)"
(ulimit -f 128; exec "$tokenize" --data=text --output=limited/set --quiet) 2>err >/dev/null
[ $? = 1 ] && [ "$(wc -l <err)" = 1 ] && grep -q "File too large" err || fail "tokenize: $(cat err)"
[ -z "$(ls limited)" ] || fail "left behind: $(ls limited)"
# Ranks have the actions of signals that a shell gives them.
for signal in PIPE XFSZ; do
  "$launch" -- sh -c "kill -$signal \$\$" 2>err
  [ $? = 1 ] && grep -q "was killed by SIG$signal" err || fail "a rank ignores SIG$signal: $(cat err)"
done

# Closed descriptors: output is lost, but in no file.
"$schedule" "${few[@]}" --svg=closed.svg >&- 2>err
[ $? = 1 ] && grep -q "cannot write to standard output" err || fail "a closed standard output: $(cat err)"
"$schedule" "${few[@]}" --svg=none.svg >&- 2>&- <&-
[ $? = 1 ] || fail "no descriptors"
"$schedule" "${few[@]}" --quiet --svg=open.svg >/dev/null
for file in closed none; do cmp -s open.svg $file.svg || fail "$file.svg has other output"; done
"$tokenize" --data=text --output=set --quiet <&- 2>&- >out || fail "tokenize without standard input and error"
"$tokenize" --data=text --output=again --quiet >out || fail "tokenize"
cmp -s set.bin again.bin && cmp -s set.idx again.idx || fail "the data set has other output"

# A reader that leaves early gets no complaint, and files are complete.
{ "$schedule" "${many[@]}" --format=csv --svg=piped.svg 2>err; echo $? >code; } | head -1 >line
[ "$(cat code)" = 0 ] || [ "$(cat code)" = 1 ] || fail "a closed pipe: $(cat code)"
[ ! -s err ] && [ "$(wc -l <line)" = 1 ] || fail "a closed pipe: $(cat err)"
"$schedule" "${many[@]}" --quiet --svg=open.svg >/dev/null
cmp -s open.svg piped.svg || fail "piped.svg is not complete"
{ sleep 0.2; "$schedule" "${many[@]}" 2>err; echo $? >code; } | true
[ "$(cat code)" = 1 ] && [ ! -s err ] || fail "a pipe without a reader: $(cat code err)"

# Links, pipes and standard output as outputs.
mkdir target && ln -s target/new.svg link.svg
"$schedule" "${few[@]}" --quiet --svg=link.svg && [ -L link.svg ] && [ -s target/new.svg ] || fail "a link"
mkfifo pipe
timeout 20 cat pipe >from_pipe &
"$mesh" --svg=pipe >/dev/null || fail "a pipe"
wait $!
"$mesh" --svg=picture.svg >/dev/null
cmp -s picture.svg from_pipe && [ -p pipe ] || fail "the pipe's bytes"
"$mesh" >text
"$mesh" --svg=/dev/stdout >out || fail "/dev/stdout"
[ "$(wc -c <out)" = "$(cat text picture.svg | wc -c)" ] || fail "/dev/stdout: $(wc -c out text picture.svg)"
"$mesh" --svg=/dev/stdout | grep "<svg" >/dev/null || fail "/dev/stdout is a pipe"
exit $((failures > 0))
