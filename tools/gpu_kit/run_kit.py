#!/usr/bin/env python3
"""Measures Tessera on a machine with a GPU, without Bazel and network.

    ./run_kit.py --plan=first-1           # The first of three calls; each ends within --time_limit.
    ./run_kit.py                          # All stages; call again to continue after --time_limit.
    ./run_kit.py --stages=tests,mfu_8b:two_sequences   # Some of them, and one item of a stage.
    ./run_kit.py --report                 # The tables for docs/gpu.md.
    ./run_kit.py --device=emulated        # Rehearses every stage with a tiny model, without a GPU.
    ./run_kit.py --check_memory=H100      # Whether every run fits a card and its host, without either.

Exit codes: 0 all is done and nothing failed; 1 something failed; 2 bad usage, no GPU or no program that starts;
3 --time_limit has passed: call again.
"""

import argparse
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import machine
import predictions
import report
import stages
import workloads

HERE = os.path.dirname(os.path.abspath(__file__))


def say(text):
    print(text, flush=True)


def write_atomically(path, text):
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)


class Results:
    """The outcomes of items by stage, in a file that is updated atomically."""

    def __init__(self, path):
        self.path = path
        self.content = stages.load_json(path, {"version": 1, "machine": {}, "stages": {}})
        if self.content.get("version") != 1:
            raise ValueError("version %r, expected 1" % self.content.get("version"))

    def begin(self, device, commit):
        """Records the machine. ValueError if the file contains results of another device or card."""
        earlier = self.content["machine"].get("device", device)
        gpus = machine.gpu_names()
        if earlier != device:
            raise ValueError("--results=%s has results of --device=%s: name another file" % (self.path, earlier))
        if self.content["machine"].get("gpus", gpus) != gpus:
            raise ValueError("--results=%s has results of %s, and here is %s: name another file" % (
                self.path, ", ".join(self.content["machine"]["gpus"]) or "no GPU", ", ".join(gpus) or "no GPU"))
        self.content["machine"] = {"device": device, "gpus": gpus, "kit": commit,
                                   "driver_cuda": machine.driver_cuda_version(),
                                   "date": time.strftime("%Y-%m-%d", time.gmtime()), **machine.describe()}
        self.save()

    def items(self, stage):
        return self.content["stages"].setdefault(stage, {})

    def save(self):
        write_atomically(self.path, json.dumps(self.content, indent=1) + "\n")

    def store(self, stage, item, outcome):
        self.items(stage)[item] = outcome
        self.save()


def end(process):
    """Ends a command and the processes that it started, first with SIGTERM, then with SIGKILL."""
    for signal_number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, signal_number)
            process.wait(patience)
            break
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue


def count_lines(path):
    try:
        with open(path, "rb") as file:
            return file.read().count(b"\n")
    except OSError:
        return 0


def environment_of(item, environment):
    """The programs' environment with the item's changes; None removes a variable."""
    changed = {**environment, **item.env}
    return {name: value for name, value in changed.items() if value is not None}


def execute(item, environment, log, timeout):
    """Runs an item's command and returns a Done. Raises Failed after the timeout."""
    if item.metrics and os.path.isdir(os.path.dirname(item.metrics)):
        shutil.rmtree(os.path.dirname(item.metrics))  # The trainer refuses directories of earlier runs.
    deadline = time.monotonic() + timeout
    with open(log, "wb") as output:
        process = subprocess.Popen(item.command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env=environment_of(item, environment), start_new_session=True)
        try:
            while process.poll() is None:
                if item.steps and count_lines(item.metrics) >= item.steps:
                    break
                if time.monotonic() > deadline:
                    raise stages.Failed("not done after %d s" % timeout)
                time.sleep(0.05)
        finally:
            end(process)
    with open(log, encoding="utf-8", errors="replace") as file:
        return stages.Done(process.returncode, file.read())


def run_item(kit, item, environment, log, timeout):
    """The outcome of an item, for the results."""
    start = time.monotonic()
    outcome = {"status": "passed", "command": item.command}
    values = {}
    try:
        if not os.path.exists(item.command[0]):
            raise stages.Skipped("this kit was built without " + os.path.basename(item.command[0]))
        os.makedirs(os.path.join(kit.work, "out"), exist_ok=True)
        if item.prepare:
            item.prepare()
        values = item.read(execute(item, environment, log, timeout))
    except stages.Skipped as skipped:
        outcome.update(status="skipped", reason=str(skipped))
    except stages.Failed as failed:
        outcome.update(status="failed", reason=str(failed))
        values = failed.values
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        outcome.update(status="failed", reason="%s: %s (see %s)" % (type(error).__name__, error, log))
    outcome.update(seconds=round(time.monotonic() - start, 3), values=values)
    return outcome


