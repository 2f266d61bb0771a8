#!/bin/bash
# Tests the command line: output, exit codes, one line on bad usage, and that files are complete or absent.
set -uo pipefail
schedule=$PWD/$1
cd "$TEST_TMPDIR"
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

# The documented example.
"$schedule" --schedule=1f1b --stages=4 --microbatches=8 --format=csv >1f1b.csv || fail "csv"
[ "$(head -1 1f1b.csv)" = 0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7 ] || fail "csv: $(cat 1f1b.csv)"
"$schedule" --schedule=zb_1p --stages=8 --microbatches=24 --times=18.522,18.086,9.337,0.601 \
  --memory=201216,-127488,-73728 --memory_limit=1609728 --format=json >zb_1p.json 2>err || fail "json: $(cat err)"
python3 - <<'END' || fail "the JSON is not what it should be"
import json
document = json.load(open("zb_1p.json"))
f, i, w = 18.522, 18.086, 9.337
assert document["schedule"] == "zb_1p" and document["stages"] == 8 and document["microbatches"] == 24
assert document["valid"] is True and document["unit"] == "ms"
assert len(document["ranks"]) == 8 and all(len(rank) == 72 for rank in document["ranks"])
assert abs(document["bubble_rate"] - (1 - 24 * (f + i + w) / document["longest_stage"])) < 1e-9
assert document["bubble_rate"] < 0.15855
assert document["lower_bound"] <= document["longest_stage"] <= document["makespan"]
assert len(document["peak_memory"]) == 8 and max(document["peak_memory"]) <= 1609728
END

# Every output can be read back.
for name in 1f1b interleaved_1f1b zb_v dualpipe auto; do
  for lowered in --lowered --nolowered; do
    "$schedule" --schedule=$name $lowered --format=csv >first.csv || fail "$name"
    "$schedule" --input=first.csv --format=csv >second.csv || fail "$name from CSV"
    cmp -s first.csv second.csv || fail "$name $lowered is another schedule when read as CSV"
    "$schedule" --schedule=$name $lowered --format=json >first.json || fail "$name"
    "$schedule" --input=first.json --format=csv >second.csv || fail "$name from JSON"
    cmp -s first.csv second.csv || fail "$name $lowered is another schedule when read as JSON"
  done
done
grep -q SEND_F second.csv && fail "--nolowered has messages"

# Times and memory of each stage from a file.
printf '1,1,1,0.1\n2,2,2,0.1\n# last\n1,1,1,0.1,5,-2,-3\n1,1,1\n' >times.csv
"$schedule" --times=times.csv --format=json | python3 -c '
import json, sys
document = json.load(sys.stdin)
assert document["longest_stage"] >= 8 * 6 and document["peak_memory"][2] == 10, document' || fail "a file of times"
"$schedule" --times=times.csv --stages=5 >/dev/null 2>err
[ $? = 2 ] && grep -q -- "--times=times.csv" err || fail "times of 4 stages for 5"

# Several in a table.
"$schedule" --schedule=gpipe,1f1b,zb_h1,auto --input=1f1b.csv --format=csv >table.csv || fail "compare"
[ "$(wc -l <table.csv)" = 6 ] || fail "table: $(cat table.csv)"
"$schedule" --schedule=gpipe,1f1b | grep -q '^gpipe ' || fail "table as text"

# Pictures.
"$schedule" --schedule=1f1b,zb_h2,dualpipe --svg=picture.svg --trace=trace.json --quiet >out 2>err || fail "--svg --trace"
[ ! -s out ] && [ ! -s err ] || fail "--quiet printed $(cat out err)"
python3 - <<'END' || fail "the picture or the trace is not what it should be"
import json, xml.etree.ElementTree as tree
root = tree.parse("picture.svg").getroot()
titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text") if element.get("class") == "title"]
assert titles == ["1f1b", "zb_h2", "dualpipe"], titles
events = json.load(open("trace.json"))["traceEvents"]
assert {event["pid"] for event in events} == {0, 1, 2}
assert sum(event["ph"] == "X" and event["pid"] == 0 for event in events) == 64
END
"$schedule" --colour --width=120 | grep -q $'\x1b' || fail "--colour"
"$schedule" --svg=missing/picture.svg >/dev/null 2>err
[ $? = 1 ] && grep -q "missing/picture.svg" err || fail "an unwritable picture is a failed run"
"$schedule" --trace=missing/trace.json >/dev/null 2>err
[ $? = 1 ] && grep -q "missing/trace.json" err || fail "an unwritable trace is a failed run"

# Invalid schedules exit with 1 and the reason.
printf '0F0,0B0\n1B0,1F0\n' >wrong.csv
"$schedule" --input=wrong.csv >out 2>err
[ $? = 1 ] || fail "a wrong schedule exits with another code"
grep -q "not valid: rank 1, action 0 (1B0)" out || fail "text of a wrong schedule: $(cat out)"
[ "$(wc -l <err)" = 1 ] || fail "on stderr: $(cat err)"
"$schedule" --input=wrong.csv --format=json >out 2>err
[ $? = 1 ] || fail "a wrong schedule as JSON exits with another code"
python3 -c 'import json; d = json.load(open("out")); assert d["valid"] is False and "1B0" in d["error"], d' || fail "JSON of a wrong schedule"
echo nonsense >nonsense.csv
"$schedule" --input=nonsense.csv --format=json >out 2>err
[ $? = 1 ] || fail "a file without a schedule exits with another code"
python3 -c 'import json; d = json.load(open("out")); assert d["valid"] is False and d["error"], d' || fail "JSON of no schedule"
"$schedule" --input=missing.csv >out 2>err
[ $? = 1 ] && [ ! -s out ] && grep -q "missing.csv" err || fail "a missing file"

expect_usage_error() {
  "$schedule" "$@" >out 2>err
  local code=$?
  [ $code = 2 ] || fail "$* exits with $code, not 2"
  [ ! -s out ] || fail "$* printed on stdout"
  [ "$(wc -l <err)" = 1 ] || fail "$* printed $(wc -l <err) lines on stderr"
  grep -q -- "for example: ./bazelw run //tools/schedule -- --schedule=" err || fail "$* gave no example"
  grep -qF -- "${1%%=*}" err || fail "$* did not name ${1%%=*}: $(cat err)"
}
for bad in --schedule=x --schedule=1f1b, --stages=0 --stages=x --stages=5000 --microbatches=0 --microbatches=99999999 \
    --chunks=-1 --chunks=2 --times= --times=1 --times=1,2,-3 --times=1,2,nan --times_of=x --memory=1 --memory=a,b,c \
    --memory_limit=-1 --latency=-1 --bandwidth=-1 --bandwidth=nan --activation_bytes=-1 --optimizer=inf --width=3 \
    --format=yaml --unknown=1 word; do
  expect_usage_error "$bad"
done
expect_usage_error --stages=3 --input=1f1b.csv
expect_usage_error --schedule=dualpipe --stages=3
"$schedule" --help | grep -q -- --memory_limit || fail "--help"
"$schedule" >/dev/full 2>err
[ $? = 1 ] || fail "a full standard output is a failed run"
exit $((failures > 0))
