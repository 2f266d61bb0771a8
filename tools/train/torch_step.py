"""Training steps of a Llama model by PyTorch on the CPU, to compare with.

Reads requests from standard input: for each line it executes --steps optimizer
steps and prints a JSON object. `compare_torch.py` runs this script and
`step_benchmark`, which answers the same requests.

The model is typical PyTorch code: eager modules, scaled_dot_product_attention,
F.rms_norm, the fused AdamW, gradients clipped by norm. In bf16, weights, gradients
and moments are bf16, which is less work than Tessera's f32 master weights and
gradients.
"""

import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        d = c["hidden"] // c["heads"] if not c["head_size"] else c["head_size"]
        self.d = d
        rows = (c["heads"] + 2 * c["kv_heads"]) * d
        self.qkv = nn.Linear(c["hidden"], rows, bias=False)
        self.out = nn.Linear(c["heads"] * d, c["hidden"], bias=False)
        self.gate = nn.Linear(c["hidden"], c["intermediate"], bias=False)
        self.up = nn.Linear(c["hidden"], c["intermediate"], bias=False)
        self.down = nn.Linear(c["intermediate"], c["hidden"], bias=False)
        self.norm1 = nn.RMSNorm(c["hidden"], eps=c["norm_epsilon"])
        self.norm2 = nn.RMSNorm(c["hidden"], eps=c["norm_epsilon"])

    def rotate(self, x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    def forward(self, x, cos, sin):
        c, d = self.c, self.d
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(
            (c["heads"] * d, c["kv_heads"] * d, c["kv_heads"] * d), dim=-1
        )
        q = q.view(batch, length, c["heads"], d).transpose(1, 2)
        k = k.view(batch, length, c["kv_heads"], d).transpose(1, 2)
        v = v.view(batch, length, c["kv_heads"], d).transpose(1, 2)
        a = F.scaled_dot_product_attention(
            self.rotate(q, cos, sin),
            self.rotate(k, cos, sin),
            v,
            is_causal=True,
            enable_gqa=c["heads"] != c["kv_heads"],
        )
        x = x + self.out(a.transpose(1, 2).reshape(batch, length, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, c, length):
        super().__init__()
        self.embedding = nn.Embedding(c["vocabulary"], c["hidden"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = nn.RMSNorm(c["hidden"], eps=c["norm_epsilon"])
        self.head = nn.Linear(c["hidden"], c["vocabulary"], bias=False)
        if c["tied_embeddings"]:
            self.head.weight = self.embedding.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        d = self.blocks[0].d
        frequency = c["rope_theta"] ** (-torch.arange(0, d, 2).float() / d)
        angle = torch.outer(torch.arange(length).float(), frequency)
        angle = torch.cat((angle, angle), dim=-1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, ids, targets):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="JSON of the model")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro_batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    c = json.loads(args.config)
    model = Llama(c, args.length)
    if args.dtype == "bf16":
        model.to(torch.bfloat16)
    if args.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    count = args.batch // args.micro_batch
    ids = torch.randint(c["vocabulary"], (count, args.micro_batch, args.length + 1))

    def step():
        for part in ids:
            loss = model(part[:, :-1], part[:, 1:]) / count
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.item()

    step()
    print(json.dumps({"ready": torch.__version__}), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        for _ in range(args.steps):
            step()
        seconds = time.perf_counter() - begin
        tokens = args.batch * args.length * args.steps
        answer = {"seconds": seconds, "tokens_per_second": tokens / seconds}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
