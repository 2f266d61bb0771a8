# Sourced by tests of whole runs: enters the test's temporary directory with the directory `model` of a tiny model and `text.txt`
# for it. `fail` counts what is wrong in `failures`.
cd "$TEST_TMPDIR"
export XDG_CACHE_HOME=$TEST_TMPDIR/cache TMPDIR=$TEST_TMPDIR/tmp
mkdir -p cache tmp model
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

cat >model/config.json <<'END_OF_MODEL'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32,
 "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
 "vocab_size": 264, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": false}
END_OF_MODEL
for i in $(seq 3000); do echo "line $i of a text that is easy to learn, line after line"; done >text.txt
