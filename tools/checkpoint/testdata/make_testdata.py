"""Makes the test data in this directory with torch and transformers: a Llama model of random weights and its results.

    python3 make_testdata.py
"""

import json
import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(20)
config = LlamaConfig(
    vocab_size=31, hidden_size=8, intermediate_size=10, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
    max_position_embeddings=32, rms_norm_eps=1e-5, rope_theta=500.0, initializer_range=0.4, tie_word_embeddings=False, bos_token_id=None,
    eos_token_id=None)
model = LlamaForCausalLM(config).eval().float()
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.add_(torch.randn_like(parameter) * 0.2)
model.save_pretrained("llama", max_shard_size="4KB")
if os.path.exists("llama/generation_config.json"):
    os.remove("llama/generation_config.json")

tokens = [3, 30, 0, 17, 5, 5, 21]
inputs, targets = torch.tensor([tokens[:-1]]), torch.tensor(tokens[1:])
with torch.no_grad():
    logits = model(inputs).logits[0].double()
loss = torch.nn.functional.cross_entropy(logits, targets).item()
with open("expected.json", "w") as file:
    json.dump({"tokens": tokens, "loss": loss, "logits": [[round(x, 7) for x in row] for row in logits.tolist()]}, file)
    file.write("\n")
