"""Times steps of tessera.optim.CPUAdamW and of PyTorch's AdamW (fused, foreach), in turn in one run.

    OMP_NUM_THREADS=2 python adamw_benchmark.py [--elements=20000000] [--tensors=50]

Prints the median time of each, the bytes that it moves at least over that time, and its ratio to ours.
"""

import argparse
import statistics
import time

import torch

from tessera.optim import CPUAdamW


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=20_000_000)
    parser.add_argument("--tensors", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()

    def make(dtype=torch.float32):
        params = [torch.nn.Parameter(torch.randn(args.elements // args.tensors).to(dtype)) for _ in range(args.tensors)]
        for parameter in params:
            parameter.grad = torch.randn_like(parameter)
        return params

    # The parameter, the gradient and two moments are read, and all but the gradient written.
    wide = 28
    optimizers = {
        "tessera": (CPUAdamW(make()), wide),
        "torch fused": (torch.optim.AdamW(make(), fused=True), wide),
        "torch foreach": (torch.optim.AdamW(make(), foreach=True), wide),
        "tessera, bf16 moments": (CPUAdamW(make(), moments="bfloat16"), 20),
        "tessera, int8 moments": (CPUAdamW(make(), moments="int8"), 16),
        "tessera, bf16 parameters": (CPUAdamW(make(torch.bfloat16)), 28),
    }
    times = {name: [] for name in optimizers}
    for round_number in range(args.rounds + 2):
        for name, (optimizer, _) in optimizers.items():
            begin = time.perf_counter()
            optimizer.step()
            if round_number > 1:
                times[name].append(time.perf_counter() - begin)
    ours = statistics.median(times["tessera"])
    print(f"{args.elements} elements, {torch.get_num_threads()} threads")
    for name, (_, size) in optimizers.items():
        median = statistics.median(times[name])
        print(f"{name:26} {median * 1e3:8.2f} ms {args.elements * size / median / 1e9:7.1f} GB/s   {median / ours:5.2f}")


if __name__ == "__main__":
    main()
