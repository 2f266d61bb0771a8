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
from transformers.models.dots1 import modeling_dots1
from transformers.models.gemma import modeling_gemma
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.mixtral import modeling_mixtral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe

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
        for name in ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm",
                     "self_attn.k_norm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.gate"):
            add(at + name + ".weight")
            add(at + name + ".bias")
        add(at + "mlp.gate.e_score_correction_bias")
        fused = parameters.get(at + "mlp.experts.gate_up_proj")
        for expert in range(0 if fused is None else fused.shape[0]):
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
            one = 0 if model.config.model_type == "gemma" else 1
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
    config_class, model_class = MODELS[case.get("model_type", "llama")]
    config = config_class(**options, rope_parameters=rope, max_position_embeddings=512, attn_implementation="eager", experts_implementation="eager")
    for key, value in rope.items():
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
    for module in (modeling_dots1, modeling_gemma, modeling_llama, modeling_mistral, modeling_mixtral, modeling_qwen2, modeling_qwen3, modeling_qwen3_moe,
                   modeling_rope_utils):
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
