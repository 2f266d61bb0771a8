"""The stages of the kit: which commands each runs, and what is read from their output.

A stage is a list of items. An item is one command with a timeout; its outcome is stored when it ends.
"""

import csv
import io
import json
import os
import re
import statistics

import machine
import workloads

STAGES = ["environment", "ceilings", "tests", "parity_f32", "parity_bf16", "repeat", "mfu_1b2", "mfu_8b", "fp8", "offload",
          "collectives", "peer", "sanitizer", "ncu"]
REHEARSED = ["parity_f32", "parity_bf16", "repeat"]  # Also without a GPU.
GPU_TESTS = ["cuda_device_gpu_test", "cuda_convert_test", "cuda_test", "cuda_ops_gpu_test", "cuda_state_ops_gpu_test",
             "cuda_communicator_gpu_test", "native_nccl_test"]
# Tests whose kernels are this project's.
_KERNEL_TESTS = ["cuda_state_ops_gpu_test", "cuda_communicator_gpu_test", "cuda_ops_gpu_test"]
_SANITIZER_ERROR = 86


class Skipped(Exception):
    """An item that cannot run here; the text is the reason."""


class Failed(Exception):
    """An item whose result is wrong; the text is the reason. `values` are stored."""

    def __init__(self, reason, values=None):
        super().__init__(reason)
        self.values = values or {}


class Item:
    """A command: `prepare` writes its inputs, `read` returns values from a Done or raises Failed or Skipped."""

    def __init__(self, name, command, read, timeout=540, steps=None, metrics=None, prepare=None, needs_flag=None,
                 env=None):
        self.name = name
        self.command = command
        self.read = read
        self.timeout = timeout
        self.steps = steps  # The run is ended when `metrics` has so many lines: no checkpoint is written.
        self.metrics = metrics
        self.prepare = prepare
        self.needs_flag = needs_flag  # Skipped unless --help of the program lists it.
        self.env = env  # None: that of the kit's programs.


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
    """Where the kit's parts are; `device` is the trainer's."""

    def __init__(self, directory, work, device="cuda"):
        self.directory = directory
        self.work = work
        self.device = device
        path = os.path.join(directory, "manifest.json")
        self.manifest = load_json(path) if os.path.exists(path) else None
        self.references = load_json(os.path.join(directory, "reference_losses.json"), {})

    def program(self, name):
        return os.path.join(self.directory, "bin", name)

    def output(self, *names):
        return os.path.join(self.work, "out", "-".join(names))


def load_json(path, default=None):
    """The file's content; `default` if it is given and there is no file."""
    if default is not None and not os.path.exists(path):
        return default
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def items_of(stage, kit):
    """The items of a stage; Skipped if none can run here."""
    return {
        "environment": environment,
        "ceilings": ceilings,
        "tests": tests,
        "sanitizer": sanitizer,
        "parity_f32": lambda k: parity(k, "fp32"),
        "parity_bf16": lambda k: parity(k, "bf16"),
        "repeat": repeat,
        "mfu_1b2": lambda k: mfu(k, "1.2b"),
        "mfu_8b": lambda k: mfu(k, "8b"),
        "fp8": fp8,
        "offload": offload,
        "collectives": collectives,
        "ncu": ncu,
        "peer": peer,
    }[stage](kit)


# environment


def starts(done):
    """Whether a program finds its libraries and accepts the flag."""
    done.require_success()
    return {}


def environment(kit):
    items = []
    for name in kit.manifest["programs"]:
        flag = "--help"
        if name.endswith("_test"):
            flag = "--gtest_list_tests"
        elif name == "cuda_state_ops_benchmark":
            flag = "--benchmark_list_tests"
        read = starts if name != "cuda_ops_benchmark" else starts_with_absl
        items.append(Item(name, [kit.program(name), flag], read, 60))
    return items


def starts_with_absl(done):
    if done.code != 0 and "Flags from" not in done.output:  # --help of Abseil's flags may end with 1.
        done.require_success()
    return {}


# ceilings


