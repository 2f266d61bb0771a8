#!/usr/bin/env python3
"""Writes llama_logits.json: the results of transformers' models of Llama's family for weights given by a formula.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python make_llama_logits.py llama_logits.json

FillByFormula in reference_llama.h defines the weights. transformers computes norms, angles and softmaxes in float32 for
every type of model; this script replaces float32 by float64 to get all digits, and prints the difference.
"""
import json
import math
import sys

import torch
import transformers
from transformers import modeling_rope_utils
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.dots1 import modeling_dots1
from transformers.models.gemma import modeling_gemma
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.mixtral import modeling_mixtral
from transformers.models.olmo2 import modeling_olmo2
from transformers.models.phi3 import modeling_phi3
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe
from transformers.models.smollm3 import modeling_smollm3

CASES = [
    dict(vocab_size=11, hidden_size=12, intermediate_size=14, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
         head_dim=6, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, sequences=2, length=5),
    dict(vocab_size=7, hidden_size=6, intermediate_size=5, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=1,
         head_dim=4, rms_norm_eps=1e-3, rope_theta=100.0, tie_word_embeddings=True, sequences=1, length=9),
    dict(vocab_size=5, hidden_size=12, intermediate_size=31, num_hidden_layers=1, num_attention_heads=3, num_key_value_heads=3,
         head_dim=4, rms_norm_eps=1e-6, rope_theta=500000.0, tie_word_embeddings=False, sequences=3, length=2),
    # Llama 3.1, with high, low and medium frequencies among the six.
    dict(vocab_size=6, hidden_size=8, intermediate_size=6, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
         head_dim=12, rms_norm_eps=1e-5, rope_theta=500.0, tie_word_embeddings=False, sequences=1, length=23,
         rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                           original_max_position_embeddings=64)),
    dict(vocab_size=6, hidden_size=8, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
         head_dim=4, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=False, attention_bias=True, sequences=2, length=7,
         rope_scaling=dict(rope_type="linear", factor=2.5)),
    dict(model_type="mistral", vocab_size=9, hidden_size=10, intermediate_size=7, num_hidden_layers=2, num_attention_heads=4,
         num_key_value_heads=2, head_dim=6, rms_norm_eps=1e-5, rope_theta=1000000.0, tie_word_embeddings=False, sequences=2,
         length=5, sliding_window=None),
    dict(model_type="qwen2", vocab_size=8, hidden_size=12, intermediate_size=9, num_hidden_layers=2, num_attention_heads=6,
         num_key_value_heads=2, head_dim=2, rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True, sequences=2,
         length=6),
    # Windows of 3 keys, first in all layers, then in all layers except the first.
    dict(model_type="mistral", vocab_size=7, hidden_size=8, intermediate_size=5, num_hidden_layers=2, num_attention_heads=4,
         num_key_value_heads=2, head_dim=4, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=False, sequences=2,
         length=8, sliding_window=3),
    dict(model_type="qwen2", vocab_size=6, hidden_size=8, intermediate_size=6, num_hidden_layers=3, num_attention_heads=2,
         num_key_value_heads=1, head_dim=4, rms_norm_eps=1e-6, rope_theta=1000.0, tie_word_embeddings=False, sequences=1,
         length=9, use_sliding_window=True, sliding_window=3, max_window_layers=1),
    dict(model_type="qwen3", vocab_size=8, hidden_size=10, intermediate_size=7, num_hidden_layers=2, num_attention_heads=4,
         num_key_value_heads=2, head_dim=6, rms_norm_eps=1e-4, rope_theta=1000.0, tie_word_embeddings=True, sequences=2,
         length=6, attention_bias=True),
    dict(model_type="mixtral", vocab_size=7, hidden_size=8, intermediate_size=5, num_hidden_layers=2, num_attention_heads=4,
         num_key_value_heads=2, head_dim=4, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=False, sequences=2,
         length=5, num_local_experts=4, num_experts_per_tok=2),
    dict(model_type="qwen3_moe", vocab_size=6, hidden_size=6, intermediate_size=5, num_hidden_layers=2, num_attention_heads=4,
         num_key_value_heads=2, head_dim=4, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=True, sequences=1,
         length=7, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=3, norm_topk_prob=False),
    dict(model_type="dots1", vocab_size=6, hidden_size=8, intermediate_size=5, num_hidden_layers=3, num_attention_heads=4,
         num_key_value_heads=2, head_dim=4, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=False, sequences=2,
         length=5, n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=3,
         first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5, sliding_window=None),
    dict(model_type="gemma", vocab_size=7, hidden_size=10, intermediate_size=9, num_hidden_layers=2, num_attention_heads=4,
         num_key_value_heads=1, head_dim=6, rms_norm_eps=1e-6, rope_theta=100.0, tie_word_embeddings=True, sequences=2,
         length=6),
    # Yarn, with high, low and medium frequencies, cut at whole pairs and not; beyond and up to the original positions.
    dict(vocab_size=6, hidden_size=8, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
         head_dim=16, rms_norm_eps=1e-5, rope_theta=50.0, tie_word_embeddings=False, sequences=1, length=19,
         rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=6.0, beta_slow=0.5, original_max_position_embeddings=64)),
    dict(model_type="qwen3", vocab_size=6, hidden_size=8, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2,
         num_key_value_heads=1, head_dim=12, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=False, sequences=1, length=9,
         rope_scaling=dict(rope_type="yarn", factor=8.0, beta_fast=4.0, beta_slow=1.0, truncate=False, mscale=0.7,
                           mscale_all_dim=0.3, original_max_position_embeddings=32)),
    dict(vocab_size=6, hidden_size=8, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
         head_dim=8, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=False, sequences=1, length=11,
         max_position_embeddings=8, rope_scaling=dict(rope_type="dynamic", factor=3.0)),
    # The short and the long factors, of a part of each head.
    dict(model_type="phi3", vocab_size=7, hidden_size=16, intermediate_size=9, num_hidden_layers=2, num_attention_heads=2,
         num_key_value_heads=1, rms_norm_eps=1e-5, rope_theta=100.0, partial_rotary_factor=0.75, tie_word_embeddings=False,
         sequences=2, length=6, original_max_position_embeddings=16,
         rope_scaling=dict(rope_type="longrope", short_factor=[1.0, 1.5, 2.0], long_factor=[2.0, 3.0, 5.0])),
    dict(model_type="phi3", vocab_size=6, hidden_size=8, intermediate_size=7, num_hidden_layers=1, num_attention_heads=2,
         num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=True, sequences=1, length=9,
         original_max_position_embeddings=7, sliding_window=4,
         rope_scaling=dict(rope_type="longrope", short_factor=[1.0, 1.5], long_factor=[2.0, 3.0])),
    dict(model_type="smollm3", vocab_size=8, hidden_size=8, intermediate_size=6, num_hidden_layers=3, num_attention_heads=4,
         num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=True, sequences=2, length=6,
         no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=3),
    dict(model_type="olmo2", vocab_size=8, hidden_size=16, intermediate_size=6, num_hidden_layers=2, num_attention_heads=4,
         num_key_value_heads=2, rms_norm_eps=1e-3, rope_theta=100.0, tie_word_embeddings=False, sequences=2, length=6),
    # Caps, small enough to matter, and windows of 3 keys in every other layer.
    dict(model_type="gemma2", vocab_size=7, hidden_size=12, intermediate_size=9, num_hidden_layers=3, num_attention_heads=4,
         num_key_value_heads=2, head_dim=6, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=True, sequences=2, length=7,
         query_pre_attn_scalar=3, attn_logit_softcapping=0.5, final_logit_softcapping=2.0, sliding_window=3),
    dict(model_type="gemma3_text", vocab_size=7, hidden_size=12, intermediate_size=9, num_hidden_layers=3, num_attention_heads=4,
         num_key_value_heads=2, head_dim=6, rms_norm_eps=1e-5, rope_theta=1000.0, rope_local_base_freq=50.0,
         tie_word_embeddings=True, sequences=2, length=7, query_pre_attn_scalar=3, final_logit_softcapping=2.0, sliding_window=3,
         layer_types=["sliding_attention", "full_attention", "sliding_attention"], rope_scaling=dict(rope_type="linear", factor=8.0)),
    dict(model_type="gpt_oss", vocab_size=7, hidden_size=8, intermediate_size=5, num_hidden_layers=3, num_attention_heads=4,
         num_key_value_heads=2, head_dim=6, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=False, sequences=2, length=7,
         sliding_window=3, num_local_experts=4, num_experts_per_tok=2,
         rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=6.0, beta_slow=0.5, truncate=False,
                           original_max_position_embeddings=64)),
    # So wide that some gates and ups are beyond the limits.
    dict(model_type="gpt_oss", vocab_size=6, hidden_size=120, intermediate_size=6, num_hidden_layers=2, num_attention_heads=3,
         num_key_value_heads=1, head_dim=4, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=True, sequences=1, length=9,
         sliding_window=2, layer_types=["full_attention", "sliding_attention"], attention_bias=False, num_local_experts=3,
         num_experts_per_tok=2, rope_scaling=dict(rope_type="default")),
    # Latent attention: with and without a latent vector of queries, groups with the best expert and with the best two, yarn with
    # its factor of scores, pairs that are adjacent or not, values smaller than keys.
    dict(model_type="deepseek_v2", vocab_size=7, hidden_size=12, intermediate_size=9, num_hidden_layers=2, num_attention_heads=3,
         num_key_value_heads=3, q_lora_rank=None, kv_lora_rank=6, qk_nope_head_dim=2, qk_rope_head_dim=4, v_head_dim=5,
         rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=False, sequences=2, length=6, n_routed_experts=6,
         num_experts_per_tok=2, n_shared_experts=2, moe_intermediate_size=3, first_k_dense_replace=1, topk_method="greedy",
         routed_scaling_factor=1.0),
    dict(model_type="deepseek_v2", vocab_size=6, hidden_size=8, intermediate_size=7, num_hidden_layers=2, num_attention_heads=4,
         num_key_value_heads=4, q_lora_rank=6, kv_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=6,
         rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=False, sequences=1, length=9, n_routed_experts=9,
         num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=4, first_k_dense_replace=0,
         topk_method="group_limited_greedy", n_group=3, topk_group=2, routed_scaling_factor=2.5),
    dict(model_type="deepseek_v3", vocab_size=7, hidden_size=10, intermediate_size=9, num_hidden_layers=3, num_attention_heads=2,
         num_key_value_heads=2, q_lora_rank=5, kv_lora_rank=6, qk_nope_head_dim=5, qk_rope_head_dim=8, v_head_dim=4,
         rms_norm_eps=1e-5, rope_theta=50.0, tie_word_embeddings=False, sequences=2, length=9, n_routed_experts=8,
         num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=3, first_k_dense_replace=1, n_group=4, topk_group=2,
         routed_scaling_factor=1.5, norm_topk_prob=True,
         rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=6.0, beta_slow=0.5, mscale=0.7, mscale_all_dim=0.9,
                           original_max_position_embeddings=64)),
    dict(model_type="deepseek_v3", vocab_size=6, hidden_size=8, intermediate_size=5, num_hidden_layers=2, num_attention_heads=4,
         num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=4, qk_nope_head_dim=2, qk_rope_head_dim=4, v_head_dim=3,
         rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=True, sequences=1, length=8, rope_interleave=False,
         n_routed_experts=6, num_experts_per_tok=3, n_shared_experts=2, moe_intermediate_size=3, first_k_dense_replace=0, n_group=1,
         topk_group=1, routed_scaling_factor=2.0, norm_topk_prob=False),
]

