#!/usr/bin/env python3
"""Draws faults from a seed, lets them happen to training runs, and checks how the runs survive.

    ./bazelw run //tools/train/testing:fault_campaign -- --faults=200 --seed=7

Each run trains a tiny model with copies of the state in memory (--snapshot_every) while two to five faults hit its ranks, the disk of
its checkpoints, its clock, or the network between its hosts at random times. A run passes if it exits with 0, its weights and losses are those of
the same run without faults, bit for bit, every killed rank is named, and no process or file is left. After a fault that no run can
survive, such as a damaged checkpoint that is needed, it may end with an error that names the file or rank. The table has the faults by
kind with the time from the fault until the run went on. Exits with 1 if a run fails, and keeps its directory.
"""

import argparse
import collections
import dataclasses
import errno
import glob
import json
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
LIMIT = 120  # Seconds without a step or a line; a whole run takes a few.
TIMEOUT = 2  # Of the runs' collectives.
HANG = "15s"  # Later than twice this timeout, but for a rank that is stopped while the others wait for it with a checkpoint.
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
    "two hosts": ("dense", ["--mesh=dp2,tp2", "--engine=auto", "--nnodes=2", "--master_addr=10.77.0.1"]),
}
HOSTS = "two hosts"
# What ends a run that lost the network for longer than its timeouts, or a block or byte of a checkpoint: a rank or a file is named.
LOST_NETWORK = r"rank \d"
LOST_FILE = r"checkpoints/step-\d+"


@dataclasses.dataclass
class Fault:
    signal: int = 0  # To so many ranks; 0 ranks: all.
    ranks: int = 1
    disk: int = 0  # The error of writes to checkpoints.
    clock: int = 0  # The wall clock is wrong by so many seconds.
    cable: dict = None  # faulty_cable.py.
    damages: bool = False  # A checkpoint, before the signal.
    seconds: float = None  # How long it lasts, if it ends by itself; a disk recovers as soon as a checkpoint has failed.
    weight: float = 1
    may_end: str = None  # In the error of a run that ends.


FAULTS = {
    "SIGKILL": Fault(signal.SIGKILL),
    "SIGSEGV": Fault(signal.SIGSEGV),
    "SIGABRT": Fault(signal.SIGABRT),
    "SIGKILL of two": Fault(signal.SIGKILL, 2),
    "SIGSTOP for 0.5 s": Fault(signal.SIGSTOP, seconds=0.5),
    # Long stops cost seconds each, and every one is the same to the others.
    "SIGSTOP for 5 s": Fault(signal.SIGSTOP, seconds=5, weight=0.1),
    "SIGSTOP": Fault(signal.SIGSTOP, weight=0.3),
    "full disk": Fault(disk=errno.ENOSPC, seconds=2),
    "failing disk": Fault(disk=errno.EIO, seconds=2, weight=0.3, may_end=LOST_FILE),
    "clock 1 h ahead for 1 s": Fault(clock=3600, seconds=1, weight=0.3),
    "clock 1 h back for 1 s": Fault(clock=-3600, seconds=1, weight=0.3),
    "damaged checkpoint": Fault(signal.SIGKILL, 0, damages=True, weight=0.3, may_end=LOST_FILE),
    "delay of 0 to 50 ms": Fault(cable={"delay": 0.05}, seconds=1),
    "loss of 10 %": Fault(cable={"loss": 0.1}, seconds=1),
    "duplicates of 20 %": Fault(cable={"duplicate": 0.2, "delay": 0.005}, seconds=1),
    "cut for 0.5 s": Fault(cable={"cut": True}, seconds=0.5),
    "cut for 12 s": Fault(cable={"cut": True}, seconds=12, weight=0.2, may_end=LOST_NETWORK),
}