def ceilings(kit):
    rates, adamw = kit.output("rates.json"), kit.output("adamw.json")
    return [
        Item("operations", [kit.program("cuda_ops_benchmark"), "--json=" + rates],
             lambda done: {"rates": json_after(done, rates)}),
        Item("optimizer", [kit.program("cuda_state_ops_benchmark"), "--benchmark_out=" + adamw,
                           "--benchmark_out_format=json"],
             lambda done: {"rates": read_benchmark(json_after(done, adamw))}),
        Item("pcie", [kit.program("offload_bench"), "--device=cuda", "--size=1GiB", "--min_bytes=1MiB",
                      "--max_bytes=256MiB", "--factor=16", "--format=json", "--quiet=true"],
             lambda done: {"rates": read_copies(done)}, needs_flag="device"),
    ]


def json_after(done, path):
    done.require_success()
    return load_json(path)


def read_benchmark(report):
    """Of Google Benchmark's JSON: the counters of each benchmark."""
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
    for name in GPU_TESTS:
        if name in kit.manifest["programs"]:
            report = kit.output(name + ".json")
            items.append(Item(name, [kit.program(name), "--gtest_output=json:" + report],
                              lambda done, report=report: read_gtest(done, report)))
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


def sanitizer(kit):
    program = machine.find_program("compute-sanitizer")
    if program is None:
        raise Skipped("compute-sanitizer was not found: it is part of the CUDA toolkit")
    return [Item("%s-%s" % (tool, name),
                 [program, "--tool", tool, "--error-exitcode", str(_SANITIZER_ERROR), kit.program(name)], read_sanitizer)
            for tool in ("memcheck", "racecheck", "synccheck") for name in _KERNEL_TESTS]


def read_sanitizer(done):
    errors = sum(int(number) for number in re.findall(r"ERROR SUMMARY: (\d+) error", done.output))
    summaries = re.findall(r"RACECHECK SUMMARY: (\d+) hazard", done.output)
    errors += sum(int(number) for number in summaries)
    if errors or done.code == _SANITIZER_ERROR:
        raise Failed("%d errors" % errors, {"errors": max(errors, 1)})
    done.require_success()
    return {"errors": 0}


# training