def brief(outcome):
    """Summarises the numbers of an outcome in a few words."""
    values = outcome["values"]
    words = []
    for key, form in (("tokens_per_second", "%.0f tokens/s"), ("difference", "difference %.2g"), ("passed", "%d passed"),
                      ("errors", "%d errors")):
        if isinstance(values.get(key), (int, float)):
            words.append(form % values[key])
    return ", ".join(words) or outcome.get("reason", "")


class Runner:
    """Runs the items of stages that have no outcome yet, until the time limit."""

    def __init__(self, kit, results, options):
        self.kit = kit
        self.results = results
        self.options = options
        self.environment = machine.environment_of_programs(kit.directory)
        self.deadline = time.monotonic() + options.time_limit

    def run(self, chosen):
        """True if all items have an outcome."""
        return all([self.run_stage(name, items) for name, items in chosen.items()])

    def run_stage(self, name, names):
        try:
            items = chosen_items(name, names, self.kit)
        except stages.Skipped as skipped:
            self.results.store(name, "all", {"status": "skipped", "reason": str(skipped), "seconds": 0, "values": {}})
            say("%-12s %-28s skipped  %s" % (name, "", skipped))
            return True
        self.results.items(name).pop("all", None)
        return all([self.run_one(name, item) for item in items])

    def run_one(self, stage, item):
        stored = None if self.options.again else self.results.items(stage).get(item.name)
        if stored and not (self.options.retry and stored["status"] == "failed"):
            say("%-12s %-28s %-8s (earlier)" % (stage, item.name, stored["status"]))
            return True
        left = self.deadline - time.monotonic()
        if left < min(30, item.timeout):
            return False
        log = self.kit.output(stage, item.name + ".log")
        os.makedirs(os.path.dirname(log), exist_ok=True)
        timeout = min(item.timeout, left)
        outcome = run_item(self.kit, item, self.environment, log, timeout)
        if outcome["status"] == "failed" and "not done after" in outcome["reason"] and timeout < item.timeout - 1:
            say("%-12s %-28s stopped  by --time_limit after %d s; the next call repeats it" % (stage, item.name, timeout))
            return False
        self.results.store(stage, item.name, outcome)
        say("%-12s %-28s %-8s %6.1f s  %s" % (stage, item.name, outcome["status"], outcome["seconds"], brief(outcome)))
        return True


def parse_stages(options):
    """{stage: names of its items, or an empty set for all}, in the order of the plan or of --stages."""
    if options.stages and options.plan:
        raise ValueError("--stages=%s with --plan=%s: give one of them" % (options.stages, options.plan))
    chosen = {}
    names = options.stages.split(",") if options.stages else planned_stages(options.plan)
    for part in names:
        stage, _, item = part.partition(":")
        if stage not in stages.STAGES:
            raise ValueError("--stages=%s: no stage %r; there are %s" % (
                options.stages, stage, ",".join(stages.STAGES)))
        chosen.setdefault(stage, set()).update([item] if item else [])
    return chosen


def planned_stages(plan):
    """The stages of a plan; those of first-1 to first-3 for "first", all of them for an empty name."""
    plans = [name for name in stages.PLANS if name == plan or not plan or name.startswith(plan + "-")]
    if not plans:
        raise ValueError("--plan=%s: no such plan; there are first,%s" % (plan, ",".join(stages.PLANS)))
    return [stage for name in plans for stage in stages.PLANS[name]]


def chosen_items(stage, names, kit):
    """The items of a stage with these names. ValueError for an unknown name."""
    items = stages.items_of(stage, kit)
    unknown = names - {item.name for item in items}
    if unknown:
        raise ValueError("--stages=%s:%s: no such item; there are %s" % (
            stage, min(unknown), ", ".join(item.name for item in items)))
    return [item for item in items if item.name in names or not names]


def refuse(text):
    print("run_kit: " + text, file=sys.stderr)
    return 2


def problem_of_kit(kit, device):
    """The reason in one line, or None if the programs can run here."""
    if kit.manifest is None:
        return "no manifest.json beside run_kit.py: unpack the archive of //tools/gpu_kit and run the script in it"
    if device == "cuda" and not kit.manifest["cuda"]:
        return "this kit was built without the CUDA toolkit: its programs have no code for GPUs, and it lacks %s" % (
            ", ".join(kit.manifest["missing"]) or "nothing else")
    return None


def problem_of_gpus(kit):
    gpus = machine.find_gpus()
    if isinstance(gpus, str):
        return "no GPU on this machine: " + gpus
    libraries = kit.manifest["libraries_of_cuda"]
    missing = machine.missing_libraries(libraries, machine.library_directories())
    if missing:
        return "missing libraries: %s; install them, or build the kit with the CUDA version of this machine" % (
            ", ".join(missing))
    version, needed = machine.glibc(), tuple(int(part) for part in kit.manifest["glibc"].split("."))
    if version is not None and version < needed:
        return "glibc %d.%d here, and the kit needs %d.%d: build it on an older distribution" % (*version, *needed)
    return None


