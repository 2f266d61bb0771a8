"""The stages of the kit: the commands that each runs, and the values that are read from their output.

A stage is a list of items. An item is one command with a predicted time; its outcome is stored when it ends.

On devices other than cuda the stages are only rehearsed: a tiny model replaces the large ones, and items that need a GPU
are skipped. A rehearsal measures nothing; it tests that every command runs and that its output can be parsed.
"""

import csv
import io
import json
import math
import os
import re
import shutil
import statistics
import sys

import machine
import workloads

# The stages of a first run, in three calls of at most 540 s each, and those that need a card with more memory.
PLANS = {
    "first-1": ["environment", "tests", "parity_fp32", "parity_bf16", "repeat"],
    "first-2": ["ceilings", "mfu_1.2b", "mfu_8b_16", "ncu", "racecheck"],
    "first-3": ["memcheck", "collectives", "fp8", "graphs", "peer", "offload"],
    "8b": ["mfu_8b", "peer_8b"],
}
CALL_SECONDS = 540
STAGES = [stage for plan in PLANS.values() for stage in plan]
GPU_TESTS = {  # The seconds that each takes, mostly for references on the host.
    "cuda_device_gpu_test": 10, "cuda_test": 10, "cuda_ops_gpu_test": 200,
    "cuda_state_ops_gpu_test": 30, "cuda_communicator_gpu_test": 40, "native_nccl_test": 20}
# Tests of this project's own kernels, and their seconds under compute-sanitizer.
_KERNEL_TESTS = {"cuda_state_ops_gpu_test": 25, "cuda_communicator_gpu_test": 30, "cuda_ops_gpu_test": 60}
_SANITIZER_ERROR = 86


class Skipped(Exception):
    """An item that cannot run here; the text is the reason."""


class Failed(Exception):
    """An item whose result is wrong; the text is the reason. `values` are stored."""

    def __init__(self, reason, values=None):
        super().__init__(reason)
        self.values = values or {}


class Item:
    """A command: `prepare` writes its inputs, `read` returns values from a Done or raises Failed or Skipped.

    `seconds` is the predicted time with an H100 and 16 processors; the command is ended after three times that
    and a minute. `env` changes variables of the command.
    """

    def __init__(self, name, command, read, seconds, timeout=None, steps=None, metrics=None, prepare=None, env=None):
        self.name = name
        self.command = command
        self.read = read
        self.seconds = seconds
        self.timeout = timeout or 3 * seconds + 60
        self.steps = steps  # Ends the run when `metrics` has this many lines, before it writes a checkpoint.
        self.metrics = metrics
        self.prepare = prepare
        self.env = env or {}


class Done:
    """A command that ended."""

    def __init__(self, code, output):
        self.code = code
        self.output = output

    def last_line(self):
        lines = [line for line in self.output.splitlines() if line.strip()]
        return lines[-1].strip() if lines else "no output"

    def require_success(self):
        if self.code != 0:
            raise Failed("exit code %s: %s" % (self.code, self.last_line()))


class Kit:
    """The locations of the kit's parts; `device` is the trainer's --device, `card` one of predictions.CARDS or None."""

    def __init__(self, directory, work, device="cuda", card=None):
        self.directory = directory
        self.work = work
        self.device = device
        self.card = card
        path = os.path.join(directory, "manifest.json")
        self.manifest = load_json(path) if os.path.exists(path) else None
        self.references = load_json(os.path.join(directory, "reference_losses.json"), {})

    def program(self, name):
        return os.path.join(self.directory, "bin", name)

    def output(self, *names):
        return os.path.join(self.work, "out", "-".join(names))

    def rehearses(self):
        return self.device != "cuda"

    def some_steps(self, steps):
        """The number of steps after which a run of the small model is ended; None to run all."""
        return 3 if self.rehearses() else steps

    def sized(self, name, flags):
        """The model and flags of a run; in rehearsals a tiny model with short sequences."""
        if not self.rehearses() or name == "parity":
            return name, flags
        return "tiny", {**flags, "length": 32, "steps": min(flags.get("steps", 2), 4), "warmup_steps": 1}


