#!/usr/bin/env python3
"""Draws faults from a seed, lets them happen to training runs, and checks how the runs survive.

    ./bazelw run //tools/train/testing:fault_campaign -- --faults=200 --seed=7

Each run trains a tiny model with copies of the state in memory (--snapshot_every) while two to five faults hit its ranks at random
times. A run passes if it exits with 0, its weights and losses are those of the same run without faults, bit for bit, every killed
rank is named, and no process or file is left. The table has the faults by kind with the time from the fault until the run went on.
Exits with 1 if a run fails, and keeps its directory.
"""

import argparse
import collections
import glob
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

STEPS = 60
LIMIT = 120  # Seconds; a run takes a few.
TIMEOUT = 2  # Of the runs' collectives.
MODEL = """{"architectures": ["%s"], "model_type": "%s", "hidden_act": "silu", "hidden_size": 32, %s
 "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
 "vocab_size": 264, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": false}"""
DENSE = MODEL % ("LlamaForCausalLM", "llama", "")
MIXTURE = MODEL % ("MixtralForCausalLM", "mixtral", '"num_local_experts": 4, "num_experts_per_tok": 2,')

# The model and the flags of each kind of run.
RUNS = {
    "dp2,tp2": ("dense", ["--mesh=dp2,tp2"]),
    "dp2,pp2": ("dense", ["--mesh=dp2,pp2"]),
    "dp4 zero 0": ("dense", ["--mesh=dp4", "--zero=0", "--offload=none"]),
    "dp2 zero 1": ("dense", ["--mesh=dp2", "--zero=1", "--offload=none"]),
    "cp2,tp2 zero 2": ("dense", ["--mesh=cp2,tp2", "--zero=2"]),
    "pp3 zb_h1": ("dense", ["--mesh=pp3", "--schedule=zb_h1", "--micro_batch=2", "--batch=12"]),
    "dp2,tp2 gloo": ("dense", ["--mesh=dp2,tp2", "--engine=gloo"]),
    "dp2,ep2,tp2 mixture": ("mixture", ["--mesh=dp2,ep2,tp2"]),
    "dp2 fp8": ("dense", ["--mesh=dp2", "--dtype=fp8"]),
    "dp2 offload": ("dense", ["--mesh=dp2", "--offload=all", "--moments=int8", "--dtype=bf16"]),
}
# What happens to the chosen ranks: the signal, how many ranks, and after how many seconds SIGCONT follows, if it does.
FAULTS = {
    "SIGKILL": (signal.SIGKILL, 1, None),
    "SIGSEGV": (signal.SIGSEGV, 1, None),
    "SIGABRT": (signal.SIGABRT, 1, None),
    "SIGKILL of two": (signal.SIGKILL, 2, None),
    "SIGSTOP for 0.5 s": (signal.SIGSTOP, 1, 0.5),
    "SIGSTOP for 5 s": (signal.SIGSTOP, 1, 5),
    "SIGSTOP": (signal.SIGSTOP, 1, None),
}
DEADLY = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGKILL of two")
# Long stops cost seconds each, and every one is the same to the others.
WEIGHTS = {"SIGSTOP for 5 s": 0.1, "SIGSTOP": 0.3}


def state_of(run):
    """The weights and the losses of a finished run."""
    files = sorted(glob.glob("%s/checkpoints/step-%08d/*.state" % (run, STEPS)))
    weights = {os.path.basename(file): open(file, "rb").read() for file in files}
    losses = re.findall(r'"step":[^,]*|"loss":[^,}]*', open(run + "/metrics.jsonl").read())
    return weights, losses


