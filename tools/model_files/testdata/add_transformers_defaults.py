#!/usr/bin/env python3
"""Adds what transformers makes of a config.json of an architecture to transformers_defaults.json.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python add_transformers_defaults.py transformers_defaults.json

It resolves the config, the same without each optional key, and the changes below, and replaces the architecture's entry.
"""
import json
import sys

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CONFIG = {
    "model_type": "gpt_oss", "vocab_size": 64, "hidden_size": 128, "intermediate_size": 40, "num_hidden_layers": 3,
    "num_attention_heads": 64, "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 77,
    "initializer_range": 0.5, "rms_norm_eps": 0.25, "tie_word_embeddings": True, "bos_token_id": 7, "eos_token_id": [9, 8],
    "rope_parameters": {"rope_type": "default", "rope_theta": 123.0}, "head_dim": 6, "attention_bias": False, "sliding_window": 5,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"], "num_local_experts": 16, "num_experts_per_tok": 3,
    "router_aux_loss_coef": 0.75, "swiglu_limit": 7.0, "swiglu_alpha": 1.702}
NEEDED = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
YARN = {"rope_type": "yarn", "factor": 4.0}
CHANGES = [
    {"rope_parameters": {"rope_type": "default"}},
    {"rope_theta": 55.0, "rope_parameters": {"rope_type": "default"}},
    {"rope_theta": 55.0, "rope_parameters": None},
    {"rope_theta": 55.0, "rope_parameters": "null", "rope_scaling": "null"},
    {"rope_parameters": {}},
    {"rope_scaling": {"type": "linear", "factor": 4.0}},
    {"rope_theta": 55.0, "rope_parameters": None, "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
        "truncate": False}},
    {"rope_scaling": YARN},
    {"rope_scaling": {}, "rope_parameters": {**YARN, "original_max_position_embeddings": 33, "beta_fast": 20, "beta_slow": 2}},
    {"layer_types": None, "sliding_window": None},
    {"num_local_experts": None, "num_experts": 8},
    {"num_experts": 8},
    {"attention_bias": True},
    {"eos_token_id": "null", "bos_token_id": "null"},
    {"torch_dtype": "float16"},
    {"dtype": "bfloat16", "torch_dtype": "float16"},
]


def changed(change):
    config = dict(CONFIG)
    for key, value in change.items():
        config.pop(key, None)
        if value is not None:
            config[key] = None if value == "null" else json.loads(json.dumps(value))
    return config


def resolve(config):
    config = json.loads(json.dumps(config))
    read = transformers.CONFIG_MAPPING[config.pop("model_type")].from_dict(config)
    rope = read.rope_parameters
    kind, ends = rope["rope_type"], read.eos_token_id
    resolved = {
        "kv_heads": read.num_key_value_heads, "head_size": read.head_dim, "max_positions": read.max_position_embeddings,
        "initializer_range": read.initializer_range, "norm_epsilon": read.rms_norm_eps, "tied": read.tie_word_embeddings,
        "attention_bias": read.attention_bias, "hidden_act": read.hidden_act,
        "windows": [read.sliding_window if kind == "sliding_attention" else 0 for kind in read.layer_types],
        "rope": [kind, rope["rope_theta"], rope.get("factor"),
                 rope.get("original_max_position_embeddings", read.max_position_embeddings) if kind == "yarn" else None],
        "bos": read.bos_token_id, "eos": ends if isinstance(ends, list) else [] if ends is None else [ends],
        "dtype": None if read.dtype is None else str(read.dtype).removeprefix("torch."),
        "experts": read.num_local_experts, "experts_per_token": read.num_experts_per_tok, "expert_size": read.intermediate_size,
        "normalise": True, "balance": read.router_aux_loss_coef}
    if kind == "yarn":
        resolved["attention_factor"] = ROPE_INIT_FUNCTIONS["yarn"](read)[1]
        resolved["turns"] = [rope.get("beta_slow", 1), rope.get("beta_fast", 32), rope.get("truncate", True)]
    return resolved


def main():
    base = resolve(CONFIG)

    def difference(change):
        return {key: value for key, value in resolve(changed(change)).items() if key not in base or base[key] != value}

    lines = lambda values: ",\n".join("    %s: %s" % (json.dumps(key), json.dumps(value)) for key, value in values.items())
    without = {key: difference({key: None}) for key in CONFIG if key not in NEEDED}
    cases = ",\n".join("    " + json.dumps({"change": change, "expected": difference(change)}) for change in CHANGES)
    entry = ('  {\n   "config": {\n%s\n   },\n   "expected": {\n%s\n   },\n   "without": {\n%s\n   },\n   "with": [\n%s\n   ]\n  }' %
             (lines(CONFIG), lines(base), lines(without), cases))
    with open(sys.argv[1]) as file:
        text = file.read()
    end = "\n ]\n}\n"
    if not text.endswith(end) or '"model_type": "%s"' % CONFIG["model_type"] in text:
        sys.exit("the file has another form, or an entry of the architecture, which has to be removed first")
    with open(sys.argv[1], "w") as file:
        file.write(text[:-len(end)] + ",\n" + entry + end)
    print("transformers %s" % transformers.__version__)


main()
