#!/bin/bash
# Tests the program with all tools: its own usage, and tools that start it again for their ranks.
set -uo pipefail
tessera=$PWD/$1
cd "$TEST_TMPDIR"
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

"$tessera" --help >out 2>err || fail "--help: $(cat err)"
for tool in $(sed "s/.*the tools \(.*\); tessera.*/\1/; s/,//g" out); do
  "$tessera" "$tool" --help >help 2>err || fail "$tool --help: $(cat err)"
  grep -q "^  tessera $tool " help || fail "$tool --help has no example: $(cat help)"
done
[ "$(wc -w <out)" -gt 20 ] && grep -q " train; " out || fail "--help: $(cat out)"
for arguments in "" "nothing" "--mesh=dp2"; do
  "$tessera" $arguments >out 2>err
  [ $? = 2 ] && [ ! -s out ] && [ "$(wc -l <err)" = 1 ] && grep -q "^tessera: no tool .*; use tessera TOOL" err ||
    fail "\"$arguments\": $(cat out err)"
done

"$tessera" train --mesh=dp2,tp2 --steps=2 --sample_tokens=0 --run_dir=run >out 2>err || fail "train: $(cat err)"
grep -q "^checkpoint .*run/checkpoints/step-00000002" out || fail "train: $(cat out)"
"$tessera" train --config=run/config.json --run_dir=run --resume=latest --steps=3000 --snapshot_every=0 >out 2>err &
pid=$!
while [ "$(wc -l 2>/dev/null <run/metrics.jsonl || echo 0)" -lt 4 ] && kill -0 $pid; do sleep 0.05; done
kill -TERM $pid
wait $pid
[ $? = 143 ] && grep -q "continue with: .*/tessera train --config=" err || fail "the line to continue: $(cat err)"
"$tessera" checkpoint list run >out 2>err && grep -q "step-00000002" out || fail "checkpoint: $(cat err)"
"$tessera" launch --np=2 -- "$tessera" mesh --mesh=dp2 >out 2>err || fail "launch: $(cat err)"
"$tessera" comm_bench --engine=shared_memory --np=2 -b 8 -e 8 >out 2>err || fail "comm_bench: $(cat err)"

[ $failures = 0 ] && echo PASSED
exit $failures