def load_json(path, default=None):
    """The content of the file; `default`, if given, if there is no file."""
    if default is not None and not os.path.exists(path):
        return default
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def items_of(stage, kit):
    """The items of a stage; Skipped if none can run here."""
    return {
        "environment": environment,
        "tests": tests,
        "parity_fp32": lambda k: parity(k, "fp32"),
        "parity_bf16": lambda k: parity(k, "bf16"),
        "repeat": repeat,
        "ceilings": ceilings,
        "mfu_1.2b": lambda k: mfu(k, "1.2b"),
        "mfu_8b_16": lambda k: mfu(k, "8b_16"),
        "mfu_8b": lambda k: mfu(k, "8b"),
        "ncu": ncu,
        "memcheck": lambda k: sanitizer(k, "memcheck"),
        "racecheck": lambda k: sanitizer(k, "racecheck", "synccheck"),
        "collectives": collectives,
        "fp8": fp8,
        "graphs": graphs,
        "offload": offload,
        "peer": lambda k: peer(k, "1.2b"),
        "peer_8b": lambda k: peer(k, "8b_16"),
    }[stage](kit)


# environment


def environment(kit):
    """Checks that every program starts, and which libraries the programs find."""
    items = [Item("libraries", [sys.executable, os.path.join(kit.directory, "machine.py")],
                  lambda done: read_libraries(done, kit), 10)]
    for name in kit.manifest["programs"]:
        flag = "--help"
        if name.endswith("_test"):
            flag = "--gtest_list_tests"
        elif name == "cuda_state_ops_benchmark":
            flag = "--benchmark_list_tests"
        items.append(Item(name, [kit.program(name), flag], starts, 1))
    return items


def read_libraries(done, kit):
    """Path and version of each library. On a machine with a GPU, a missing or outdated library is a failure."""
    done.require_success()
    found = json_in(done.output)
    problems = machine.problems_of_libraries(found)
    if problems and not kit.rehearses():
        raise Failed("; ".join(problems), {"libraries": found})
    return {"libraries": found}


def starts(done):
    """Checks that a program finds its libraries and accepts the flag. --help of Abseil's flags may exit with 1."""
    if "Flags from" not in done.output:
        done.require_success()
    return {}


# ceilings


def ceilings(kit):
    rates, adamw = kit.output("rates.json"), kit.output("adamw.json")
    if kit.rehearses():
        raise Skipped("rates are a GPU's; their programs run under emulation in tests of their own")
    return [
        Item("operations", [kit.program("cuda_ops_benchmark"), "--json=" + rates],
             lambda done: {"rates": json_after(done, rates)}, 30),
        Item("optimizer", [kit.program("cuda_state_ops_benchmark"), "--benchmark_out=" + adamw,
                           "--benchmark_out_format=json"],
             lambda done: {"rates": read_benchmark(json_after(done, adamw))}, 15),
        Item("pcie", [kit.program("offload_bench"), "--device=cuda", "--size=1GiB", "--min_bytes=1MiB",
                      "--max_bytes=256MiB", "--factor=16", "--format=json", "--quiet=true"],
             lambda done: {"rates": read_copies(done)}, 20),
    ]


def json_after(done, path):
    done.require_success()
    return load_json(path)


def read_benchmark(report):
    """The counters of each benchmark in Google Benchmark's JSON."""
    rates = []
    for row in report["benchmarks"]:
        if row.get("error_occurred"):
            raise Failed("%s: %s" % (row["name"], row.get("error_message")))
        rates.append({"name": row["name"].split("/iterations")[0], "gigabytes_per_second": row["GB/s"]})
    return rates


def json_in(text):
    """The object or array in the output of a program, which may have other lines before it."""
    at = min((i for i in (text.find("{"), text.find("[")) if i >= 0), default=-1)
    if at < 0:
        raise Failed("no JSON in the output")
    return json.JSONDecoder().raw_decode(text[at:])[0]


def read_copies(done):
    done.require_success()
    return [{"operation": row["operation"], "block_bytes": row["block_bytes"], "gigabytes_per_second": row["GBps"]}
            for row in json_in(done.output)["measurements"]]


# tests and sanitizer


def tests(kit):
    items = []
    for name, seconds in GPU_TESTS.items():
        report = kit.output(name + ".json")
        items.append(Item(name, [kit.program(name), "--gtest_output=json:" + report],
                          lambda done, report=report: read_gtest(done, report), seconds))
    return items


