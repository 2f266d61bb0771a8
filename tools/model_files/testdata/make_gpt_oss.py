#!/usr/bin/env python3
"""Writes the same small GPT-OSS twice: gpt_oss/mxfp4 with its experts in MXFP4, as published, and gpt_oss/bf16 with them as
transformers dequantises them.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python make_gpt_oss.py gpt_oss
"""
import json
import os
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

torch.manual_seed(0)
config = transformers.GptOssConfig(
    vocab_size=8, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
    num_local_experts=3, num_experts_per_tok=2, sliding_window=3, max_position_embeddings=32, pad_token_id=None)
model = transformers.GptOssForCausalLM(config).bfloat16()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape))
plain, packed = (os.path.join(sys.argv[1], name) for name in ("bf16", "mxfp4"))
quantised = {}
with torch.no_grad():
    for number, layer in enumerate(model.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            parameter = getattr(layer.mlp.experts, name)
            experts, columns, rows = parameter.shape
            blocks = torch.randint(256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
            scales = torch.randint(100, 140, blocks.shape[:-1], dtype=torch.uint8)
            parameter.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16))
            at = "model.layers.%d.mlp.experts.%s" % (number, name)
            quantised[at] = {at + "_blocks": blocks, at + "_scales": scales}
model.save_pretrained(plain)
os.remove(os.path.join(plain, "generation_config.json"))
tensors = load_file(os.path.join(plain, "model.safetensors"))
for name, parts in quantised.items():
    del tensors[name]
    tensors.update(parts)
os.makedirs(packed, exist_ok=True)
save_file(tensors, os.path.join(packed, "model.safetensors"), {"format": "pt"})
with open(os.path.join(plain, "config.json")) as file:
    described = json.load(file)
described["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
with open(os.path.join(packed, "config.json"), "w") as file:
    json.dump(described, file, indent=2)
    file.write("\n")
print("torch %s, transformers %s" % (torch.__version__, transformers.__version__))
