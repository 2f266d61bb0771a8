#!/bin/bash
# What processes of a run really have, beside what --dry_run said of it. A rank's tensors are predicted, the rest is measured in
# small: so large ranks are held to a share, 5 %, and small ones, which are mostly program and libraries, to 3 MiB.
# train_memory_test.sh TRAIN
set -u
train=$PWD/$1
cd "${TEST_TMPDIR:-/tmp}" || exit 1
failures=0
for i in $(seq 3000); do echo "line $i of a text that is easy to learn, line after line"; done >text.txt

check() {  # NAME FLAG...
  local name=$1
  shift
  "$train" --data=text.txt --steps=4 --sample_tokens=0 --quiet --format=json "$@" --dry_run >$name.said 2>err &&
    "$train" --data=text.txt --steps=4 --sample_tokens=0 --quiet --format=json "$@" --run_dir=$name >$name.out 2>err || {
    echo "FAILED: $name: $(cat err)"
    failures=$((failures + 1))
    return
  }
  python3 - $name <<'END' || failures=$((failures + 1))
import json, sys
name = sys.argv[1]
said = [rank["memory"]["resident"] for rank in json.load(open(name + ".said"))["ranks"]]
had = [rank["memory"]["peak_resident"] for rank in json.load(open(name + "/result.json"))["ranks"]]
assert json.load(open(name + ".out"))["memory_bytes"] == max(had)
print(name, [f"{a / 2**20:.1f} MiB said, {b / 2**20:.1f} MiB had, {100 * (a / b - 1):+.1f} %" for a, b in zip(said, had)])
assert len(said) == len(had) and all(abs(a - b) <= max(0.05 * b, 3 << 20) for a, b in zip(said, had)), name
END
}
check data --mesh=dp2
check all --mesh=dp2,pp2,tp2
check larger --mesh=pp2,tp2 --model=llama-10m --batch=4 --length=256
exit $((failures > 0))