def read_gtest(done, path):
    if not os.path.exists(path):
        raise Failed("exit code %s without a report: %s" % (done.code, done.last_line()))
    cases = [case for suite in load_json(path)["testsuites"] for case in suite["testsuite"]]
    failed = [case["classname"] + "." + case["name"] for case in cases if case.get("failures")]
    skipped = [case for case in cases if case.get("result") == "SKIPPED"]
    values = {"passed": len(cases) - len(failed) - len(skipped), "failed": failed, "skipped": len(skipped)}
    if failed:
        raise Failed("%d of %d tests failed: %s" % (len(failed), len(cases), ", ".join(failed[:5])), values)
    if done.code != 0:
        raise Failed("exit code %s after the tests: %s" % (done.code, done.last_line()), values)
    if 2 * len(skipped) >= len(cases):
        raise Skipped("%d of %d tests skip themselves here" % (len(skipped), len(cases)))
    return values


def sanitizer(kit, *tools):
    """Runs compute-sanitizer on this project's kernels, which it selects by the namespace in their mangled names.

    Each request for memory is a separate allocation followed by unused bytes, so that an overrun does not stay within
    the next tensor.
    """
    program = machine.find_program("compute-sanitizer")
    if program is None:
        raise Skipped("compute-sanitizer was not found: it is part of the CUDA toolkit")
    options = ["--error-exitcode", str(_SANITIZER_ERROR), "--kernel-name", "kernel_substring=tessera"]
    padding = {"memcheck": ["--padding", "256"]}
    return [Item("%s-%s" % (tool, name),
                 [program, "--tool", tool, *padding.get(tool, []), *options, kit.program(name),
                  "--gtest_filter=-*Repeated*:CudnnGpuTest.*"],
                 read_sanitizer, seconds, env={"TESSERA_TEST_ARENA_BYTES": "0"})
            for tool in tools for name, seconds in _KERNEL_TESTS.items()
            if tool != "synccheck" or name == "cuda_ops_gpu_test"]  # It covers all kernels with barriers.


def read_sanitizer(done):
    errors = sum(int(number) for number in re.findall(r"ERROR SUMMARY: (\d+) error", done.output))
    summaries = re.findall(r"RACECHECK SUMMARY: (\d+) hazard", done.output)
    errors += sum(int(number) for number in summaries)
    if errors or done.code == _SANITIZER_ERROR:
        raise Failed("%d errors" % errors, {"errors": max(errors, 1)})
    done.require_success()
    return {"errors": 0}


# training


def train_item(kit, stage, name, model, read, seconds, steps=None, flags=None, make_flags=workloads.train_flags,
               timeout=None):
    """A run of the trainer; `read` gets the lines of its metrics. A run that the trainer rejects counts as failed."""
    model, flags = kit.sized(model, flags or {})
    if steps is not None and model == "tiny":
        steps = flags["steps"]
    run_dir = kit.output(stage, name)
    metrics = os.path.join(run_dir, "metrics.jsonl")
    command = [kit.program("train")] + make_flags(kit.work, model, run_dir, device=kit.device, **flags)

    def read_metrics(done):
        lines = read_lines(metrics)
        if steps is None or len(lines) < steps:  # Otherwise the kit has ended it.
            done.require_success()
        return read(lines[:steps])

    return Item(name, command, read_metrics, seconds, timeout, steps, metrics,
                prepare=lambda: workloads.write_workload(kit.work, model))


def read_lines(path):
    """The complete lines of a file of JSON objects."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def losses_of(lines):
    return {"losses": [line["loss"] for line in lines], "gradient_norms": [line["grad_norm"] for line in lines]}


def parity(kit, dtype):
    """Compares losses with the CPU's, on one rank and on several that share the GPU."""
    variants = {"one_rank": {}, "dp2_tp2_zero3": {"mesh": "dp2,tp2", "zero": 3},
                "pp2_cp2": {"mesh": "pp2,cp2", "micro_batch": 2}, "offload": {"offload": "optimizer"}}
    references = kit.references

    def flags_of(work, _, run_dir, **flags):
        return workloads.parity_flags(work, run_dir, dtype, **flags)

    return [train_item(kit, "parity_" + dtype, name, "parity",
                       lambda lines: compare(losses_of(lines), references, dtype, kit.some_steps(None)), 8,
                       steps=kit.some_steps(None), flags=flags, make_flags=flags_of)
            for name, flags in variants.items()]


