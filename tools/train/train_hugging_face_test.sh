#!/bin/bash
# Tests --init_from and --save_hf: a run that begins with a model equals an import that is resumed, in every bit; the
# saved model has the files of the first one; every refusal is one line, and starts nothing.
set -uo pipefail
train=$PWD/$1 checkpoint=$PWD/$2 tokenizer=$PWD/$3
cd "$TEST_TMPDIR"
export XDG_CACHE_HOME=$TEST_TMPDIR/cache TMPDIR=$TEST_TMPDIR/tmp
mkdir -p cache tmp source
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

# A model with a tokenizer, a chat template, and keys that Tessera does not use.
cat >source/config.json <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32,
 "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
 "vocab_size": 776, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": false, "pad_token_id": 7, "eos_token_id": [2, 5], "another_key": {"kept": true}}
END
echo '{"eos_token_id": [2, 5], "temperature": 0.6}' >source/generation_config.json
cp "$tokenizer" source/tokenizer.json
echo '{"chat_template": "x"}' >source/tokenizer_config.json
echo '{{ messages }}' >source/chat_template.jinja
for i in $(seq 1500); do echo "line $i of a text that is easy to learn, line after line"; done >text.txt
small="--data=text.txt --length=32 --batch=4 --strategy=all_reduce --sample_tokens=0 --warmup_steps=1 --quiet"
losses() { grep -o '"loss": *[^,}]*' "$1/metrics.jsonl"; }

# From random weights to a model, and to the best one.
"$train" $small --model=source --mesh=dp2,tp2 --steps=3 --eval_every=1 --validation_fraction=0.2 --eval_batches=1 --keep_best \
  --learning_rate=0.3 --run_dir=base --save_hf=models/base >out 2>err || fail "base: $(cat err)"
grep -q '^model *models/base$' out && grep -q '^model *models/base/best$' out || fail "the summary names no model: $(cat out)"
for model in models/base models/base/best; do
  for file in generation_config.json tokenizer.json tokenizer_config.json chat_template.jinja; do
    cmp source/$file $model/$file || fail "$model: $file"
  done
done
python3 - <<'END' || fail "config.json"
import json
for name in "base", "base/best":
    config = json.load(open("models/%s/config.json" % name))
    assert config["pad_token_id"] == 7 and config["eos_token_id"] == [2, 5] and config["another_key"] == {"kept": True}, config
    assert config["torch_dtype"] == "float32", config
