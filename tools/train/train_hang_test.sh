#!/bin/bash
# Tests what happens to runs of which one rank hangs: it is named with its place and stack, the others are not blamed, and the run ends
# or goes on without it. Rank 0 hangs because it writes its metrics into a pipe that nobody reads.
set -uo pipefail
train=$PWD/$1 launch=$PWD/$2 flight=$PWD/$3
source tools/train/testing/tiny_model.sh
tiny="--model=$PWD/model --data=$PWD/text.txt --length=16 --batch=4 --strategy=all_reduce --sample_tokens=0"
mkfifo pipe
exec 3<>pipe # Opening it does not wait for a reader, and a write waits as soon as 64 KiB are in it.
expect() { grep -q -- "$1" err || fail "$run does not print \"$1\": $(cat err)"; }
expect_blame() {
  expect "^train: rank 0 hangs: no progress for 2s (--hang_timeout); $1"
  expect "^  rank 0: report, step [0-9]*, for [0-9.]* s, at worker.cc:[0-9]*"
  expect "^    write"
  expect "^    .*MetricsFile::Add"
  grep -q "rank [1-9] hangs" err && fail "$run blames another rank: $(cat err)"
}

# Without restarts the run ends with an error that names the rank; the tool says the same afterwards.
run=ends
"$train" $tiny --mesh=dp2,tp2 --steps=100000 --metrics=pipe --hang_timeout=2s --run_dir=ends >out 2>err
[ $? = 1 ] || fail "ends exits with $?"
expect_blame killed
expect "^  rank 1: .*; in [a-z_]* #[0-9]* of [^,]*, [0-9]* bytes for [0-9.]* s, which waits for rank"
[ "$(tail -1 err | grep -c "^train: rank 0 hangs: no progress for 2s (--hang_timeout); all ranks were ended")" = 1 ] || fail "ends: $(tail -1 err)"
"$flight" --run_dir=ends --html=page.html >report 2>&1 || fail "flight: $(cat report)"
grep -q "^rank 0 keeps others waiting and waits for none" report || fail "flight: $(cat report)"
grep -q "^  rank 0: report, step" report && grep -q "^    .*MetricsFile::Add" report || fail "flight: $(cat report)"
grep -q "^group [^,]*, #[0-9]*: rank 0: not begun; rank" report || fail "flight: $(cat report)"
grep -q "<li>rank 0 keeps others waiting" page.html || fail "the page of flight"
[ "$("$flight" --run_dir=ends --format=json | python3 -c 'import json, sys; print(json.load(sys.stdin)["culprits"])')" = "[0]" ] ||
  fail "the JSON of flight"
"$flight" --run_dir=ends --quiet | grep -q "^  rank" && fail "flight --quiet"
"$flight" --run_dir=model >out 2>err
[ $? = 2 ] && grep -q "^flight: --run_dir=model: .*has no files rank" err || fail "flight of another directory: $(cat err)"

# With copies of the state the rank is replaced; the run goes on as soon as somebody reads.
run=replaced
"$train" $tiny --mesh=dp2 --steps=400 --run_dir=calm >out 2>err || fail "calm: $(cat err)"
"$train" $tiny --mesh=dp2 --steps=400 --metrics=pipe --hang_timeout=2s --run_dir=replaced --snapshot_every=1 --max_restarts=1 >out 2>err &
pid=$!
while ! grep -q "; replaced, 1 of 1" err && kill -0 $pid; do sleep 0.05; done
cat <&3 >drained &
reader=$!
wait $pid || fail "replaced exits with $?: $(cat err)"
kill $reader
expect_blame killed
for file in calm/checkpoints/step-00000400/*.state; do
  cmp "$file" "replaced/${file#calm/}" || fail "replaced has other weights"
done

# Under another launcher the rank watches itself.
cat <&3 >drained &
reader=$!
sleep 0.2
kill $reader
run=launched
"$launch" --np=2 --output=raw -- "$train" $tiny --mesh=dp2 --steps=100000 --metrics=pipe --hang_timeout=2s --run_dir=launched >out 2>err
[ $? = 1 ] || fail "launched exits with $?"
expect_blame ended
"$flight" --run_dir=launched | grep -q "^  rank 0: report, step" || fail "launched: $("$flight" --run_dir=launched)"

# SIGUSR2 shows the places of a run that is well, which goes on.
run=asked
"$train" $tiny --mesh=tp2 --steps=300 --run_dir=asked --hang_timeout=5s >out 2>err &
pid=$!
while [ "$(wc -l 2>/dev/null <asked/metrics.jsonl || echo 0)" -lt 5 ] && kill -0 $pid; do sleep 0.02; done
kill -USR2 $pid
wait $pid || fail "asked exits with $?: $(cat err)"
expect "^train: SIGUSR2"
for rank in 0 1; do expect "^  rank $rank: .*, for"; done
grep -q "hangs" err && fail "asked blames a rank: $(cat err)"
[ "$(ls asked/flight/1)" = "$(printf 'rank%d.json\n' 0 1)" ] || fail "asked: $(ls -R asked/flight)"

[ $failures = 0 ] && echo PASSED
exit $failures
