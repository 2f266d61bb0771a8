"""Times steps of tessera.optim.CPUAdamW, PyTorch's AdamW and, where it is installed, DeepSpeed's CPUAdam, in turn in one run.

    OMP_NUM_THREADS=2 python adamw_benchmark.py [--elements=20000000] [--tensors=50]

Prints for each its median time, the minimum of bytes moved per second, and the ratio of its time to the first of its case:

    float32      parameters, gradients and moments in float32
    clipped      the same, with the gradients' norm limited
    bfloat16     parameters and gradients in bfloat16, masters and moments in float32, and the norm limited: the step of
                 mixed-precision training
    narrow       moments in fewer bits
"""

import argparse
import os
import statistics
import sys
import time

# Excludes this directory, where Python would find the package without its extension module.
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != os.path.dirname(os.path.abspath(__file__))]

import torch  # noqa: E402

from tessera.optim import CPUAdamW  # noqa: E402

os.environ.setdefault("DS_ACCELERATOR", "cpu")
try:
    from deepspeed.ops.adam import DeepSpeedCPUAdam
except ImportError:
    DeepSpeedCPUAdam = None

MAX_NORM = 1.0


class Masters:
    """Adds mixed precision to an optimizer that lacks it: masters in float32, to which gradients are copied."""

    def __init__(self, params, make_optimizer):
        self.params = params
        self.masters = [torch.nn.Parameter(p.detach().float()) for p in params]
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self.optimizer = make_optimizer(self.masters)

    @torch.no_grad()
    def step(self):
        torch._foreach_copy_([m.grad for m in self.masters], [p.grad for p in self.params])
        torch.nn.utils.clip_grad_norm_(self.masters, MAX_NORM, foreach=True)
        self.optimizer.step()
        torch._foreach_copy_(self.params, self.masters)


class Clipped:
    def __init__(self, params, make_optimizer):
        self.params = params
        self.optimizer = make_optimizer(params)

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.params, MAX_NORM, foreach=True)
        self.optimizer.step()


def cases(make):
    """For each case and name an optimizer, and the bytes per element that it must read and write."""

    def fused(params):
        return torch.optim.AdamW(params, fused=True)

    def deepspeed(params):
        return DeepSpeedCPUAdam(params, adamw_mode=True, weight_decay=1e-2)

    bf16 = torch.bfloat16
    # Reads the parameter, the gradient and two moments, and writes all but the gradient.
    every = {
        "float32": {
            "tessera": (CPUAdamW(make()), 28),
            "torch fused": (fused(make()), 28),
            "torch foreach": (torch.optim.AdamW(make(), foreach=True), 28),
        },
        "clipped": {
            "tessera": (CPUAdamW(make(), max_norm=MAX_NORM), 32),
            "torch fused": (Clipped(make(), fused), 32),
        },
        "bfloat16": {
            "tessera": (CPUAdamW(make(bf16), max_norm=MAX_NORM), 30),
            "torch fused": (Masters(make(bf16), fused), 30),
        },
        "narrow": {
            "tessera, bf16 moments": (CPUAdamW(make(), moments="bfloat16"), 20),
            "tessera, int8 moments": (CPUAdamW(make(), moments="int8"), 16),
        },
    }
    if DeepSpeedCPUAdam:
        every["float32"]["deepspeed"] = (deepspeed(make()), 28)
        every["clipped"]["deepspeed"] = (Clipped(make(), deepspeed), 32)
        every["bfloat16"]["deepspeed"] = (Masters(make(bf16), deepspeed), 30)
    return every


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=20_000_000)
    parser.add_argument("--tensors", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()

    def make(dtype=torch.float32):
        params = [torch.nn.Parameter(torch.randn(args.elements // args.tensors).to(dtype)) for _ in range(args.tensors)]
        for parameter in params:
            parameter.grad = torch.randn_like(parameter)
        return params

    print(f"{args.elements} elements in {args.tensors} tensors, {torch.get_num_threads()} threads")
    for case, optimizers in cases(make).items():
        times = {name: [] for name in optimizers}
        for round_number in range(args.rounds + 2):
            for name, (optimizer, _) in optimizers.items():
                begin = time.perf_counter()
                optimizer.step()
                if round_number > 1:
                    times[name].append(time.perf_counter() - begin)
        medians = {name: statistics.median(values) for name, values in times.items()}
        first = next(iter(medians.values()))
        for name, (_, size) in optimizers.items():
            rate = args.elements * size / medians[name] / 1e9
            print(f"{case:10}{name:24}{medians[name] * 1e3:9.2f} ms{rate:8.1f} GB/s{medians[name] / first:8.2f}")


if __name__ == "__main__":
    main()