def compare(values, references, dtype, steps=None):
    """Adds the largest relative difference from the reference, of fp8 from bf16's, and of bf16 the bias (docs/gpu.md)."""
    expected = references["bf16" if dtype == "fp8" else dtype]["losses"][:steps]
    actual = values["losses"]
    if len(actual) != len(expected) or None in actual:
        raise Failed("%d finite losses, expected %d" % (len([a for a in actual if a is not None]), len(expected)), values)
    values["difference"] = max(abs(a - e) / abs(e) for a, e in zip(actual, expected))
    if dtype == "bf16":
        exact = references["fp32"]["losses"][:steps]
        allowed = 1.25 * max(abs(e - x) for e, x in zip(expected, exact)) + 1e-3
        values["bias"] = max(abs(a - x) for a, x in zip(actual, exact)) / allowed
    limit = {"fp32": 1e-5, "bf16": 2e-2, "fp8": 5e-2}[dtype]
    if values["difference"] > limit or values.get("bias", 0) > 1:
        raise Failed("the losses differ from the processor's by %.3g (at most %g)%s" % (
            values["difference"], limit, "" if values.get("bias", 0) <= 1 else " and are biased"), values)
    return values


def repeat(kit):
    """Makes each run twice; the report compares their bits."""
    variants = {"fp32": ("fp32", {}), "bf16": ("bf16", {}), "bf16_dp2_tp2": ("bf16", {"mesh": "dp2,tp2", "zero": 3})}
    items = []
    for name, (dtype, flags) in variants.items():
        for turn in ("first", "second"):
            def flags_of(work, _, run_dir, dtype=dtype, **more):
                return workloads.parity_flags(work, run_dir, dtype, **more)
            items.append(train_item(kit, "repeat", "%s-%s" % (name, turn), "parity", losses_of, 7,
                                    steps=kit.some_steps(10), flags=flags, make_flags=flags_of))
    return items


def speed_of(kit, lines, warmup, model, length, reference=None):
    """Median speed after the first steps, and MFU's numerator. Failed if the losses are not those of training.

    `reference` are losses of the first steps on the processor, in bf16.
    """
    model, flags = kit.sized(model, {"length": length})
    length = flags["length"]
    seconds = [line["seconds"] for line in lines[warmup:]] or [line["seconds"] for line in lines]
    tokens = round(lines[-1]["tokens_per_second"] * lines[-1]["seconds"])
    step = statistics.median(seconds)
    values = {
        "tokens_per_step": tokens,
        "seconds_per_step": step,
        "spread": (max(seconds) - min(seconds)) / step,
        "tokens_per_second": tokens / step,
        "flops": tokens / step * workloads.flops_per_token(workloads.MODELS[model], length),
        "flops_palm": tokens / step * workloads.flops_per_token(workloads.MODELS[model], length, causal=False),
        "memory_bytes": lines[-1]["memory_bytes"],
        **losses_of(lines),
    }
    problem = problem_of_losses(values, None if kit.rehearses() else reference)
    if problem:
        raise Failed(problem, values)
    return values


def problem_of_losses(values, reference):
    """Validates the losses of a timed run. None if they are finite, fall, and begin like the reference's."""
    losses = values["losses"]
    if not all(isinstance(x, (int, float)) and math.isfinite(x) for x in losses + values["gradient_norms"]):
        return "losses or gradient norms are not finite"
    if not losses[-1] < losses[0]:
        return "the loss did not fall: %.4f at first, %.4f at last" % (losses[0], losses[-1])
    for step, (loss, expected) in enumerate(zip(losses, reference or [])):
        if abs(loss - expected) > 2e-2 * expected:
            return "the loss of step %d is %.4f, on the processor %.4f" % (step + 1, loss, expected)
    return None


# For each stage: model, moments, steps, unmeasured first steps, and by name the seconds and flags of its runs.
_MFU = {
    "1.2b": ("f32", 25, 5, {
        "fast": (20, {"batch": 4, "micro_batch": 4, "deterministic": "false"}),
        "deterministic": (20, {"batch": 4, "micro_batch": 4}),
        "four_micro_batches": (40, {"batch": 16, "micro_batch": 4, "deterministic": "false"}),
    }),
    "8b_16": ("int8", 12, 4, {
        "two_sequences": (32, {"batch": 2, "micro_batch": 2, "deterministic": "false"}),
        "two_sequences_recompute": (34, {"batch": 2, "micro_batch": 2, "deterministic": "false", "recompute": "full"}),
    }),
    "8b": ("int8", 12, 4, {
        "two_sequences": (60, {"batch": 2, "micro_batch": 2, "deterministic": "false"}),
        "eight_micro_batches": (90, {"batch": 8, "micro_batch": 1, "deterministic": "false"}),
        "two_sequences_recompute": (65, {"batch": 2, "micro_batch": 2, "deterministic": "false", "recompute": "full"}),
    }),
}
_SPEED_FLAGS = {"dtype": "bf16", "length": 4096, "steps": 100, "warmup_steps": 20, "learning_rate": 3e-4}


