#!/bin/bash
# Tests tokenizer.model wherever a tokenizer is given: tokenize, train on text and on tokens, generate, export.
set -uo pipefail
generate=$PWD/$1 train=$PWD/$2 checkpoint=$PWD/$3 tokenize=$PWD/$4 model=$PWD/$5
cd "$TEST_TMPDIR"
export XDG_CACHE_HOME=$TEST_TMPDIR/cache
mkdir -p cache llama tokenizer
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

cp "$model" tokenizer/tokenizer.model
cat >llama/config.json <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32,
 "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "vocab_size": 520, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": false}
END
for i in $(seq 400); do echo "line $i of a text that is easy to learn, naïve café 你好"; done >text.txt

# The same tokens, so the same losses, from text, from tokens, and with the file or its directory.
"$tokenize" --data=text.txt --tokenizer="$model" --output=tokens --format=json >out 2>err || fail "tokenize: $(cat err)"
train_with() {
  "$train" --model=$PWD/llama --length=32 --batch=4 --mesh=dp1 --steps=4 --sample_tokens=4 "$@" 2>err || fail "train $*: $(cat err)"
}
train_with --data=$PWD/text.txt --tokenizer="$model" --run_dir=by_file >out
train_with --data=$PWD/tokens.idx --tokenizer=$PWD/tokenizer --run_dir=by_directory >out
losses() { python3 -c "import json,sys; print([json.loads(l).get('loss') for l in open(sys.argv[1])])" "$1/metrics.jsonl"; }
[ "$(losses by_file)" = "$(losses by_directory)" ] || fail "$(losses by_file) and $(losses by_directory)"

# The run's tokenizer, the flag, and an export, which has the file.
"$generate" --from=by_file --prompt="line 7" --tokens=9 --format=json >run.json 2>err || fail "generate: $(cat err)"
"$generate" --from=by_directory --tokenizer="$model" --prompt="line 7" --tokens=9 --format=json >flag.json || fail "--tokenizer"
"$checkpoint" export by_file/checkpoints exported --tokenizer=tokenizer >/dev/null || fail "export"
"$generate" --from=exported --prompt="line 7" --tokens=9 --format=json >exported.json 2>err || fail "exported: $(cat err)"
cmp run.json flag.json && cmp run.json exported.json || fail "$(cat run.json flag.json exported.json)"

python3 - <<'END' || fail "$(cat run.json)"
import json
run = json.load(open("run.json"))
assert run["prompt_tokens"] > 2 and all(0 <= token < 520 for token in run["tokens"]), run
assert len(run["tokens"]) == 9 or run["ended"], run
END
"$generate" --from=by_file --prompt="line 7" --tokens=0 | grep -qx "line 7" || fail "no tokens"
printf 'The loss of every step' >words.txt
"$generate" --from=exported --perplexity=words.txt --format=json >loss.json 2>err || fail "perplexity: $(cat err)"

# A damaged tokenizer: exit code 2, and one line with its file.
head -c 3000 "$model" >tokenizer/tokenizer.model
for command in "$generate --from=by_file --tokenizer=tokenizer" "$train --tokenizer=$PWD/tokenizer --data=$PWD/text.txt"; do
  $command >out 2>err
  [ $? = 2 ] && [ "$(wc -l <err)" = 1 ] && grep -q "tokenizer/tokenizer.model.*expected a SentencePiece model" err || fail "$command: $(cat err)"
done
exit $((failures > 0))
