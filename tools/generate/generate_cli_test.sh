#!/bin/bash
# Tests the command line with a run that it trains: the trainer's own sample, every way to name the model, the perplexity
# of a text, and exit codes.
set -uo pipefail
generate=$PWD/$1 train=$PWD/$2 checkpoint=$PWD/$3
cd "$TEST_TMPDIR"
export XDG_CACHE_HOME=$TEST_TMPDIR/cache
mkdir -p cache model
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

cat >model/config.json <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32,
 "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "vocab_size": 264, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": false}
END
for i in $(seq 2000); do echo "line $i of a text that is easy to learn, line after line"; done >text.txt
"$train" --model=$PWD/model --data=$PWD/text.txt --length=32 --batch=8 --mesh=dp2,tp2 --strategy=all_reduce --steps=40 \
  --validation_fraction=0.05 --eval_every=40 --eval_batches=2 --sample_tokens=20 --run_dir=run >trained 2>err || fail "train: $(cat err)"

# The trainer's own sample, from every form of --from.
want=$(tail -n +1 trained | sed -n '/^The /,$p')
[ -n "$want" ] || fail "the trainer printed no sample: $(cat trained)"
"$checkpoint" export run/checkpoints exported >/dev/null || fail "export"
for from in run run/checkpoints run/checkpoints/step-00000040 exported; do
  got=$("$generate" --from=$from --tokens=20 2>err) || fail "--from=$from: $(cat err)"
  [ "$got" = "$want" ] || fail "--from=$from gives \"$got\", the trainer \"$want\""
done

# JSON; the seed, the temperature, top_k and top_p decide.
"$generate" --from=run --prompt="line 7" --tokens=12 --temperature=0 --format=json >greedy.json || fail "json"
"$generate" --from=run --prompt="line 7" --tokens=12 --temperature=3 --top_k=1 --format=json >top_k.json || fail "top_k"
"$generate" --from=run --prompt="line 7" --tokens=12 --temperature=3 --top_p=1e-9 --format=json >top_p.json || fail "top_p"
"$generate" --from=run --prompt="line 7" --tokens=12 --temperature=3 --seed=4 --format=json >hot.json || fail "seed"
cmp greedy.json top_k.json || fail "top_k=1 is not greedy"
cmp greedy.json top_p.json || fail "a tiny top_p is not greedy"
cmp -s greedy.json hot.json && fail "the temperature changes nothing"
python3 - <<'END' || fail "json: $(cat greedy.json)"
import json
x = json.load(open("greedy.json"))
assert x["prompt"] == "line 7" and x["prompt_tokens"] == 6 and len(x["tokens"]) == 12 and x["ended"] is False, x
assert x["text"] == bytes(x["tokens"]).decode(), x
END
[ "$("$generate" --from=run --prompt=x --tokens=0)" = x ] || fail "no tokens"

# The perplexity of the validation data is about the validation loss of the run, in windows of its length.
tail -c 3000 text.txt >tail.txt
"$generate" --from=run --perplexity=tail.txt --format=json >loss.json || fail "perplexity"
"$generate" --from=exported --perplexity=tail.txt --window=32 --format=json >same.json || fail "perplexity of an export"
"$generate" --from=exported --perplexity=tail.txt --format=json >wide.json || fail "perplexity in wide windows"
python3 - <<'END' || fail "perplexity: $(cat loss.json same.json wide.json)"
import json, math
loss, same, wide = (json.load(open(name + ".json")) for name in ("loss", "same", "wide"))
assert loss == same, (loss, same)
assert loss["tokens"] == 2999 and loss["window"] == 32 and loss["windows"] == 94 and wide["window"] == 128, (loss, wide)
assert abs(math.log(loss["perplexity"]) - loss["loss"]) < 1e-9
last = [json.loads(line) for line in open("run/metrics.jsonl")][-1]
assert abs(loss["loss"] - last["eval_loss"]) < 0.1 * last["eval_loss"], (loss, last)
END
"$generate" --from=run --perplexity=tail.txt | grep -Eq "^loss [0-9.]+, perplexity [0-9.]+: 2999 tokens in 94 windows of 32$" || fail "perplexity as text"