def mfu(kit, model):
    if model == "8b" and kit.card == "H100":
        raise Skipped("8 B need 131 GiB of device memory; an H200 has them")
    moments, steps, warmup, variants = _MFU[model]
    reference = kit.references.get(model, {}).get("losses")

    def item(name, seconds, flags):
        known = reference if flags["batch"] == 4 else None
        return train_item(kit, "mfu_" + model, name, model,
                          lambda lines: speed_of(kit, lines, warmup, model, 4096, known), seconds, steps=steps,
                          flags={**_SPEED_FLAGS, "moments": moments, **flags})

    return [item(name, seconds, flags) for name, (seconds, flags) in variants.items()]


def fp8(kit):
    """Measures losses in fp8 against the CPU's in bf16, and speeds against those of the stages in bf16."""
    references = kit.references

    def flags_of(work, _, run_dir, **flags):
        return workloads.parity_flags(work, run_dir, "fp8", **flags)

    items = [train_item(kit, "fp8", "parity", "parity",
                        lambda lines: compare(losses_of(lines), references, "fp8", kit.some_steps(None)), 10,
                        steps=kit.some_steps(None), make_flags=flags_of)]
    for model, steps, warmup, seconds, flags in (
            ("1.2b", 25, 5, 20, {"batch": 4, "micro_batch": 4}),
            ("8b_16", 12, 4, 32, {"batch": 2, "micro_batch": 2, "moments": "int8"})):
        items.append(train_item(kit, "fp8", model, model,
                                lambda lines, model=model, warmup=warmup: speed_of(kit, lines, warmup, model, 4096),
                                seconds, steps=steps,
                                flags={**_SPEED_FLAGS, "dtype": "fp8", "deterministic": "false", **flags}))
    return items


def graphs(kit):
    """Runs a model whose kernels are as short as their launches, without and with CUDA graphs."""
    flags = {**_SPEED_FLAGS, "length": 1024, "batch": 16, "micro_batch": 4}
    return [train_item(kit, "graphs", value, "125m", lambda lines: speed_of(kit, lines, 10, "125m", 1024), 12, steps=60,
                       flags={**flags, "cuda_graphs": value}) for value in ("off", "on")]


def offload(kit):
    """Runs steps of several micro-batches with the optimizer on the GPU and on the host."""
    common = {**_SPEED_FLAGS, "batch": 16, "micro_batch": 4, "deterministic": "false",
              "threads": len(os.sched_getaffinity(0))}
    variants = {"none": {"offload": "none"}, "optimizer": {"offload": "optimizer"},
                "optimizer_early": {"offload": "optimizer", "speculative_bytes": 20 * 2**30, "clip_norm": 0},
                "all": {"offload": "all", "zero": 3}}
    return [train_item(kit, "offload", name, "1.2b", lambda lines: speed_of(kit, lines, 3, "1.2b", 4096), 32, steps=9,
                       flags={**common, **flags})
            for name, flags in variants.items()]


# collectives


def collectives(kit):
    """Measures ranks that share the GPU, and NCCL, which supports only one rank per GPU."""
    sizes = ["--min_bytes=64KiB", "--max_bytes=64KiB"] if kit.rehearses() else ["--min_bytes=64MiB", "--max_bytes=256MiB"]
    command = [kit.program("comm_bench"), "--device=" + kit.device, *sizes, "--factor=4", "--dtype=bf16",
               "--op=all_reduce,all_gather,reduce_scatter", "--format=json", "--quiet=true"]
    items = [Item("one_gpu", command + ["--engine=" + kit.device, "--np=2,4"],  # Engines have the devices' names.
                  lambda done: {"rows": read_collectives(done)}, 30)]
    if not kit.rehearses():
        items.append(Item("nccl_one_rank", command + ["--engine=nccl", "--np=1"],
                          lambda done: {"rows": read_collectives(done)}, 10))
    return items


def traffic_bytes(op, world, size):
    """The minimum of bytes that ranks on one GPU read and write; `size` is the whole message (tools/comm_bench)."""
    return {
        "all_reduce": 2 * world * size,  # Each rank's buffer is read once and written once.
        "all_gather": (1 + world) * size,
        "reduce_scatter": (world + 1) * size,
    }[op]


