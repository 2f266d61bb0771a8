#!/usr/bin/env python3
"""Computes the values of transformers_defaults.json: what transformers makes of each config.json in it.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python transformers_defaults.py transformers_defaults.json

An architecture has a config.json, and what becomes of it, of the same without each of its optional keys ("without"), and with changes
("with"); of these two only what differs. In a change null removes a key and "null" sets it to null. To add an architecture or a case,
add its config and changes with empty results, and run this.
"""
import json
import sys

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale


def changed(config, change):
    config = {key: value for key, value in config.items() if change.get(key, "") is not None}
    config.update({key: None if value == "null" else value for key, value in change.items() if value is not None})
    return json.loads(json.dumps(config))


def rope_of(read):
    """The parameters of full attention, and the base of windows (Gemma 3) or None."""
    rope = read.rope_parameters
    if "full_attention" not in rope:
        return rope, None
    return rope["full_attention"], rope["sliding_attention"]["rope_theta"]


def windows_of(read):
    if read.model_type == "phi3" and read.sliding_window is None:
        return [0] * read.num_hidden_layers
    window = getattr(read, "sliding_window", None) or 0
    if read.model_type in ("llama", "gemma", "olmo2", "deepseek_v2", "deepseek_v3"):
        window = 0
    kinds = getattr(read, "layer_types", None) or ["sliding_attention"] * read.num_hidden_layers
    return [window if kind == "sliding_attention" else 0 for kind in kinds]


def add_rope(read, resolved):
    rope, local_theta = rope_of(read)
    kind = rope["rope_type"]
    has_original = kind in ("yarn", "llama3", "longrope")
    resolved["rope"] = [kind, rope["rope_theta"], None if kind in ("default", "longrope") else rope.get("factor"),
                        rope.get("original_max_position_embeddings", read.max_position_embeddings) if has_original else None]
    if local_theta is not None:
        resolved["local_theta"] = local_theta
    if kind in ("yarn", "longrope"):
        layers = {} if local_theta is None else {"layer_type": "full_attention"}
        resolved["attention_factor"] = float(ROPE_INIT_FUNCTIONS[kind](read, **layers)[1])
    if kind == "yarn":
        resolved["turns"] = [rope.get("beta_slow") or 1, rope.get("beta_fast") or 32, rope.get("truncate", True)]
    if kind == "longrope":
        resolved["divisors"] = [rope["short_factor"], rope["long_factor"]]


def add_mixture(read, resolved):
    kind = read.model_type
    get = lambda *names: next((getattr(read, name) for name in names if hasattr(read, name)), None)
    experts = get("n_routed_experts", "num_local_experts", "num_experts")
    if experts is None:
        return
    deepseek = kind.startswith("deepseek") or kind == "dots1"
    resolved.update({
        "experts": experts, "experts_per_token": read.num_experts_per_tok,
        "expert_size": get("moe_intermediate_size", "intermediate_size"),
        "normalise": kind in ("mixtral", "gpt_oss") or (kind != "deepseek_v2" and read.norm_topk_prob),
        "balance": 0 if deepseek else read.router_aux_loss_coef})
    if deepseek:
        resolved.update({"shared_experts": read.n_shared_experts or 0, "dense_layers": read.first_k_dense_replace,
                         "expert_scale": read.routed_scaling_factor})


def add_latent(read, resolved):
    if not hasattr(read, "kv_lora_rank"):
        return
    has_groups = read.model_type == "deepseek_v3" or read.topk_method == "group_limited_greedy"
    scale, rope = read.qk_head_dim**-0.5, read.rope_parameters
    resolved.update({
        "head_size": read.qk_head_dim,
        "latent": [read.q_lora_rank or 0, read.kv_lora_rank, read.qk_nope_head_dim, read.qk_rope_head_dim, read.v_head_dim,
                   getattr(read, "rope_interleave", True)],
        "groups": [read.n_group, read.topk_group] if has_groups else [1, 1],
        "score_scale": "%.12g" % (yarn_apply_mscale(rope, scale) if rope["rope_type"] == "yarn" else scale)})


def resolve(config):
    config = changed(config, {})
    read = transformers.CONFIG_MAPPING[config.pop("model_type")].from_dict(config)
    ends = read.eos_token_id
    act = getattr(read, "hidden_activation", None) or getattr(read, "hidden_act", None)
    resolved = {
        "kv_heads": read.num_key_value_heads,
        "head_size": getattr(read, "head_dim", None) or read.hidden_size // read.num_attention_heads,
        "max_positions": read.max_position_embeddings, "initializer_range": read.initializer_range,
        "norm_epsilon": read.rms_norm_eps, "tied": read.tie_word_embeddings,
        "attention_bias": getattr(read, "attention_bias", False), "hidden_act": act, "windows": windows_of(read),
        "rope": None, "bos": read.bos_token_id, "eos": ends if isinstance(ends, list) else [] if ends is None else [ends],
        "dtype": None if read.dtype is None else str(read.dtype).removeprefix("torch.")}
    add_rope(read, resolved)
    if read.model_type == "phi3":
        resolved["partial"] = rope_of(read)[0].get("partial_rotary_factor", 1.0)
    if read.model_type == "smollm3":
        resolved["turned_layers"] = read.no_rope_layers[:read.num_hidden_layers]
    if read.model_type in ("gemma2", "gemma3_text"):
        cap = read.attn_logit_softcapping if read.model_type == "gemma2" else None
        resolved.update({"scalar": read.query_pre_attn_scalar, "caps": [cap, read.final_logit_softcapping]})
    add_mixture(read, resolved)
    add_latent(read, resolved)
    return resolved


def update(entry):
    config = entry["config"]
    base = resolve(config)

    def difference(change):
        return {key: value for key, value in resolve(changed(config, change)).items() if key not in base or base[key] != value}

    entry["expected"] = base
    entry["without"] = {key: difference({key: None}) for key in entry["without"]}
    entry["with"] = [{"change": case["change"], "expected": difference(case["change"])} for case in entry["with"]]


def text_of(table):
    lines = lambda values: ",\n".join("    %s: %s" % (json.dumps(key), json.dumps(value)) for key, value in values.items())
    entries = []
    for entry in table["architectures"]:
        parts = ['   "%s": {\n%s\n   }' % (part, lines(entry[part])) for part in ("config", "expected", "without")]
        cases = ",\n".join("    " + json.dumps(case) for case in entry["with"])
        entries.append("  {\n%s,\n   \"with\": [\n%s\n   ]\n  }" % (",\n".join(parts), cases))
    return '{\n "transformers": "%s",\n "architectures": [\n%s\n ]\n}\n' % (transformers.__version__, ",\n".join(entries))


def main():
    with open(sys.argv[1]) as file:
        table = json.load(file)
    for entry in table["architectures"]:
        update(entry)
    with open(sys.argv[1], "w") as file:
        file.write(text_of(table))


main()
