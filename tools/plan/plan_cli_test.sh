#!/bin/bash
# Tests the command line: output, exit codes, and one line on bad usage.
set -uo pipefail
plan=$PWD/$1
cd "$TEST_TMPDIR"
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
small="--model=llama-1m --cluster=hosts=2,cpus=4 --memory=2GB --batch=16 --length=64 --dtype=fp32"

"$plan" $small >text 2>err || fail "text: $(cat err)"
grep -q "bazel run //tools/train -- --model=llama-1m --mesh=" text || fail "no command: $(cat text)"
grep -q "^assumed:" text || fail "no assumptions"
"$plan" $small --format=json >json 2>err || fail "json: $(cat err)"
"$plan" $small --format=csv >csv 2>err || fail "csv: $(cat err)"
python3 - <<'END' || fail "the JSON or CSV is not what it should be"
import csv, json
document = json.load(open("json"))
plans = document["plans"]
assert document["ranks"] == 8 and 1 <= len(plans) <= 5
times = [plan["step_seconds"] for plan in plans]
assert times == sorted(times) and times[0] > 0
for plan in plans:
    assert plan["dp"] * plan["pp"] * plan["cp"] * plan["tp"] == 8
    assert plan["memory_bytes"] <= 2_000_000_000
    assert plan["micro_batches"] * plan["micro_batch"] * plan["dp"] == 16
    parts = plan["pipeline_seconds"] + plan["data_seconds"] + plan["optimizer_seconds"]
    assert abs(parts - plan["step_seconds"]) < 1e-9
rows = list(csv.DictReader(open("csv")))
assert [row["mesh"] for row in rows] == [plan["mesh"] for plan in plans]
END
"$plan" $small --ranks=2 --top=1 --format=csv | tail -n +2 | grep -c . | grep -qx 1 || fail "--top=1"

# Bad usage: one line that names the flag, exit code 2. No plan fits: exit code 1.
refuse() {
  local want=$1 code=$2
  shift 2
  "$plan" "$@" >out 2>err
  local got=$?
  [ $got = "$code" ] || fail "$*: exit code $got, not $code"
  [ ! -s out ] || fail "$*: wrote on stdout"
  grep -q -- "$want" err || fail "$*: $(cat err)"
  [ "$(wc -l <err)" = 1 ] || fail "$*: more than one line: $(cat err)"
}
refuse "--model=llama" 2 --model=llama
refuse "--model=./no" 2 --model=./no
refuse "--cluster=hosts=0" 2 --cluster=hosts=0
refuse "--ranks=9" 2 $small --ranks=9
refuse "--memory=0" 2 --cluster=hosts=1,cpus=4
refuse "--dtype=fp8" 2 $small --dtype=fp8
refuse "--length=1" 2 $small --length=1
refuse "--top=0" 2 $small --top=0
refuse "--efficiency=-0.5" 2 $small --efficiency=-0.5
refuse "--tflops=-1" 2 $small --tflops=-1
refuse "--batch=-1" 2 $small --batch=-1
refuse "--memory=many" 2 $small --memory=many
refuse "--colour" 2 --colour
refuse "no plan fits" 1 $small --memory=1MB
"$plan" --help >help || fail "--help"
grep -q -- "--cluster" help || fail "help does not name --cluster"

[ $failures = 0 ] || exit 1
echo PASSED
