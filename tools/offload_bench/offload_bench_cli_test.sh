#!/bin/bash
# Tests the command line: output, exit codes, one line on bad usage, and no file left behind.
set -uo pipefail
bench=$PWD/$1
cd "$TEST_TMPDIR"
mkdir -p files
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
small="--size=1M -b 64K -e 256K -f 4 --seconds=0 --dir=files"

header=what,name,operation,block_bytes,bytes,turns,time_us,GBps,spread,limit,limit_GBps,limit_spread,share,note
"$bench" $small --format=csv --quiet >out.csv 2>err.txt || fail "csv: $(cat err.txt)"
[ "$(head -1 out.csv)" = $header ] || fail "header: $(head -1 out.csv)"
[ ! -s err.txt ] || fail "on stderr: $(cat err.txt)"
python3 - <<'END' || fail "the CSV is not what it should be"
import csv
rows = list(csv.DictReader(open("out.csv")))
assert [(row["operation"], row["block_bytes"]) for row in rows] == [
    ("put", "65536"), ("get", "65536"), ("put", "262144"), ("get", "262144")], rows
assert all(row["what"] == "file" and float(row["GBps"]) > 0 and 0 < float(row["share"]) for row in rows)
assert all(None not in row for row in rows)
END

"$bench" $small --format=json >out.json 2>err.txt || fail "json: $(cat err.txt)"
[ "$(cat err.txt)" = "offload_bench: measuring files" ] || fail "progress: $(cat err.txt)"
python3 -c 'import json; assert len(json.load(open("out.json"))["measurements"]) == 4' || fail "json: $(cat out.json)"

"$bench" $small >out.txt 2>/dev/null || fail text
grep -q '^file by [a-z_]*  *put .* device ' out.txt || fail "text: $(cat out.txt)"

expect_usage_error() {
  "$bench" "$@" >out 2>err
  local code=$?
  [ $code = 2 ] || fail "$* exits with $code, not 2: $(cat err)"
  [ ! -s out ] || fail "$* printed on stdout"
  [ "$(wc -l <err)" = 1 ] || fail "$* printed $(wc -l <err) lines on stderr"
  grep -q -- "for example: ./bazelw run //tools/offload_bench -- --dir=/scratch" err || fail "$* gave no example: $(cat err)"
}
for bad in --what=codecs --size=1 --size=x --seconds=-1 --dir= --min_bytes=1 --max_bytes=1G \
    --factor=1 --depth=0 --format=yaml --unknown=1 --device=gpu --pcie=1GB/s --layers=0 word -b; do
  expect_usage_error "$bad"
  [ "$bad" = -b ] || [ "$bad" = word ] || grep -qF -- "${bad%%=*}" err || fail "$bad is not named: $(cat err)"
done
"$bench" $small --dir=missing >out 2>err
[ $? = 1 ] || fail "a directory that is not there is a failed run"
grep -q missing err || fail "the message does not name the directory: $(cat err)"
"$bench" $small >/dev/full 2>err
[ $? = 1 ] || fail "a full standard output is a failed run"
"$bench" --help | tr -s "\n " " " | grep -q "1 is as fast as the limit" || fail "--help does not say what share is"

"$bench" --device=emulated --layers=4 --format=csv >out.csv 2>err.txt || fail "emulated: $(cat err.txt)"
grep -q "^offload_bench: simulating steps of 4 layers with 50000000 parameters" err.txt || fail "progress: $(cat err.txt)"
python3 - <<'END' || fail "the simulated steps are not what they should be"
import csv
rows = {row["offload"]: row for row in csv.DictReader(open("out.csv"))}
assert list(rows) == ["none", "optimizer", "optimizer, host steps", "optimizer, early steps", "parameters", "both",
                      "both, host steps"], rows
late, early = (float(rows["optimizer, " + when + " steps"]["step_ms"]) for when in ("host", "early"))
assert early < 0.95 * late, rows
assert all(0 < float(row["share"]) <= 1.001 for row in rows.values()), rows
assert float(rows["none"]["uploads_ms"]) == 0 < float(rows["both"]["uploads_ms"]), rows
END
"$bench" --device=emulated --layers=4 --quiet >out.txt 2>err.txt || fail "emulated: $(cat err.txt)"
[ ! -s err.txt ] || fail "on stderr: $(cat err.txt)"
grep -q '^offload  *step ms  *work  *uploads' out.txt || fail "text: $(cat out.txt)"

# Without a GPU: one line. With one: a measurement of each direction.
if "$bench" --device=cuda --size=1M -b 64K -e 64K --seconds=0 --format=csv --quiet >out.csv 2>err; then
  [ "$(wc -l <out.csv)" = 4 ] || fail "copies: $(cat out.csv)"
else
  [ $? = 1 ] || fail "without a GPU the run fails"
  [ "$(wc -l <err)" = 1 ] || fail "without a GPU it printed $(cat err)"
  grep -q "^offload_bench: --device=cuda: " err || fail "without a GPU: $(cat err)"
fi

# If it is interrupted while it has files, it removes them. (Without job control a background process ignores SIGINT.)
set -m
for signal in INT TERM KILL; do
  "$bench" $small --seconds=60 >/dev/null 2>&1 &
  pid=$!
  for _ in $(seq 100); do
    ls -l /proc/$pid/fd 2>/dev/null | grep -q "/files/" && break
    sleep 0.05
  done
  ls -l /proc/$pid/fd 2>/dev/null | grep -q "/files/" || fail "no file was opened"
  kill -$signal $pid
  wait $pid 2>/dev/null && fail "SIG$signal is no success"
  [ -z "$(ls -A files)" ] || fail "after SIG$signal: $(ls -A files)"
done
exit $((failures > 0))
