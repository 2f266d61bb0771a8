"""Training steps of Tessera and PyTorch on this CPU, in turn.

    bazel build //tools/train:step_benchmark
    python3 tools/train/compare_torch.py --rounds=5

Both train the same Llama model, alternating step by step, so that other load on
the machine affects both equally. Prints the median tokens/s of each and their ratio
for models, types, micro-batches and numbers of threads, and the geometric mean of
the ratios for each type. Requires a Python with torch, which --python names.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys


class Peer:
    """A process that takes a step for each line that it is sent."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[0]} ended: {self.process.wait()}")
        return json.loads(line)

    def step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()["tokens_per_second"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(args, model, dtype, micro_batch, threads):
    flags = [
        f"--dtype={dtype}",
        f"--length={args.length}",
        f"--batch={args.batch}",
        f"--micro_batch={micro_batch}",
        f"--threads={threads}",
    ]
    ours = Peer([args.binary, f"--model={model}", "--on_request", *flags])
    config = ours.read()["config"]
    script = pathlib.Path(__file__).with_name("torch_step.py")
    compiled = ["--compile"] if args.compile else []
    theirs = Peer(
        [args.python, script, f"--config={json.dumps(config)}", *compiled, *flags]
    )
    theirs.read()
    rates = ([], [])
    for _ in range(args.rounds):
        for peer, list_of_rates in zip((ours, theirs), rates):
            list_of_rates.append(peer.step())
    ours.close()
    theirs.close()
    return [statistics.median(r) for r in rates]


def split(text):
    return text.split(",")


def numbers(text):
    return [int(number) for number in split(text)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=split, default=["llama-10m", "llama-125m"])
    parser.add_argument("--dtypes", type=split, default=["fp32", "bf16"])
    parser.add_argument("--micro_batches", type=numbers, default=[1, 8])
    parser.add_argument(
        "--threads", type=numbers, default=sorted({1, len(os.sched_getaffinity(0))})
    )
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--binary", default="bazel-bin/tools/train/step_benchmark")
    args = parser.parse_args()
    print("model        type  micro  threads   tessera     torch  ratio")
    ratios = {dtype: [] for dtype in args.dtypes}
    for model in args.models:
        for dtype in args.dtypes:
            for micro in args.micro_batches:
                for threads in args.threads:
                    ours, theirs = compare(args, model, dtype, micro, threads)
                    ratios[dtype].append(ours / theirs)
                    print(
                        f"{model:12} {dtype:5} {micro:5} {threads:8} "
                        f"{ours:9.0f} {theirs:9.0f} {ours / theirs:6.2f}",
                        flush=True,
                    )
    for dtype, values in ratios.items():
        mean = math.exp(statistics.fmean(map(math.log, values)))
        print(f"{dtype}: geometric mean {mean:.2f}, least {min(values):.2f}")


if __name__ == "__main__":
    main()
