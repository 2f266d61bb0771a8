#!/bin/bash
# Tests the command line: output, exit codes, one line on bad usage, and no process left behind.
set -uo pipefail
bench=$PWD/$1
cd "$TEST_TMPDIR"
export XDG_CACHE_HOME=$TEST_TMPDIR
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
small="-b 8 -e 4K -f 8 -n 3 -w 1"

header=engine,algorithm,op,dtype,world,bytes,iterations,time_us,algbw_GBps,busbw_GBps,ratio,count,redop,root,wrong
header=$header,in_place_time_us,in_place_algbw_GBps,in_place_busbw_GBps
"$bench" $small --engine=shared_memory,in_process --np=2,3 --format=csv >out.csv 2>err.txt || fail "csv: $(cat err.txt)"
[ "$(head -1 out.csv)" = $header ] || fail "header: $(head -1 out.csv)"
[ "$(wc -l <out.csv)" = 17 ] || fail "lines: $(cat out.csv)"
[ ! -s err.txt ] || fail "on stderr: $(cat err.txt)"
grep -q '^in_process,engine,all_reduce,f32,3,4096,3,' out.csv || fail "rows: $(cat out.csv)"

"$bench" $small --engine=in_process --op=all_gather,barrier --algorithm=engine,ring --format=json >out.json || fail json
python3 - <<'END' || fail "the JSON is not what it should be"
import json
document = json.load(open("out.json"))
rows = document["rows"]
assert len(rows) == 9, rows
assert {row["algorithm"] for row in rows} == {"engine", "ring"}, rows
assert all(row["time_us"] > 0 for row in rows)
assert rows[0]["ratio"] == 1 and rows[0]["in_place_time_us"] > 0
END

"$bench" $small --engine=in_process -t 2 -g 2 >out.txt || fail text
grep -q "^# all_reduce, 4 ranks" out.txt || fail "no heading: $(cat out.txt)"
[ "$(grep -c '^ .* f32 .* sum .* in_process, engine$' out.txt)" = 4 ] || fail "text: $(cat out.txt)"

"$bench" $small -f 512 --device=emulated --np=2,3 --op=all -d f32,bf16 --format=csv >out.csv 2>err.txt || fail "emulated: $(cat err.txt)"
[ ! -s err.txt ] || fail "on stderr: $(cat err.txt)"
python3 - <<'END' || fail "the CSV of a device is not what it should be: $(cat out.csv)"
import csv
rows = list(csv.DictReader(open("out.csv")))
assert {row["op"] for row in rows} >= {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier"}, rows
assert {(row["engine"], row["algorithm"]) for row in rows} == {("emulated", "engine")}, rows
assert all(float(row["time_us"]) > 0 for row in rows)
assert all(float(row["busbw_GBps"]) > 0 for row in rows if row["op"] == "all_reduce" and int(row["bytes"]) > 64), rows
END
# A machine without a GPU, also on one that has some.
for engine in cuda nccl; do
  CUDA_VISIBLE_DEVICES= "$bench" $small --device=cuda --engine=$engine >out 2>err
  [ $? = 1 ] || fail "--engine=$engine without a GPU is a failed run"
  [ ! -s out ] || fail "--engine=$engine without a GPU printed on stdout"
  [ "$(wc -l <err)" = 1 ] || fail "--engine=$engine without a GPU printed $(wc -l <err) lines: $(cat err)"
  grep -q "engine $engine" err || fail "the message does not name the engine: $(cat err)"
done

expect_usage_error() {
  "$bench" "$@" >out 2>err
  local code=$?
  [ $code = 2 ] || fail "$* exits with $code, not 2: $(cat err)"
  [ ! -s out ] || fail "$* printed on stdout"
  [ "$(wc -l <err)" = 1 ] || fail "$* printed $(wc -l <err) lines on stderr"
  grep -q -- "for example: ./bazelw run //tools/comm_bench -- -b 8" err || fail "$* gave no example: $(cat err)"
}
for bad in --np=0 --np= --np=x --engine=tin_cans --op=send --algorithm=rings --dtype=f31 --factor=-1 --root=2 -g=99 -G=1 \
    --min_bytes=1G --iterations=-1 --reduction=mean --format=yaml --unknown=1 word -b; do
  expect_usage_error "$bad"
  [ "$bad" = word ] || [ "${bad#--}" = "$bad" ] || grep -qF -- "${bad%%=*}" err || fail "$bad is not named: $(cat err)"
done

# The flags of nccl-tests.
"$bench" -b 0 -e 32 -i 16 -n 3 -w 1 -g 2 -t 1 -z 1 -c 1 -r 1 --op=all --engine=shared_memory,in_process --format=csv \
  >out.csv 2>err.txt || fail "from 0 bytes: $(cat err.txt)"
for op in all_reduce broadcast reduce reduce_scatter all_gather all_to_all gather scatter; do
  for bytes in 0 16 32; do grep -q "^shared_memory,engine,$op,f32,2,$bytes,3," out.csv || fail "$op of $bytes: $(cat out.csv)"; done
done
"$bench" --minbytes=1K --maxbytes=1K --iters=2 --warmup_iters=0 -d all -o all --op=all_reduce,all_gather --engine=in_process \
  --format=csv >out.csv 2>err.txt || fail "all types: $(cat err.txt)"
for row in all_reduce,f32:sum all_reduce,u8:bit_and all_reduce,bf16:scaled_sum all_gather,fp8_e4m3:none; do
  [ "$(grep -c "^in_process,engine,${row%:*},.*,${row#*:}," out.csv)" = 1 ] || fail "no $row: $(cat out.csv)"
done
! grep -q ",f32,.*,bit_and," out.csv || fail "bits of f32"
expect_usage_error --device=gpu
expect_usage_error --device=emulated --engine=nccl
expect_usage_error --engine=cuda
expect_usage_error --device=emulated --engine=cuda
expect_usage_error --device=cuda --engine=shared_memory
expect_usage_error --device=cuda --registered
expect_usage_error --device=emulated --algorithm=ring
"$bench" $small --engine=in_process >/dev/full 2>err
[ $? = 1 ] || fail "a full standard output is a failed run"
"$bench" --help | grep -q "above 1 is slower than the first" || fail "--help does not say what ratio is"

# If the benchmark is killed by SIGKILL, its workers end too.
workers() { grep -lz -- '--comm_bench_worke[r]=' /proc/[0-9]*/cmdline 2>/dev/null | wc -l; }
"$bench" -b 1M -e 1M -n 100000 --engine=shared_memory,in_process --np=2 >/dev/null 2>&1 &
for _ in $(seq 100); do [ "$(workers)" -ge 2 ] && break; sleep 0.1; done
[ "$(workers)" -ge 2 ] || fail "no workers were started"
kill -9 $!
wait $! 2>/dev/null
for _ in $(seq 100); do [ "$(workers)" = 0 ] && break; sleep 0.1; done
[ "$(workers)" = 0 ] || fail "workers outlive the benchmark"
exit $((failures > 0))