MODELS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "dots1": (transformers.Dots1Config, transformers.Dots1ForCausalLM),
    "gemma": (transformers.GemmaConfig, transformers.GemmaForCausalLM),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
    "gemma3_text": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    "gpt_oss": (transformers.GptOssConfig, transformers.GptOssForCausalLM),
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
    "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM),
    "deepseek_v2": (transformers.DeepseekV2Config, transformers.DeepseekV2ForCausalLM),
    "deepseek_v3": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM),
    "olmo2": (transformers.Olmo2Config, transformers.Olmo2ForCausalLM),
}


class DoubleTorch:
    """torch with float32 replaced by float64."""

    def __getattr__(self, name):
        return getattr(torch, "float64" if name in ("float32", "float") else name)


def use_doubles(module):
    module.torch = DoubleTorch()
    torch.Tensor.float = torch.Tensor.double
    to = torch.Tensor.to

    def to_double(tensor, *args, **kwargs):
        change = lambda value: torch.float64 if value is torch.float32 else value
        return to(tensor, *map(change, args), **{key: change(value) for key, value in kwargs.items()})

    torch.Tensor.to = to_double


def tensors_of(model):
    """Returns (name, tensor, its gradient or None) in the order of TensorsOf in reference_llama.cc. Experts are parts of tensors."""
    parameters = dict(model.named_parameters())
    buffers = {name: buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")}
    used, tensors = set(), []
    config = model.config
    has_output_norms = config.model_type in ("olmo2", "gemma2", "gemma3_text")

    def add(name, part=lambda tensor: tensor, label=None):
        if name in buffers:
            tensors.append((label or name, buffers[name], None))
        elif name in parameters:
            used.add(name)
            grad = parameters[name].grad
            tensors.append((label or name, part(parameters[name]), None if grad is None else part(grad)))

    add("model.embed_tokens.weight")
    for layer in range(model.config.num_hidden_layers):
        at = "model.layers.%d." % layer
        add(at + "input_layernorm.weight")
        for name in ("q_a_proj", "q_b_proj"):
            add(at + "self_attn.%s.weight" % name)
        rows = [0]
        for heads in (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads):
            rows.append(rows[-1] + heads * getattr(model.model.layers[layer].self_attn, "head_dim", 0))
        for name, first, end in zip("qkv", rows, rows[1:]):
            add(at + "self_attn.%s_proj.weight" % name)
            add(at + "self_attn.%s_proj.bias" % name)
            add(at + "self_attn.qkv_proj.weight", lambda tensor: tensor[first:end], name)
        for name in ("self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj", "self_attn.o_proj", "self_attn.sinks", "self_attn.q_norm",
                     "self_attn.k_norm", "self_attn.q_a_layernorm", "self_attn.kv_a_layernorm", "post_attention_layernorm",
                     "pre_feedforward_layernorm", "mlp.gate_proj", "mlp.up_proj"):
            add(at + name)
            add(at + name + ".weight")
            add(at + name + ".bias")
        add(at + "mlp.gate_up_proj.weight", lambda tensor: tensor[:config.intermediate_size], "gate")
        add(at + "mlp.gate_up_proj.weight", lambda tensor: tensor[config.intermediate_size:], "up")
        add(at + "mlp.down_proj.weight")
        add(at + "mlp.gate.weight")
        add(at + "mlp.gate.e_score_correction_bias")
        add(at + "mlp.router.weight")
        add(at + "mlp.router.bias")
        if has_output_norms:
            add(at + "post_feedforward_layernorm.weight")
        fused = parameters.get(at + "mlp.experts.gate_up_proj")
        is_transposed = config.model_type == "gpt_oss"
        for expert in range(fused.shape[0] if is_transposed else 0):
            for name, first in (("gate", 0), ("up", 1)):
                add(at + "mlp.experts.gate_up_proj", lambda tensor: tensor[expert][:, first::2].T, name)
                add(at + "mlp.experts.gate_up_proj_bias", lambda tensor: tensor[expert][first::2], name)
            add(at + "mlp.experts.down_proj", lambda tensor: tensor[expert].T, "down")
            add(at + "mlp.experts.down_proj_bias", lambda tensor: tensor[expert], "down")
        for expert in range(0 if fused is None or is_transposed else fused.shape[0]):
            units = fused.shape[1] // 2
            add(at + "mlp.experts.gate_up_proj", lambda tensor: tensor[expert][:units], "gate")
            add(at + "mlp.experts.gate_up_proj", lambda tensor: tensor[expert][units:], "up")
            add(at + "mlp.experts.down_proj", lambda tensor: tensor[expert], "down")
        for name in ("gate_proj", "up_proj", "down_proj"):
            add(at + "mlp.shared_experts.%s.weight" % name)
    add("model.norm.weight")
    if not model.config.tie_word_embeddings:
        add("lm_head.weight")
    if used != set(parameters):
        sys.exit("the model's weights are %s" % sorted(parameters))
    return tensors


def split_mix_64(x):
    x = (x + 0x9e3779b97f4a7c15) % 2**64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9 % 2**64
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb % 2**64
    return x ^ (x >> 31)


def fill_by_formula(model):
    with torch.no_grad():
        for i, (name, parameter, _) in enumerate(tensors_of(model)):
            values = [math.ldexp(split_mix_64((i << 32) + j) >> 11, -52) - 1 for j in range(parameter.numel())]
            norm = name.endswith("norm.weight")
            # Gemma's norms multiply by 1 + their weight.
            one = 0 if model.config.model_type.startswith("gemma") else 1
            values = [one + s / 4 if norm else s / 2 for s in values]
            parameter.copy_(torch.tensor(values, dtype=torch.float64).reshape(parameter.shape))


def slopes_of(model):
    """Returns by tensor the change of the loss when element j moves by cos(j + 1), which depends on every element's gradient."""
    slopes = []
    for _, parameter, grad in tensors_of(model):
        ways = torch.tensor([math.cos(j + 1) for j in range(parameter.numel())], dtype=torch.float64)
        slopes.append(0.0 if grad is None else torch.dot(grad.flatten(), ways).item())
    return slopes


def run(case):
    options = {key: value for key, value in case.items() if key not in ("sequences", "length", "model_type", "rope_scaling")}
    rope = {"rope_theta": options.pop("rope_theta"), "rope_type": "default", **case.get("rope_scaling", {})}
    if "partial_rotary_factor" in options:
        rope["partial_rotary_factor"] = options.pop("partial_rotary_factor")
    config_class, model_class = MODELS[case.get("model_type", "llama")]
    options.setdefault("max_position_embeddings", 512)
    options["pad_token_id"] = None  # Its row of the embedding would have no gradient.
    given = rope
    if "rope_local_base_freq" in options:
        given = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": options.pop("rope_local_base_freq")}}
    config = config_class(**options, rope_parameters=given, attn_implementation="eager", experts_implementation="eager")
    for key, value in given.items():
        if config.rope_parameters[key] != value:
            sys.exit("the configuration has %s" % config.rope_parameters)
    model = model_class(config).double().eval()
    embedding = model.get_input_embeddings()
    if hasattr(embedding, "scalar_embed_scale"):
        embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale, dtype=torch.float64)
    fill_by_formula(model)
    count = case["sequences"] * (case["length"] + 1)
    tokens = [split_mix_64(i) % case["vocab_size"] for i in range(count)]
    rows = torch.tensor(tokens).reshape(case["sequences"], case["length"] + 1)
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, case["vocab_size"]), rows[:, 1:].reshape(-1))
    loss.backward()
    return {"tokens": tokens, "logits": logits.detach(), "loss": loss.item(), "slopes": slopes_of(model)}