def read_collectives(done):
    done.require_success()
    return [{"op": row["op"], "world": row["world"], "bytes": row["bytes"], "time_us": row["time_us"],
             "gigabytes_per_second": traffic_bytes(row["op"], row["world"], row["bytes"]) / row["time_us"] / 1e3}
            for row in json_in(done.output)["rows"]]


# ncu

_NCU_METRICS = {
    "gpu__time_duration.sum": "time",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps_percent",
    "l1tex__data_bank_conflicts_pipe_lsu.sum": "bank_conflicts",
}


def ncu(kit):
    """Profiles this project's kernels in a training step. Does not lock clocks, which a virtual machine may not do."""
    program = machine.find_program("ncu")
    if program is None:
        raise Skipped("ncu was not found: it is part of the CUDA toolkit and of Nsight Compute")
    run_dir = kit.output("ncu", "train")
    model, sizes = kit.sized("1.2b_one_layer", {"length": 4096, "steps": 2, "warmup_steps": 1})
    flags = workloads.train_flags(kit.work, model, run_dir, device=kit.device, dtype="bf16", batch=4, micro_batch=4,
                                  deterministic="false", **sizes)
    profile = [program, "--csv", "--page", "raw", "--target-processes", "all", "--clock-control", "none",
               "--kernel-name-base", "demangled", "--kernel-name", "regex:tessera", "--metrics", ",".join(_NCU_METRICS)]
    return [Item("training_step", profile + ["--launch-count", "150", kit.program("train")] + flags,
                 lambda done: {"kernels": read_ncu(done)}, 90,
                 prepare=lambda: prepare_run(kit, model, run_dir))]


def prepare_run(kit, model, run_dir):
    workloads.write_workload(kit.work, model)
    shutil.rmtree(run_dir, ignore_errors=True)  # The trainer rejects directories of earlier runs.


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def read_ncu(done):
    """The mean of each metric for each kernel, from the CSV table of raw metrics, whose second row has the units."""
    if "ERR_NVGPUCTRPERM" in done.output:
        raise Skipped("performance counters need permission on this machine (ERR_NVGPUCTRPERM)")
    text = done.output
    at = text.find('"ID"')
    if at < 0:
        done.require_success()
        raise Failed("no table in the output of ncu: " + done.last_line())
    rows = [row for row in csv.DictReader(io.StringIO(text[at:])) if row.get("Kernel Name")]
    kernels = {}
    for row in rows:
        kernels.setdefault(row["Kernel Name"].split("(")[0], []).append(row)
    unit = next(csv.DictReader(io.StringIO(text[at:])))["gpu__time_duration.sum"]
    factor = {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3}.get(unit, 1e-9)
    result = []
    for name, group in kernels.items():
        kernel = {"name": name, "launches": len(group)}
        for metric, key in _NCU_METRICS.items():
            values = [v for v in (number(row.get(metric) or "") for row in group) if v is not None]
            kernel[key] = statistics.mean(values) if values else None
        kernel["seconds"] = (kernel.pop("time") or 0) * factor
        result.append(kernel)
    return sorted(result, key=lambda kernel: -kernel["seconds"] * kernel["launches"])


# PyTorch


def peer(kit, model):
    python, version = machine.python_with_torch()
    if python is None:
        raise Skipped("no Python with torch: " + version)
    variants = {
        "1.2b-autocast": (30, ["--batch=4"]),
        "1.2b-autocast-compiled": (75, ["--batch=4", "--compile"]),
        "8b_16-bf16-compiled": (90, ["--batch=2", "--precision=bf16", "--compile"]),
    }
    script = os.path.join(kit.directory, "peer_torch.py")

    def item(name, seconds, flags):
        model, sizes = kit.sized(name.split("-")[0], {"length": 4096, "steps": 15})
        output = kit.output("peer", name + ".json")
        device = ["--device=cpu", "--warmup=1"] if kit.rehearses() else []
        sizes = ["--length=%d" % sizes["length"], "--steps=%d" % sizes["steps"]]
        return Item(name, [python, script, "--model=" + model, *flags, *sizes, *device, "--work=" + kit.work,
                           "--json=" + output],
                    lambda done: read_peer(done, output, model), seconds,
                    env={"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH")})  # PyTorch finds its own.

    return [item(name, seconds, flags) for name, (seconds, flags) in variants.items() if name.startswith(model)]


def read_peer(done, path, model):
    done.require_success()
    values = load_json(path)
    values["flops"] = values["tokens_per_second"] * workloads.flops_per_token(workloads.MODELS[model], 4096)
    return values