END
ls -a models | grep -q writing && fail "a temporary directory is left"
"$checkpoint" export base/checkpoints exported --tokenizer=source >/dev/null || fail "export"
diff -r -x best models/base exported || fail "--save_hf differs from an export of the last checkpoint"
best=$(python3 -c '
import json
steps = [json.loads(line) for line in open("base/metrics.jsonl")]
print(min(range(len(steps)), key=lambda i: steps[i]["eval_loss"]) + 1)')
"$checkpoint" export base/checkpoints/step-0000000$best best --tokenizer=source >/dev/null || fail "export of the best"
diff -r models/base/best best || fail "best differs from an export of step $best"

# --init_from equals import and --resume, in every bit of the losses.
expect_same() {  # the model, the mesh, a name, and flags of the trainer
  local model=$1 mesh=$2 name=$3
  shift 3
  "$checkpoint" import $model imported-$name --mesh=$mesh >/dev/null || fail "$name: import"
  "$train" $small --model=$model --resume=imported-$name --mesh=$mesh --steps=2 --run_dir=resumed-$name "$@" >out 2>err ||
    fail "$name: --resume: $(cat err)"
  "$train" $small --init_from=$model --mesh=$mesh --steps=2 --run_dir=begun-$name "$@" >out 2>err ||
    fail "$name: --init_from: $(cat err)"
  [ "$(losses begun-$name | wc -l)" = 2 ] || fail "$name: $(losses begun-$name)"
  [ "$(losses begun-$name)" = "$(losses resumed-$name)" ] ||
    fail "$name: $(losses begun-$name) instead of $(losses resumed-$name)"
}
expect_same models/base dp1 whole --zero=0 --offload=none
expect_same models/base dp2,tp2 sharded
expect_same models/base pp2 staged --zero=1 --offload=optimizer
expect_same models/base dp2,pp2 offloaded --offload=all --offload_dir=$PWD/tmp
expect_same models/base cp2 context --zero=2
expect_same models/base dp2 adapters --lora_rank=4 --engine=in_process
expect_same models/base dp2,tp2 quantized --lora_rank=4 --base_weights=nf4 --engine=in_process
[ "$(losses begun-quantized)" != "$(losses begun-adapters)" ] || fail "--base_weights=nf4 changes nothing"
expect_same models/base dp2,tp2 adafactor --optimizer=adafactor --engine=in_process
expect_same models/base dp2 muon --optimizer=muon --engine=in_process --device=emulated
[ "$(losses begun-whole)" != "$(losses begun-adapters)" ] || fail "adapters change nothing"
"$train" $small --init_from=models/base --mesh=tp2 --steps=2 --run_dir=verified --verify >out 2>err || fail "--verify: $(cat err)"

# Files of bf16: the run has their type, and its model, too.
"$checkpoint" export base/checkpoints half --dtype=bf16 --max_shard_bytes=20KiB --tokenizer=source >/dev/null || fail "bf16"
expect_same half dp2 half
"$train" $small --init_from=half --mesh=dp2 --steps=1 --run_dir=half_run --save_hf=half_again >out 2>err || fail "half: $(cat err)"
[ "$(grep -c '"dtype": "bf16"' begun-half/config.json)" = 1 ] || fail "bf16: $(grep dtype begun-half/config.json)"
grep -q '"bfloat16"' half_again/config.json || fail "saved as $(grep dtype half_again/config.json)"

# A mixture of experts over expert ranks.
mkdir mixture
cat >mixture/config.json <<'END'
{"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu", "hidden_size": 32,
 "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 264, "max_position_embeddings": 128,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false}
END
"$train" $small --model=mixture --mesh=dp2,ep2 --steps=2 --run_dir=experts --save_hf=models/experts >out 2>err ||
  fail "mixture: $(cat err)"
expect_same models/experts dp2,ep2 experts
expect_same models/experts dp1 one_expert_rank
expect_same models/experts dp2,ep2 expert_adapters --lora_rank=4 --engine=in_process

# A checkpoint has precedence over --init_from.
"$train" ${small/--quiet/} --init_from=models/base --mesh=dp2,tp2 --steps=3 --run_dir=begun-sharded --resume=latest >out 2>err ||
  fail "resume: $(cat err)"
grep -q "^train: continues from $PWD/begun-sharded/checkpoints/step-00000002; the weights of --init_from=models/base are not used$" err ||
  fail "resume: $(cat err)"
[ "$(losses begun-sharded | wc -l)" = 3 ] || fail "resume: $(losses begun-sharded)"
# Without a step left, the model is that of the checkpoint.
"$train" $small --init_from=models/base --mesh=dp2,tp2 --steps=3 --run_dir=begun-sharded --resume=latest --save_hf=late >out 2>err ||
  fail "no step: $(cat err)"
"$checkpoint" export begun-sharded/checkpoints late_export --tokenizer=source >/dev/null && diff -r late late_export || fail "no step"

# Bad usage: exit code 2, one line, and no files.
expect_usage_error() {
  local named=$1
  shift
  "$train" $small --mesh=dp1 --steps=1 --run_dir=never "$@" >out 2>err
  local code=$?
  [ $code = 2 ] || fail "$* exits with $code, not 2: $(cat err)"
  [ ! -s out ] || fail "$* printed on stdout"
  [ "$(wc -l <err)" = 1 ] || fail "$* printed $(wc -l <err) lines on stderr: $(cat err)"
  grep -qF -- "$named" err || fail "$* did not name $named: $(cat err)"
  [ ! -e never ] || fail "$* made a run directory"
}
expect_usage_error "--model=llama-1m: contradicts --init_from=models/base: vocabulary is 776 there and 264 here, hidden is 32 there and 128 here" \
  --model=llama-1m --init_from=models/base
expect_usage_error "--init_from=nowhere: " --init_from=nowhere
expect_usage_error "--init_from=source: " --init_from=source
expect_usage_error "--init_from=models/experts: has a vocabulary of 264, and the tokenizer one of 769" \
  --init_from=models/experts --tokenizer=source
expect_usage_error "--length=4096: the model has 128 positions" --init_from=models/base --length=4096
cp -r half damaged && rm damaged/model-00002-of-*.safetensors
expect_usage_error "model-00002-of-" --init_from=damaged
sed 's/"hidden_size": 32/"hidden_size": 64/' models/base/config.json >half/config.json
expect_usage_error "its config.json needs [" --init_from=half
expect_usage_error "--save_hf=models/base: \"models/base\" exists and is not an empty directory" --save_hf=models/base
expect_usage_error "--save_hf=text.txt/model: " --save_hf=text.txt/model
exit $((failures > 0))
