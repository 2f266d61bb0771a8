#!/bin/bash
# Tests step_benchmark: the report, the protocol of compare_torch.py, and bad usage.
set -euo pipefail
benchmark=$1

report=$("$benchmark" --batch=2 --rounds=1 --dtype=bf16 --threads=2)
for words in "llama-1m, bf16: 2 sequences of 128 tokens a step" "tokens/s" \
  "of the product rate" "Gemm" "AttendGradient" "optimizer" "rest"; do
  grep -qF "$words" <<<"$report" || { echo "no \"$words\" in: $report"; exit 1; }
done

answers=$(printf '\n\n' | "$benchmark" --batch=2 --on_request)
[[ $(wc -l <<<"$answers") == 3 ]] || { echo "not 3 lines: $answers"; exit 1; }
python3 - "$answers" <<'CHECK'
import json, sys
ready, *steps = map(json.loads, sys.argv[1].splitlines())
assert ready["config"]["hidden"] == 128, ready
for step in steps:
    rate = step["tokens_per_second"] * step["seconds"]
    assert abs(rate - 2 * 128) < 1e-6, step
CHECK

for flag in --rounds=0 --micro_batch=3 --dtype=int8; do
  code=0
  message=$("$benchmark" $flag 2>&1) || code=$?
  [[ $code == 2 ]] || { echo "$flag: exit code $code"; exit 1; }
  grep -qF -- "${flag%%=*}" <<<"$message" || grep -qF -- "--batch" <<<"$message" ||
    { echo "$flag: $message"; exit 1; }
done
