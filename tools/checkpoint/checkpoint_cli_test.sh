#!/bin/bash
# Tests the command line: imports a Hugging Face model, runs every verb and exports it; exit codes; errors of one line.
set -uo pipefail
checkpoint=$PWD/$1
model=$PWD/$(dirname "$2")
cd "$TEST_TMPDIR"
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

imported=$("$checkpoint" import "$model" checkpoints --mesh=dp2,pp2,tp2) || fail "import"
[ "$imported" = "$PWD/checkpoints/step-00000000" ] || [ "$imported" = checkpoints/step-00000000 ] || fail "import printed $imported"
"$checkpoint" list checkpoints --format=json >list.json || fail "list"
python3 - <<'END' || fail "list: $(cat list.json)"
import json
(run,) = json.load(open("list.json"))
assert run["state"] == "complete" and run["mesh"] == "dp2,pp2,cp1,tp2" and run["ranks"] == 8 and run["zero"] == 3, run
assert run["step"] == 0 and run["parameters"] == 1784, run
END
"$checkpoint" list checkpoints --holders=layers.0.mlp.down.weight --format=csv >out || fail "holders"
[ "$(grep -c '^tp[01]-pp0.rank-0000[01].state,[01],' out)" = 4 ] || fail "holders: $(cat out)"
"$checkpoint" list checkpoints --element=layers.0.mlp.down.weight:9 --format=json >element.json || fail "element"
place=$(python3 -c 'import json; p = json.load(open("element.json")); print(p["file"] + ":" + str(p["offset"]))')
"$checkpoint" list checkpoints --place="$place" --format=json | cmp - element.json || fail "$place is not $(cat element.json)"
"$checkpoint" list checkpoints --place="$place" | grep -q '^layers.0.mlp.down.weight:9 is at offset ' || fail "place"
"$checkpoint" reshard checkpoints none --mesh=tp4 --dry_run --format=csv >moves.csv || fail "dry run"
[ ! -e none ] || fail "a dry run wrote"
# Four bytes for the value and each of two moments of each parameter; replicated ones are read by each holder.
python3 - <<'END' || fail "moves: $(cat moves.csv)"
import csv
moves = list(csv.DictReader(open("moves.csv")))
assert len({(m["from"], m["to"]) for m in moves}) == len(moves), moves
assert {m["to"] for m in moves} == {"tp%d-pp0.rank-00000.state" % t for t in range(4)}, moves
assert sum(int(m["bytes"]) for m in moves) >= 12 * 1784, moves
END
"$checkpoint" verify checkpoints >out 2>err || fail "verify"
grep -q "8 files" out || fail "verify printed $(cat out)"
[ "$(grep -c '^verified ' err)" = 8 ] || fail "verify said $(cat err)"
mkdir run && cp -r checkpoints run/ && "$checkpoint" verify run >out 2>err || fail "verify of a run's directory: $(cat err)"
"$checkpoint" reshard checkpoints resharded --mesh=tp4 --zero=0 >/dev/null || fail "reshard"
"$checkpoint" list --format=csv resharded | grep -q '^0,4,"dp1,pp1,cp1,tp4",0,1784,' || fail "csv"
"$checkpoint" export resharded exported --max_shard_bytes=3KiB >/dev/null || fail "export"
"$checkpoint" import exported again --mesh=dp2,pp2,tp2 >/dev/null || fail "import of the export"
for file in checkpoints/step-00000000/*.state; do
  cmp "$file" "again/step-00000000/$(basename "$file")" || fail "$file is another after export and import"
done
for files in dcp torch_dist; do
  "$checkpoint" export resharded $files --files=$files >/dev/null || fail "export as $files"
  "$checkpoint" import $files "of_$files" --mesh=dp2,pp2,tp2 >/dev/null || fail "import of $files"
  for file in checkpoints/step-00000000/*.state; do
    cmp "$file" "of_$files/step-00000000/$(basename "$file")" || fail "$file is another after $files"
  done
done

expect_error() {
  local code=$1
  shift
  "$checkpoint" "$@" >out 2>err
  local got=$?
  [ $got = "$code" ] || fail "$* exits with $got, not $code"
  [ ! -s out ] || fail "$* printed on stdout"
  [ "$(wc -l <err)" = 1 ] || fail "$* printed $(wc -l <err) lines on stderr: $(cat err)"
}
expect_usage_error() {
  expect_error 2 "$@"
  grep -q -- "for example: ./bazelw run //tools/checkpoint -- [a-z]* " err || fail "$* gave no example"
}
expect_usage_error
grep -q "no verb; expected list, verify, reshard, export, import" err || fail "no verb: $(cat err)"
expect_usage_error destroy
grep -q 'unknown verb "destroy"; expected list, verify, reshard, export, import' err || fail "destroy: $(cat err)"
expect_usage_error list
grep -q "list takes RUN, got none" err || fail "list of nothing: $(cat err)"
expect_usage_error list checkpoints --mesh=tp2
grep -q "unknown flag --mesh" err || fail "list --mesh: $(cat err)"
expect_usage_error import x
expect_usage_error export checkpoints
expect_usage_error export checkpoints x --dtype=int4
expect_usage_error export checkpoints x --files=zip
grep -q -- "--files=zip: allowed: safetensors, dcp, torch_dist" err || fail "files: $(cat err)"
expect_usage_error export checkpoints x --files=dcp --adapter
expect_usage_error reshard checkpoints x --mesh=zz2
expect_usage_error reshard checkpoints x --mesh=pp3
expect_usage_error reshard checkpoints x --zero=4
expect_usage_error list checkpoints --element=embedding.weight
grep -q "expected NAME:INDEX, such as embedding.weight:17" err || fail "element: $(cat err)"
expect_usage_error list checkpoints --element=a:1 --place=b:2
expect_error 2 list checkpoints --element=embedding.weight:99999999
sed -i 's/"llama"/"olmo2"/; s/LlamaFor/Olmo2For/' torch_dist/config.json
expect_usage_error import torch_dist x
grep -q "OLMo 2 models with norms of outputs have no counterpart in Megatron-LM's torch_dist checkpoints" err || fail "olmo2: $(cat err)"
expect_usage_error verify checkpoints word
expect_error 1 verify missing
expect_error 1 list checkpoints --holders=layers.0.mlp.down.weigh
grep -q 'no tensor "layers.0.mlp.down.weigh"; the nearest name is layers.0.mlp.down.weight' err || fail "holders: $(cat err)"
expect_error 1 export checkpoints exported
expect_error 1 import missing x
grep -q "missing" err || fail "import of nothing: $(cat err)"
[ ! -e x ] || fail "an error left something"

printf '#' | dd of=checkpoints/step-00000000/tp1-pp1.rank-00000.state bs=1 seek=60 conv=notrunc 2>/dev/null
"$checkpoint" verify checkpoints >out 2>err
[ $? = 1 ] || fail "a damaged checkpoint is verified"
tail -1 err | grep -q "tp1-pp1.rank-00000.state" || fail "the damaged file is not named: $(cat err)"
"$checkpoint" --help | grep -q "reshard RUN DIR" || fail "--help"
"$checkpoint" export --help | grep -q -- --max_shard_bytes || fail "export --help"
"$checkpoint" export --help | grep -q -- --mesh && fail "export --help lists flags of other verbs"
exit $((failures > 0))