def read(path, mode="r"):
    with open(path, mode) as file:
        return file.read()


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def state_of(run):
    """The weights and the losses of a finished run."""
    files = sorted(glob.glob("%s/checkpoints/step-%08d/*.state" % (run, STEPS)))
    weights = {os.path.basename(file): read(file, "rb") for file in files}
    losses = re.findall(r'"step":[^,]*|"loss":[^,}]*', read(run + "/metrics.jsonl"))
    return weights, losses


def processes_of(run):
    """The processes of the ranks of a run, by rank."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        pid = path.split("/")[2]
        try:
            if run.encode() + b"/.ranks" not in read(path, "rb"):
                continue
            rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", read("/proc/%s/environ" % pid, "rb"))
        except OSError:
            continue  # It has ended.
        if rank:
            found[int(rank.group(1))] = int(pid)
    return found


class Run:
    """One run of the trainer, on this host or on two."""

    def __init__(self, options, work, name, kind, flags):
        self.path = "%s/%s" % (work, name)
        self.kind, self.flags = kind, flags
        self.hit, self.gone, self.may_end = [], {}, []
        model, own_flags = RUNS[kind]
        command = [options.train, "--model=%s/%s" % (work, model), "--data=%s/text.txt" % work, "--length=32", "--batch=8",
                   "--strategy=all_reduce", "--sample_tokens=0", "--steps=%d" % STEPS, "--run_dir=" + self.path,
                   "--timeout_seconds=%d" % TIMEOUT] + own_flags + flags
        environment = dict(os.environ, XDG_CACHE_HOME=work + "/cache", TMPDIR=work, LD_PRELOAD=options.preload,
                           TESSERA_TEST_DISK=self.path + ".disk", TESSERA_TEST_CLOCK=self.path + ".clock",
                           TESSERA_JOB_SECRET="%064x" % random.SystemRandom().getrandbits(256))
        if kind != HOSTS:
            self.outputs = [self.path + ".err"]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open(self.outputs[0], "w"), env=environment)
            return
        self.outputs = ["%s.err%d" % (self.path, host) for host in (0, 1)]
        self.process = subprocess.Popen(
            ["unshare", "-Urnm", "--kill-child", "bash", options.hosts, sys.executable, options.cable], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=open(self.path + ".cable", "w"), env=environment, text=True)
        for host, output in enumerate(self.outputs):
            self.tell({"host": host, "command": command + ["--node_rank=%d" % host], "output": output})

    def tell(self, line):
        """Writes to faulty_cable.py."""
        try:
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # It has ended.

    def text(self):
        return "".join(read(path) for path in self.outputs if os.path.exists(path))

    def metrics(self):
        path = self.path + "/metrics.jsonl"
        return read(path) if os.path.exists(path) else ""

    def recoveries(self):
        return len(re.findall(r"continues[ :]|; restart \d", self.text()))

    def pause(self, seconds, until=lambda: False):
        """Waits, but not longer than the run."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None and not until():
            time.sleep(0.005)

    def await_step(self, step):
        """Waits until the run has taken so many steps, or has ended."""
        self.pause(LIMIT, lambda: self.metrics().count("\n") >= step)

    def await_change(self):
        """Waits until the run has taken another step, or has ended."""
        before = self.metrics()
        self.pause(LIMIT, lambda: self.metrics() != before)

    def wait(self):
        """The exit code; None if the run hangs."""
        seen, since = None, time.monotonic()
        while self.process.poll() is None:
            now = self.metrics(), self.text()
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() > since + LIMIT:
                self.process.kill()
                return None
            time.sleep(0.02)
        if self.kind != HOSTS or self.process.returncode != 0:
            return self.process.returncode
        return max(map(abs, json.loads(self.process.stdout.read())))

    def remove(self):
        shutil.rmtree(self.path)
        for path in glob.glob(self.path + ".*"):
            os.remove(path)

    def problems(self, code, state):
        """What is wrong with a run that has ended."""
        if code is None:
            return ["hangs"]
        text, wrong = self.text(), []
        if code != 0:
            error = [line for line in text.splitlines() if line.startswith("train: ")][-1:] or ["no error"]
            if not any(re.search(pattern, line) for pattern in self.may_end for line in error):
                wrong.append("exits with %d: %s" % (code, error[0]))
        elif state_of(self.path) != state:
            wrong.append("other weights or losses")
        wrong += ["rank %d, process %d, is not named" % (rank, pid)
                  for pid, rank in self.gone.items() if "rank %d (pid %d) was killed" % (rank, pid) not in text]
        if processes_of(self.path) or os.path.exists(self.path + "/.ranks"):
            wrong.append("processes or files are left")
        return wrong


