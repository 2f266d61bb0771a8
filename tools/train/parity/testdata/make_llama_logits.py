#!/usr/bin/env python3
"""Writes llama_logits.json: the results of transformers' models of Llama's family for weights given by a formula.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python make_llama_logits.py llama_logits.json

The weights are those of FillByFormula in reference_weights.h. transformers computes norms, angles and softmaxes in float32 for
every type of model; this script replaces float32 by float64 to get all digits, and prints the difference.
"""
import json
import math
import sys

import torch
import transformers
from transformers import modeling_rope_utils
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

CASES = [
    dict(vocab_size=11, hidden_size=12, intermediate_size=14, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
         head_dim=6, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, sequences=2, length=5),
    dict(vocab_size=7, hidden_size=6, intermediate_size=5, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=1,
         head_dim=4, rms_norm_eps=1e-3, rope_theta=100.0, tie_word_embeddings=True, sequences=1, length=9),
    dict(vocab_size=5, hidden_size=12, intermediate_size=31, num_hidden_layers=1, num_attention_heads=3, num_key_value_heads=3,
         head_dim=4, rms_norm_eps=1e-6, rope_theta=500000.0, tie_word_embeddings=False, sequences=3, length=2),
    # Llama 3.1: of the six frequencies some are high, some low and some between.
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
    # Windows of 3 keys, in all layers, and in all but the first.
    dict(model_type="mistral", vocab_size=7, hidden_size=8, intermediate_size=5, num_hidden_layers=2, num_attention_heads=4,
         num_key_value_heads=2, head_dim=4, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=False, sequences=2,
         length=8, sliding_window=3),
    dict(model_type="qwen2", vocab_size=6, hidden_size=8, intermediate_size=6, num_hidden_layers=3, num_attention_heads=2,
         num_key_value_heads=1, head_dim=4, rms_norm_eps=1e-6, rope_theta=1000.0, tie_word_embeddings=False, sequences=1,
         length=9, use_sliding_window=True, sliding_window=3, max_window_layers=1),
    dict(model_type="qwen3", vocab_size=8, hidden_size=10, intermediate_size=7, num_hidden_layers=2, num_attention_heads=4,
         num_key_value_heads=2, head_dim=6, rms_norm_eps=1e-4, rope_theta=1000.0, tie_word_embeddings=True, sequences=2,
         length=6, attention_bias=True),
]

MODELS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
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
    """Returns the tensors in the order of TensorsOf in reference_weights.h."""
    names = ["model.embed_tokens.weight"]
    for layer in range(model.config.num_hidden_layers):
        names += ["model.layers.%d.%s.%s" % (layer, name, kind) for name in (
            "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj") for kind in ("weight", "bias")]
    names.append("model.norm.weight")
    if not model.config.tie_word_embeddings:
        names.append("lm_head.weight")
    parameters = dict(model.named_parameters())
    optional = (".bias", "self_attn.q_norm.weight", "self_attn.k_norm.weight")
    names = [name for name in names if name in parameters or not name.endswith(optional)]
    if set(names) != set(parameters):
        sys.exit("the model's weights are %s" % sorted(parameters))
    return [(name, parameters[name]) for name in names]


def split_mix_64(x):
    x = (x + 0x9e3779b97f4a7c15) % 2**64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9 % 2**64
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb % 2**64
    return x ^ (x >> 31)


def fill_by_formula(model):
    with torch.no_grad():
        for i, (name, parameter) in enumerate(tensors_of(model)):
            values = [math.ldexp(split_mix_64((i << 32) + j) >> 11, -52) - 1 for j in range(parameter.numel())]
            norm = name.endswith("norm.weight")
            values = [1 + s / 4 if norm else s / 2 for s in values]
            parameter.copy_(torch.tensor(values, dtype=torch.float64).reshape(parameter.shape))


def slopes_of(model):
    """Returns by tensor the change of the loss when element j moves by cos(j + 1), which depends on every element's gradient."""
    slopes = []
    for _, parameter in tensors_of(model):
        ways = torch.tensor([math.cos(j + 1) for j in range(parameter.numel())], dtype=torch.float64)
        slopes.append(torch.dot(parameter.grad.flatten(), ways).item())
    return slopes


def run(case):
    options = {key: value for key, value in case.items() if key not in ("sequences", "length", "model_type", "rope_scaling")}
    rope = {"rope_theta": options.pop("rope_theta"), "rope_type": "default", **case.get("rope_scaling", {})}
    config_class, model_class = MODELS[case.get("model_type", "llama")]
    config = config_class(**options, rope_parameters=rope, max_position_embeddings=512, attn_implementation="eager")
    for key, value in rope.items():
        if config.rope_parameters[key] != value:
            sys.exit("the configuration has %s" % config.rope_parameters)
    model = model_class(config).double().eval()
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
    for module in (modeling_llama, modeling_mistral, modeling_qwen2, modeling_qwen3, modeling_rope_utils):
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