def dry_run(kit, chosen):
    if kit.manifest is None:
        return refuse(problem_of_kit(kit, kit.device))
    seconds = 0
    for name, names in chosen.items():
        try:
            for item in chosen_items(name, names, kit):
                if item.prepare:
                    item.prepare()
                seconds += item.seconds
                say("%s %s: %s" % (name, item.name, shlex.join(item.command)))
        except stages.Skipped as skipped:
            say("%s: skipped: %s" % (name, skipped))
    say("%d s are planned" % seconds)
    return 0


def memory_of(kit, item):
    """The bytes that a run of the trainer is predicted to need, as (device, host)."""
    item.prepare()
    code, text = machine.run_text([*item.command, "--dry_run", "--format=json"], 300,
                                  machine.environment_of_programs(kit.directory))
    if code != 0:
        raise ValueError("%s: exit code %s: %s" % (item.name, code, text.strip()[-300:]))
    memory = stages.json_in(text)["memory"]
    return memory["device"]["needed"], memory["needed"]


def check_memory(kit, chosen):
    """Compares the predicted memory of every training run with that of a card and of the plans' host."""
    if kit.manifest is None:
        return refuse(problem_of_kit(kit, "cpu"))
    device_limit, host_limit = predictions.usable_memory(kit.card), predictions.HOST_BYTES
    too_large = 0
    say("%-12s %-28s %9s %9s   %s: %.1f GiB, host: %.0f GiB" % (
        "stage", "run", "GPU, GiB", "host, GiB", kit.card, device_limit / predictions.GIB, host_limit / predictions.GIB))
    for name, names in chosen.items():
        try:
            items = [item for item in chosen_items(name, names, kit) if item.metrics]
        except stages.Skipped as skipped:
            say("%-12s skipped: %s" % (name, skipped))
            continue
        for item in items:
            device, host = memory_of(kit, item)
            fits = device <= device_limit and host <= host_limit
            too_large += not fits
            say("%-12s %-28s %9.1f %9.1f   %s" % (name, item.name, device / predictions.GIB, host / predictions.GIB,
                                                  "fits" if fits else "DOES NOT FIT"))
    return 1 if too_large else 0


def train_on_processor(kit, dtype, steps):
    """Losses of the reference run, or of its first steps."""
    kit.device = "cpu"

    def flags_of(work, _, run_dir, **flags):
        return workloads.parity_flags(work, run_dir, dtype, threads=len(os.sched_getaffinity(0)), **flags)

    item = stages.train_item(kit, "reference", dtype, "parity", stages.losses_of, 600, steps=steps, make_flags=flags_of)
    log = kit.output("reference", dtype + ".log")
    outcome = run_item(kit, item, machine.environment_of_programs(kit.directory), log, item.timeout)
    if outcome["status"] != "passed":
        raise ValueError("the trainer on the processor, %s: %s" % (dtype, outcome["reason"]))
    return outcome["values"]


def make_reference(kit, path):
    content = {"made_by": "run_kit.py --make_reference", "flags": " ".join(workloads.parity_flags("", "", "DTYPE"))}
    for dtype in ("fp32", "bf16"):
        content[dtype] = train_on_processor(kit, dtype, None)
    if "1.2b" in kit.references:  # A step takes ten minutes on two processors.
        content["1.2b"] = kit.references["1.2b"]
    write_atomically(path, json.dumps(content, indent=1) + "\n")
    say("wrote " + path)
    return 0


def check_reference(kit, steps):
    """Checks that the trainer here still computes the reference's losses."""
    worst = 0
    for dtype, allowed in (("fp32", 1e-5), ("bf16", 2e-2)):
        actual = train_on_processor(kit, dtype, steps)["losses"][:steps]
        expected = kit.references[dtype]["losses"][:steps]
        difference = max(abs(a - e) / abs(e) for a, e in zip(actual, expected))
        worst = max(worst, difference / allowed)
        say("%s: %d losses differ by at most %.3g from the reference" % (dtype, len(actual), difference))
    return 0 if worst <= 1 else 1


_MOST_LOG_BYTES = 1 << 20  # The end of each file.
_MOST_LOGS_BYTES = 15 << 20