def processes_of(run):
    """The processes of the ranks of a run, by rank."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        pid = path.split("/")[2]
        try:
            if run.encode() + b"/.ranks" not in open(path, "rb").read():
                continue
            rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", open("/proc/%s/environ" % pid, "rb").read())
        except OSError:
            continue  # It has ended.
        if rank:
            found[int(rank.group(1))] = int(pid)
    return found


class Campaign:
    def __init__(self, options, work):
        self.options = options
        self.work = work
        self.random = random.Random(options.seed)
        self.calm = {}  # By kind of run: its state and the seconds that it takes.
        self.seconds = collections.defaultdict(list)  # By fault, until the run went on.
        self.hit = collections.Counter()
        for name, text in ("dense", DENSE), ("mixture", MIXTURE):
            os.makedirs("%s/%s" % (work, name))
            with open("%s/%s/config.json" % (work, name), "w") as file:
                file.write(text)
        with open(work + "/text.txt", "w") as file:
            file.writelines("line %d of a text that is easy to learn, line after line\n" % i for i in range(3000))

    def start(self, kind, run, flags):
        model, own_flags = RUNS[kind]
        environment = dict(os.environ, XDG_CACHE_HOME=self.work + "/cache", TMPDIR=self.work)
        return subprocess.Popen(
            [self.options.train, "--model=%s/%s" % (self.work, model), "--data=%s/text.txt" % self.work, "--length=32",
             "--batch=8", "--strategy=all_reduce", "--sample_tokens=0", "--steps=%d" % STEPS, "--run_dir=" + run,
             "--timeout_seconds=%d" % TIMEOUT] + own_flags + flags,
            stdout=subprocess.DEVNULL, stderr=open(run + ".err", "w"), env=environment)

    def reference(self, kind):
        if kind not in self.calm:
            run = "%s/calm%d" % (self.work, len(self.calm))
            begin = time.monotonic()
            if self.start(kind, run, []).wait(LIMIT) != 0:
                sys.exit("the run without faults fails: " + open(run + ".err").read())
            self.calm[kind] = state_of(run), time.monotonic() - begin
        return self.calm[kind]

    def run(self, number):
        """Lets faults hit one run. Returns the number of faults and what is wrong."""
        kind = self.random.choice(list(RUNS))
        state, duration = self.reference(kind)
        run = "%s/run%d" % (self.work, number)
        flags = ["--snapshot_every=%d" % self.random.choice((1, 1, 2, 5)), "--max_restarts=16", "--hang_timeout=" + self.random.choice(("1s", "1h"))]
        # Checkpoints do not contain the scales of fp8, so that a run that falls back to one has other bits.
        if self.random.random() < 0.5 and kind != "dp2 fp8":
            flags.append("--checkpoint_every=%d" % self.random.randint(3, 15))
        process = self.start(kind, run, flags)
        hit, gone = [], {}
        faults = self.random.randint(2, 5)
        for _ in range(faults):
            self.wait(process, self.random.uniform(0, duration * 2 / faults))
            if process.poll() is not None:
                break
            self.strike(process, run, hit, gone)
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            return len(hit), ["%s: %s: hangs" % (kind, hit)]
        text = open(run + ".err").read()
        wrong = [] if code == 0 else ["exits with %d: %s" % (code, text.strip().splitlines()[-1])]
        if code == 0 and state_of(run) != state:
            wrong.append("other weights or losses")
        wrong += ["rank %d, process %d, is not named" % (rank, pid)
                  for pid, rank in gone.items() if "rank %d (pid %d) was killed" % (rank, pid) not in text]
        if processes_of(run) or os.path.exists(run + "/.ranks"):
            wrong.append("processes or files are left")
        if not wrong:
            shutil.rmtree(run)
            os.remove(run + ".err")
        return len(hit), ["%s %s: %s: %s" % (kind, flags, hit, one) for one in wrong]

    @staticmethod
    def wait(process, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end and process.poll() is None:
            time.sleep(0.005)

    def strike(self, process, run, hit, gone):
        """One fault, until the run has gone on."""
        ranks = processes_of(run)
        if len(ranks) < 2:
            return
        fault = self.random.choices(list(FAULTS), [WEIGHTS.get(fault, 1) for fault in FAULTS])[0]
        number, count, resume = FAULTS[fault]
        victims = self.random.sample(sorted(ranks), count)
        lines = open(run + ".err").read().count("continues ")
        begin = time.monotonic()
        for rank in victims:
            try:
                os.kill(ranks[rank], number)
            except ProcessLookupError:
                return  # The run has ended.
            if fault in DEADLY and count < len(ranks):
                gone[ranks[rank]] = rank  # Otherwise all ranks start anew, and the first to end is named.
        hit.append((fault, victims))
        self.hit[fault] += 1
        if resume is not None:
            self.wait(process, resume)
            for rank in victims:
                try:
                    os.kill(ranks[rank], signal.SIGCONT)
                except ProcessLookupError:
                    pass  # It was replaced.
        while process.poll() is None and time.monotonic() < begin + LIMIT / 2:
            if open(run + ".err").read().count("continues ") > lines:
                self.seconds[fault].append(time.monotonic() - begin)
                return
            if resume == 0.5:
                return  # The others only wait.
            time.sleep(0.005)

    def table(self):
        rows = ["%-20s %7s %12s %9s %9s" % ("fault", "faults", "recoveries", "median s", "worst s")]
        for fault in FAULTS:
            times = self.seconds[fault]
            rows.append("%-20s %7d %12d %9s %9s" % (
                fault, self.hit[fault], len(times), "%.2f" % statistics.median(times) if times else "",
                "%.2f" % max(times) if times else ""))
        return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default="tools/train/train", help="the binary //tools/train")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.train = os.path.abspath(options.train)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    work = tempfile.mkdtemp(prefix="faults", dir=os.environ.get("TEST_TMPDIR"))
    campaign = Campaign(options, work)
    faults = runs = failed = 0
    while faults < options.faults:
        count, wrong = campaign.run(runs)
        faults += count
        runs += 1
        failed += bool(wrong)
        for line in wrong:
            print("FAILED:", line, flush=True)
        if runs % 10 == 0:
            print("%d of %d faults in %d runs" % (faults, options.faults, runs), file=sys.stderr, flush=True)
    print(campaign.table())
    print("%d faults in %d runs of %d kinds; %d runs failed" % (faults, runs, len(campaign.calm), failed))
    if failed:
        sys.exit(1)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