class Campaign:
    def __init__(self, options, work):
        self.options = options
        self.work = work
        self.random = random.Random(options.seed)
        self.calm = {}  # By kind of run: the state without faults.
        self.seconds = collections.defaultdict(list)  # By fault, until the run went on.
        self.hit = collections.Counter()
        self.ended = collections.Counter()  # Runs, by the fault that they could not survive.
        self.kinds = [options.kind] if options.kind else list(RUNS)
        for name, text in ("dense", DENSE), ("mixture", MIXTURE):
            os.makedirs("%s/%s" % (work, name))
            write("%s/%s/config.json" % (work, name), text)
        with open(work + "/text.txt", "w") as file:
            file.writelines("line %d of a text that is easy to learn, line after line\n" % i for i in range(3000))

    def reference(self, kind):
        """The state of a run without faults; None if there can be no such run here."""
        if kind not in self.calm:
            run = Run(self.options, self.work, "calm%d" % len(self.calm), kind, [])
            code = run.wait()
            if code != 0 and kind == HOSTS and not run.text():
                print("no runs on two hosts: " + read(run.path + ".cable").strip(), file=sys.stderr)
                self.kinds.remove(kind)
                return None
            if code != 0:
                sys.exit("the run without faults fails: " + run.text())
            self.calm[kind] = state_of(run.path)
        return self.calm[kind]

    def run(self, number):
        """Lets faults hit one run. Returns the number of faults and what is wrong."""
        kind = self.random.choices(self.kinds, [0.5 if kind == HOSTS else 1 for kind in self.kinds])[0]  # They take longer.
        reference = self.reference(kind)
        if reference is None:
            return 0, []
        flags = ["--snapshot_every=%d" % self.random.choice((1, 1, 2, 5)), "--max_restarts=16",
                 "--hang_timeout=" + (self.random.choice(("1s", HANG)) if kind != HOSTS else "5s")]
        if self.random.random() < 0.5:
            flags += ["--checkpoint_every=%d" % self.random.randint(3, 15), "--keep_checkpoints=%d" % self.random.choice((0, 2))]
        run = Run(self.options, self.work, "run%d" % number, kind, flags)
        # Steps, not times: a loaded machine may be slower or faster than the run before.
        for step in sorted(self.random.randrange(STEPS) for _ in range(self.random.randint(2, 5))):
            run.await_step(step)
            run.pause(self.random.uniform(0, 0.1))
            if run.process.poll() is not None:
                break
            self.strike(run)
        code = run.wait()
        wrong = run.problems(code, reference)
        if code != 0 and not wrong:
            self.ended[run.hit[-1][0]] += 1
        if not wrong:
            run.remove()
        return len(run.hit), ["%s %s: %s: %s" % (kind, flags, run.hit, one) for one in wrong]

    def strike(self, run):
        """One fault, until the run has gone on."""
        ranks = processes_of(run.path)
        if len(ranks) < 2:
            return
        checkpoints = glob.glob(run.path + "/checkpoints/step-*/manifest.json")
        faults = [name for name, fault in FAULTS.items()
                  if (run.kind == HOSTS or not fault.cable) and (checkpoints or not (fault.disk or fault.damages))]
        name = self.random.choices(faults, [FAULTS[name].weight for name in faults])[0]
        fault = FAULTS[name]
        before, begin = run.recoveries(), time.monotonic()
        if fault.damages and not self.damage(max(checkpoints)):
            return
        victims = self.signal(run, ranks, fault) if fault.signal else []
        if victims is None:
            return  # The run has ended.
        if fault.disk:
            write(run.path + ".disk", str(fault.disk))
        if fault.clock:
            write(run.path + ".clock", str(fault.clock))
        if fault.cable:
            run.tell(dict(fault.cable, seed=self.random.random()))
        run.hit.append((name, victims))
        self.hit[name] += 1
        if fault.may_end:
            run.may_end.append(fault.may_end)
        if fault.seconds:
            run.pause(fault.seconds, lambda: fault.disk and run.recoveries() > before)
            self.end(run, ranks, victims, fault)
        while run.process.poll() is None and time.monotonic() < begin + LIMIT / 2:
            if run.recoveries() > before:
                run.await_change()
                if not run.process.poll():  # A restart may fail.
                    self.seconds[name].append(time.monotonic() - begin)
                return
            if fault.disk or fault.clock or fault.cable or fault.seconds == 0.5:
                return  # The others only wait, or no checkpoint was being written.
            time.sleep(0.005)

    def signal(self, run, ranks, fault):
        """Signals some ranks and returns them; None if they have ended."""
        count = fault.ranks or len(ranks)
        victims = self.random.sample(sorted(ranks), count)
        # At the end of a run the process may have ended by itself just before.
        has_steps_left = run.metrics().count("\n") < STEPS - 10
        for rank in victims:
            try:
                os.kill(ranks[rank], fault.signal)
            except ProcessLookupError:
                return None
            if fault.signal != signal.SIGSTOP and count < len(ranks) and has_steps_left:
                run.gone[ranks[rank]] = rank  # Otherwise all ranks start anew, and the first to end is named.
        return victims

    def end(self, run, ranks, victims, fault):
        """Ends a fault that lasted."""
        for rank in victims:
            try:
                os.kill(ranks[rank], signal.SIGCONT)
            except ProcessLookupError:
                pass  # It was replaced.
        if fault.disk:
            os.remove(run.path + ".disk")
        if fault.clock:
            os.remove(run.path + ".clock")
        if fault.cable:
            run.tell({})

    def damage(self, manifest):
        """Changes a byte of a checkpoint. Returns False if it has been removed."""
        try:
            path = self.random.choice(glob.glob(os.path.dirname(manifest) + "/*.state"))
            with open(path, "r+b") as file:
                file.seek(self.random.randrange(os.path.getsize(path)))
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1 << self.random.randrange(8)]))
            return True
        except (OSError, IndexError):
            return False

    def table(self):
        rows = ["%-24s %7s %12s %9s %9s %6s" % ("fault", "faults", "recoveries", "median s", "worst s", "ended")]
        for fault in FAULTS:
            times = self.seconds[fault]
            rows.append("%-24s %7d %12d %9s %9s %6d" % (
                fault, self.hit[fault], len(times), "%.2f" % statistics.median(times) if times else "",
                "%.2f" % max(times) if times else "", self.ended[fault]))
        return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default="tools/train/train", help="the binary //tools/train")
    parser.add_argument("--preload", default="tools/train/testing/libfaulty_system.so", help="//tools/train/testing:libfaulty_system.so")
    parser.add_argument("--hosts", default="tools/launch/two_hosts.sh", help="//tools/launch:two_hosts.sh")
    parser.add_argument("--cable", default="tools/train/testing/faulty_cable.py", help="//tools/train/testing:faulty_cable.py")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=list(RUNS), help="only runs of this kind")
    options = parser.parse_args()
    for name in ("train", "preload", "hosts", "cable"):
        setattr(options, name, os.path.abspath(getattr(options, name)))
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