def train_item(kit, stage, name, model, read, steps=None, timeout=540, flags=None, make_flags=workloads.train_flags):
    """A run of the trainer; `read` gets the lines of its metrics."""
    run_dir = kit.output(stage, name)
    metrics = os.path.join(run_dir, "metrics.jsonl")
    command = [kit.program("train")] + make_flags(kit.work, model, run_dir, device=kit.device, **(flags or {}))

    def read_metrics(done):
        lines = read_lines(metrics)
        if steps is None or len(lines) < steps:  # Else the kit has ended it.
            if done.code == 2 and re.search(r"memory|fit", done.last_line()):
                raise Skipped(done.last_line())
            done.require_success()
        return read(lines[:steps])

    return Item(name, command, read_metrics, timeout, steps, metrics,
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
    """The same losses as the processor's, on one rank and on several that share the GPU."""
    variants = {"one_rank": {}, "dp2_tp2_zero3": {"mesh": "dp2,tp2", "zero": 3},
                "pp2_cp2": {"mesh": "pp2,cp2", "micro_batch": 2}, "offload": {"offload": "optimizer"}}
    references = kit.references

    def flags_of(work, _, run_dir, **flags):
        return workloads.parity_flags(work, run_dir, dtype, **flags)

    return [train_item(kit, "parity_" + dtype, name, "parity",
                       lambda lines: compare(losses_of(lines), references, dtype), flags=flags, make_flags=flags_of)
            for name, flags in variants.items()]


def compare(values, references, dtype):
    """Adds the largest relative difference from the reference, of fp8 from bf16's, and of bf16 the bias (docs/gpu.md)."""
    expected = references["bf16" if dtype == "fp8" else dtype]["losses"]
    actual = values["losses"]
    if len(actual) != len(expected) or None in actual:
        raise Failed("%d finite losses, expected %d" % (len([a for a in actual if a is not None]), len(expected)), values)
    values["difference"] = max(abs(a - e) / abs(e) for a, e in zip(actual, expected))
    if dtype == "bf16":
        exact = references["fp32"]["losses"]
        allowed = 1.25 * max(abs(e - x) for e, x in zip(expected, exact)) + 1e-3
        values["bias"] = max(abs(a - x) for a, x in zip(actual, exact)) / allowed
    limit = {"fp32": 1e-5, "bf16": 2e-2, "fp8": 5e-2}[dtype]
    if values["difference"] > limit or values.get("bias", 0) > 1:
        raise Failed("the losses differ from the processor's by %.3g (at most %g)%s" % (
            values["difference"], limit, "" if values.get("bias", 0) <= 1 else " and are biased"), values)
    return values


def repeat(kit):
    """Each run twice; the report compares their bits."""
    variants = {"fp32": ("fp32", {}), "bf16": ("bf16", {}), "bf16_dp2_tp2": ("bf16", {"mesh": "dp2,tp2", "zero": 3})}
    items = []
    for name, (dtype, flags) in variants.items():
        for turn in ("first", "second"):
            def flags_of(work, _, run_dir, dtype=dtype, **more):
                return workloads.parity_flags(work, run_dir, dtype, **more)
            items.append(train_item(kit, "repeat", "%s-%s" % (name, turn), "parity", losses_of, steps=10, flags=flags,
                                    make_flags=flags_of))
    return items


def speed_of(lines, warmup, model, length):
    """Median speed after the first steps, and MFU's numerator."""
    seconds = [line["seconds"] for line in lines[warmup:]]
    tokens = round(lines[-1]["tokens_per_second"] * lines[-1]["seconds"])
    step = statistics.median(seconds)
    return {
        "tokens_per_step": tokens,
        "seconds_per_step": step,
        "spread": (max(seconds) - min(seconds)) / step,
        "tokens_per_second": tokens / step,
        "flops": tokens / step * workloads.flops_per_token(workloads.MODELS[model], length),
        "flops_palm": tokens / step * workloads.flops_per_token(workloads.MODELS[model], length, causal=False),
        "memory_bytes": lines[-1]["memory_bytes"],
        "losses": [line["loss"] for line in lines],
    }


_MFU_VARIANTS = {
    "1.2b": {
        "fast": {"batch": 4, "micro_batch": 4, "deterministic": "false"},
        "deterministic": {"batch": 4, "micro_batch": 4},
        "four_micro_batches": {"batch": 16, "micro_batch": 4, "deterministic": "false"},
    },
    # The largest micro-batch that fits is the fastest; the trainer refuses those that it predicts not to fit.
    "8b": {
        "two_sequences": {"batch": 2, "micro_batch": 2, "deterministic": "false"},
        "eight_micro_batches": {"batch": 8, "micro_batch": 1, "deterministic": "false"},
        "two_sequences_recompute": {"batch": 2, "micro_batch": 2, "deterministic": "false", "recompute": "full"},
    },
}


def mfu(kit, model):
    stage = "mfu_1b2" if model == "1.2b" else "mfu_8b"
    common = {"dtype": "bf16", "length": 4096, "steps": 100, "warmup_steps": 20, "learning_rate": 3e-4}
    steps, warmup, moments = (25, 5, "f32") if model == "1.2b" else (12, 4, "int8")
    return [train_item(kit, stage, name, model, lambda lines: speed_of(lines, warmup, model, 4096), steps=steps,
                       flags={**common, "moments": moments, **flags})
            for name, flags in _MFU_VARIANTS[model].items()]


def fp8(kit):
    """Losses of products in fp8 beside bf16's of the processor, and speeds beside those of the stages in bf16."""
    references = kit.references

    def flags_of(work, _, run_dir, **flags):
        return workloads.parity_flags(work, run_dir, "fp8", **flags)

    items = [train_item(kit, "fp8", "parity", "parity", lambda lines: compare(losses_of(lines), references, "fp8"),
                        make_flags=flags_of)]
    common = {"dtype": "fp8", "length": 4096, "steps": 100, "warmup_steps": 20, "learning_rate": 3e-4,
              "deterministic": "false"}
    for name, model, steps, warmup, flags in (
            ("1.2b", "1.2b", 25, 5, {"batch": 4, "micro_batch": 4}),
            ("8b", "8b", 12, 4, {"batch": 2, "micro_batch": 2, "moments": "int8"})):
        items.append(train_item(kit, "fp8", name, model,
                                lambda lines, model=model, warmup=warmup: speed_of(lines, warmup, model, 4096),
                                steps=steps, flags={**common, **flags}))
    return items


def offload(kit):
    """A step of many micro-batches with the optimizer on the GPU and on the host."""
    processors = len(os.sched_getaffinity(0))
    common = {"dtype": "bf16", "length": 4096, "batch": 32, "micro_batch": 4, "steps": 100, "warmup_steps": 20,
              "learning_rate": 3e-4, "deterministic": "false", "threads": processors}
    variants = {"none": {"offload": "none"}, "optimizer": {"offload": "optimizer"},
                "optimizer_early": {"offload": "optimizer", "speculative_bytes": 20 * 2**30, "clip_norm": 0},
                "all": {"offload": "all", "zero": 3}}
    return [train_item(kit, "offload", name, "1.2b", lambda lines: speed_of(lines, 3, "1.2b", 4096), steps=9,
                       flags={**common, **flags})
            for name, flags in variants.items()]


# collectives


def collectives(kit):
    command = [kit.program("comm_bench"), "--device=cuda", "--engine=cuda", "--np=2,4",
               "--op=all_reduce,all_gather,reduce_scatter", "--dtype=bf16", "--min_bytes=64MiB", "--max_bytes=256MiB",
               "--factor=4", "--format=json", "--quiet=true"]
    return [Item("one_gpu", command, lambda done: {"rows": read_collectives(done)}, needs_flag="device")]


def traffic_bytes(op, world, size):
    """Bytes that ranks on one GPU read and write at least; `size` is the whole message (tools/comm_bench)."""
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
    program = machine.find_program("ncu")
    if program is None:
        raise Skipped("ncu was not found: it is part of the CUDA toolkit and of Nsight Compute")
    run_dir = kit.output("ncu", "train")
    flags = workloads.train_flags(kit.work, "1.2b_one_layer", run_dir, device=kit.device, dtype="bf16", length=4096,
                                  batch=4, micro_batch=4, steps=2, warmup_steps=1, deterministic="false")
    profile = [program, "--csv", "--page", "raw", "--target-processes", "all", "--metrics", ",".join(_NCU_METRICS)]
    return [Item("training_step", profile + ["--launch-skip", "20", "--launch-count", "150", kit.program("train")] + flags,
                 lambda done: {"kernels": read_ncu(done)},
                 prepare=lambda: workloads.write_workload(kit.work, "1.2b_one_layer"))]


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


def peer(kit):
    python, version = machine.python_with_torch()
    if python is None:
        raise Skipped("no Python with torch: " + version)
    variants = {
        "1.2b-autocast": ["--model=1.2b", "--batch=4"],
        "1.2b-autocast-compiled": ["--model=1.2b", "--batch=4", "--compile"],
        "1.2b-bf16-compiled": ["--model=1.2b", "--batch=4", "--precision=bf16", "--compile"],
        "8b-bf16-compiled": ["--model=8b", "--batch=2", "--precision=bf16", "--compile"],
    }
    script = os.path.join(kit.directory, "peer_torch.py")

    def item(name, flags):
        output = kit.output("peer", name + ".json")
        return Item(name, [python, script, *flags, "--work=" + kit.work, "--json=" + output],
                    lambda done: read_peer(done, output, name.split("-")[0]), env=dict(os.environ))

    return [item(name, flags) for name, flags in variants.items()]


def read_peer(done, path, model):
    done.require_success()
    values = load_json(path)
    values["flops"] = values["tokens_per_second"] * workloads.flops_per_token(workloads.MODELS[model], 4096)
    return values