def main():
    singles = [run(case) for case in CASES]
    torch.set_default_dtype(torch.float64)
    for module in (modeling_deepseek_v2, modeling_deepseek_v3, modeling_dots1, modeling_gemma, modeling_gemma2, modeling_gemma3,
                   modeling_gpt_oss, modeling_llama, modeling_mistral, modeling_mixtral,
                   modeling_olmo2, modeling_phi3, modeling_qwen2, modeling_qwen3, modeling_qwen3_moe, modeling_smollm3, modeling_rope_utils):
        use_doubles(module)
    documents = []
    for case, single in zip(CASES, singles):
        result = run(case)
        difference = (single["logits"] - result["logits"]).abs().max() / result["logits"].abs().max()
        print("float32 inside transformers changes logits by up to %.2g of the largest, the loss by %.2g" % (
            difference, abs(single["loss"] / result["loss"] - 1)))
        documents.append({"model": {key: case[key] for key in case if key not in ("sequences", "length")},
                          "sequences": case["sequences"], "length": case["length"], **result,
                          "logits": result["logits"].flatten().tolist()})
    with open(sys.argv[1], "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(document) for document in documents) + "\n]\n")
    print("torch %s, transformers %s" % (torch.__version__, transformers.__version__))


if __name__ == "__main__":
    main()