def publish(kit, results, directory):
    """Writes results.json, report.md and logs.tar.xz, three small files to take from this machine."""
    os.makedirs(directory, exist_ok=True)
    shutil.copy(results.path, os.path.join(directory, "results.json"))
    if results.content["stages"]:
        write_atomically(os.path.join(directory, "report.md"), report.markdown(results.content))
    path = os.path.join(directory, "logs.tar.xz")
    for most in (_MOST_LOG_BYTES, _MOST_LOG_BYTES >> 4, _MOST_LOG_BYTES >> 8):
        pack_logs(kit, path, most)
        if os.path.getsize(path) <= _MOST_LOGS_BYTES:
            break


def pack_logs(kit, path, most):
    """The last `most` bytes of each log, metrics file and report of this kit's work directory."""
    with tarfile.open(path + ".part", "w:xz") as archive:
        for folder, _, names in os.walk(os.path.join(kit.work, "out")):
            for name in sorted(names):
                if not name.endswith((".log", ".json", ".jsonl")):
                    continue
                file = os.path.join(folder, name)
                with open(file, "rb") as content:
                    content.seek(max(0, os.path.getsize(file) - most))
                    data = content.read()
                info = tarfile.TarInfo(os.path.join("logs", os.path.relpath(file, os.path.join(kit.work, "out"))))
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    os.replace(path + ".part", path)


def measure(kit, results, options, chosen):
    problem = problem_of_kit(kit, options.device)
    if problem is None and options.device == "cuda":
        problem = problem_of_gpus(kit)
    if problem:
        return refuse(problem)
    results.begin(options.device, options.commit)
    try:
        done = Runner(kit, results, options).run(chosen)
    finally:
        if options.out:
            publish(kit, results, options.out)
    say("")
    say(report.summary(results.content))
    if not done:
        say("not all is done: call again with the same --results")
        return 3
    failed = [name for name in chosen for item in results.items(name).values() if item["status"] == "failed"]
    return 1 if failed or report.failures(results.content) else 0


def parser_of_flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", default="", help="first (its calls: first-1, first-2, first-3) or 8b; default: all stages")
    parser.add_argument("--stages", default="", help="of %s, or STAGE:ITEM" % ",".join(stages.STAGES))
    parser.add_argument("--results", default="results.json",
                        help="file with the results of this and earlier calls; --report takes several, A.json,B.json")
    parser.add_argument("--work_dir", default="work", help="directory for data, runs and logs")
    parser.add_argument("--out", default=os.environ.get("OUT", ""),
                        help="directory that gets results.json, report.md and logs.tar.xz at the end; default: $OUT")
    parser.add_argument("--device", choices=["cuda", "emulated"], default="cuda",
                        help="of the trainer; emulated rehearses: nothing is measured")
    parser.add_argument("--time_limit", type=float, default=stages.CALL_SECONDS,
                        help="seconds after which no more is started")
    parser.add_argument("--again", action="store_true", help="repeats what has results")
    parser.add_argument("--retry", action="store_true", help="repeats what failed")
    parser.add_argument("--commit", default="", help="the commit of the kit, for the report")
    parser.add_argument("--dry_run", action="store_true", help="prints every command and runs none")
    parser.add_argument("--check_memory", choices=list(predictions.CARDS),
                        help="compares what the runs need with this card's memory and a host of %d GiB" % (
                            predictions.HOST_BYTES >> 30))
    parser.add_argument("--report", action="store_true", help="prints the tables of --results in Markdown")
    parser.add_argument("--predictions", action="store_true", help="prints what is predicted for each card in Markdown")
    parser.add_argument("--docs", help="with --report: puts them between the markers of this file")
    parser.add_argument("--make_reference", metavar="FILE", help="writes the losses of the trainer on the processor")
    parser.add_argument("--check_reference", type=int, metavar="STEPS", help="compares the first losses with the reference")
    return parser


def end_politely(number, _):
    """Raises an exception, so that `finally` stores the measurements when the call is ended from outside."""
    sys.exit(128 + number)


def main():
    options = parser_of_flags().parse_args()
    signal.signal(signal.SIGTERM, end_politely)
    try:
        chosen = parse_stages(options)
        if options.predictions:
            say(report.prediction_table())
            return 0
        if options.report:
            return report.write([Results(path).content for path in options.results.split(",")], options.docs)
        card = options.check_memory or predictions.card_of(", ".join(machine.gpu_names()))
        kit = stages.Kit(HERE, os.path.abspath(options.work_dir), options.device, card)
        if options.check_memory:
            return check_memory(kit, chosen)
        if options.make_reference:
            return make_reference(kit, options.make_reference)
        if options.check_reference:
            return check_reference(kit, options.check_reference)
        if options.dry_run:
            return dry_run(kit, chosen)
        return measure(kit, Results(options.results), options, chosen)
    except (OSError, ValueError) as error:
        return refuse(str(error))


if __name__ == "__main__":
    sys.exit(main())