# A run with a tokenizer, and its export, which has the tokenizer's file beside the weights.
mkdir tokenizer
python3 - <<'END'
import json
shown = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
spare = iter(range(256, 1000))
alphabet = [chr(b if b in shown else next(spare)) for b in range(256)]  # byte-level BPE writes each byte as a character
vocabulary = {character: i for i, character in enumerate(alphabet)} | {"li": 256, "ne": 257, "line": 258}
json.dump({"version": "1.0", "added_tokens": [{"id": 259, "content": "<|endoftext|>", "special": True, "single_word": False, "lstrip": False,
           "rstrip": False, "normalized": False}], "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False,
           "trim_offsets": True, "use_regex": True}, "post_processor": None, "decoder": {"type": "ByteLevel"},
           "model": {"type": "BPE", "vocab": vocabulary, "merges": ["l i", "n e", "li ne"]}}, open("tokenizer/tokenizer.json", "w"))
END
"$train" --model=$PWD/model --tokenizer=$PWD/tokenizer --data=$PWD/text.txt --length=32 --batch=8 --mesh=dp1 --steps=2 --sample_tokens=0 \
  --run_dir=words >out 2>err || fail "train with a tokenizer: $(cat err)"
"$checkpoint" export words/checkpoints words_exported --tokenizer=tokenizer >/dev/null || fail "export with a tokenizer"
"$generate" --from=words --prompt="line 7" --tokens=9 --format=json >words.json || fail "--from=words: $(cat err)"
grep -q '"prompt_tokens":3,' words.json || fail "the run's tokenizer is not used: $(cat words.json)"
"$generate" --from=words_exported --prompt="line 7" --tokens=9 --format=json | cmp - words.json || fail "an export has another tokenizer"
tokens_of_special() { "$generate" --from=words --prompt="<|endoftext|>" --tokens=1 --format=json "$@" | grep -o '"prompt_tokens":[0-9]*'; }
[ "$(tokens_of_special)" = '"prompt_tokens":1' ] || fail "a special token of the prompt is no id: $(tokens_of_special)"
[ "$(tokens_of_special --special_tokens=text)" = '"prompt_tokens":13' ] || fail "--special_tokens=text: $(tokens_of_special --special_tokens=text)"
mv words/checkpoints/step-00000002 alone
"$generate" --from=alone --tokenizer=tokenizer --prompt="line 7" --tokens=9 --format=json | cmp - words.json || fail "--tokenizer"

# Bad usage: 2; a damaged model: 1; each with one line.
expect_error() {
  local code=$1 named=$2
  shift 2
  "$generate" "$@" >out 2>err
  local got=$?
  [ $got = "$code" ] || fail "$* exits with $got, not $code: $(cat err)"
  [ ! -s out ] || fail "$* printed on stdout"
  [ "$(wc -l <err)" = 1 ] || fail "$* printed $(wc -l <err) lines on stderr: $(cat err)"
  grep -qF -- "$named" err || fail "$* did not name $named: $(cat err)"
  [ "$code" != 2 ] || grep -qF -- "for example: ./bazelw run //tools/generate -- --from=" err || fail "$* gave no example"
}
expect_error 2 --from
expect_error 2 --from=missing --from=missing
for bad in --tokens=-1 --temperature=-1 --temperature=inf --top_p=0 --top_p=1.5 --top_k=-1 --seed=-1 --threads=-1 --format=csv \
    --perplexity=missing.txt --tokenizer=missing --unknown=1; do
  expect_error 2 "${bad%%=*}" --from=run "$bad"
done
expect_error 2 --window --from=run --perplexity=tail.txt --window=129
expect_error 2 "was trained with one of 257" --from=run --tokenizer=tokenizer
expect_error 2 "was trained with one of 260" --from=alone
printf x >one.txt
expect_error 2 --perplexity=one.txt --from=run --perplexity=one.txt
# A vocabulary that is not that of bytes needs a tokenizer.
sed 's/"vocab_size": *264/"vocab_size": 300/' model/config.json >other.json
mkdir other && cp exported/model.safetensors other/ && cp other.json other/config.json
expect_error 1 "its config.json needs" --from=other
mkdir empty
expect_error 1 empty --from=empty
printf '#' | dd of="$(ls run/checkpoints/step-00000040/*.state | head -1)" bs=1 seek=5000 conv=notrunc 2>/dev/null
expect_error 1 .state --from=run
"$generate" --help | grep -q -- --top_p || fail "--help"
exit $((failures > 0))
