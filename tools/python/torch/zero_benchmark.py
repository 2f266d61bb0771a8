"""Times training steps of tessera_torch.zero and of FSDP2 alternately, with the same losses.

    python zero_benchmark.py --ranks=2 [--width=512 --layers=6 --batch=2 --sequence=256 --dtype=bfloat16]

Prints the median time of a step. `--only=zero` or `--only=fsdp` runs one of them and prints the memory that its steps added to a rank.
"""

import argparse
import os
import resource
import statistics
import time

import ranks
import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, width, layers, words=8192):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, width // 64) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def fsdp(model, mesh, rate):
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=True)


def peak_bytes():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run_rank(options):
    torch.set_num_threads(options.threads)
    from tessera_torch import zero

    dist.init_process_group("tessera")
    rank = dist.get_rank()
    dtype = getattr(torch, options.dtype)
    models, optimizers = {}, {}
    before = peak_bytes()
    for name in [options.only] if options.only else ["zero", "fsdp"]:
        torch.manual_seed(0)
        model = models[name] = Model(options.width, options.layers).to(dtype)
        if name == "zero":
            optimizers[name] = zero.shard(model, lr=1e-4, threads=options.threads)
        else:
            optimizers[name] = fsdp(model, dist.init_device_mesh("cpu", (options.ranks,)), 1e-4)
    tokens = torch.randint(8192, (options.batch, options.sequence + 1), generator=torch.Generator().manual_seed(rank))
    times, losses = {name: [] for name in models}, {}
    for _ in range(options.steps + 2):
        for name, model in models.items():
            dist.barrier()
            begin = time.perf_counter()
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            dist.barrier()
            times[name].append(time.perf_counter() - begin)
            losses[name] = loss.item()
    if rank == 0:
        medians = {name: statistics.median(values[2:]) for name, values in times.items()}
        print(f"{options.ranks} ranks, {options.dtype}:", *(f"{name} {1e3 * median:.1f} ms" for name, median in medians.items()))
        if options.only:
            print(f"memory: {(peak_bytes() - before) / 1e6:.0f} MB more at the peak than before the model was made")
        else:
            print(f"fsdp's time over zero's: {medians['fsdp'] / medians['zero']:.2f}")
        print("losses:", losses)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    for name, value in {"ranks": 2, "width": 512, "layers": 6, "batch": 2, "sequence": 256, "steps": 10, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", choices=["zero", "fsdp"])
    options = parser.parse_args()
    ranks.run(options.ranks, run_rank, options)


if __name__ == "__main__":
    main()
