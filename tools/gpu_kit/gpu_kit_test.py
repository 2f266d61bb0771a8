#!/usr/bin/env python3
"""The kit as a user has it on a machine without a GPU: unpacked, refused, rehearsed, reported."""

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from unittest import mock

ARCHIVE, DOCS = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
RESULTS = os.path.abspath(os.path.join(os.path.dirname(sys.argv[0]), "testdata", "results.json"))
_MOST_BYTES = 60_000_000  # What may be carried to the GPU machine: the archive and the tracked files.
_TRACKED_BYTES = 13_000_000  # .ci/check_kit compares the real sum.
_MOST_COMMAND = 2000  # Characters of a command there.


def unpack():
    directory = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory)
    return os.path.join(directory, "tessera_gpu_kit")


KIT = unpack()
sys.path.insert(0, KIT)
import machine  # noqa: E402
import predictions  # noqa: E402
import report  # noqa: E402
import run_kit  # noqa: E402
import stages  # noqa: E402
import workloads  # noqa: E402

ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # Hides GPUs of the machine that runs this test.
PROGRAMS = machine.environment_of_programs(KIT)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


class KitTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.results = os.path.join(self.directory, "results.json")

    def tearDown(self):
        shutil.rmtree(self.directory)

    def call(self, *flags):
        """Exit code, standard output and standard error of run_kit.py."""
        command = [sys.executable, os.path.join(KIT, "run_kit.py"), "--results=" + self.results,
                   "--work_dir=" + os.path.join(self.directory, "work"), *flags]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                              env=ENVIRONMENT, check=False)
        self.assertNotIn("Traceback", done.stderr)
        return done.returncode, done.stdout, done.stderr

    def stored(self):
        return json.loads(read(self.results))["stages"]

    def store(self, items):
        """Results that an earlier rehearsal is to have left."""
        write(self.results, json.dumps({"version": 1, "machine": {"device": "emulated"}, "stages": items}))


FAKE = {"status": "passed", "seconds": 1, "values": {"losses": [1], "gradient_norms": [1], "mark": "fake"}}
BROKEN = {"status": "failed", "reason": "made up", "seconds": 1, "values": {}}


class ArchiveTest(KitTest):
    def test_is_small_enough_to_transfer(self):
        self.assertLess(os.path.getsize(ARCHIVE) + _TRACKED_BYTES, _MOST_BYTES)

    def test_has_all_programs_or_names_missing_ones(self):
        manifest = json.loads(read(os.path.join(KIT, "manifest.json")))
        for name in manifest["programs"]:
            self.assertTrue(os.access(os.path.join(KIT, "bin", name), os.X_OK), name)
        self.assertEqual(manifest["cuda"], not manifest["missing"])
        needed = {"train", "comm_bench", "offload_bench", "cuda_ops_benchmark", "cuda_state_ops_benchmark",
                  *stages.GPU_TESTS}
        self.assertEqual(needed, {*manifest["programs"], *manifest["missing"]})

    def test_programs_depend_only_on_kit_or_cuda(self):
        manifest = json.loads(read(os.path.join(KIT, "manifest.json")))
        for name in manifest["programs"]:
            done = subprocess.run(["ldd", os.path.join(KIT, "bin", name)], stdout=subprocess.PIPE, check=True,
                                  universal_newlines=True, env={**os.environ, "LD_LIBRARY_PATH": KIT + "/lib"})
            lost = {line.split()[0] for line in done.stdout.splitlines() if "not found" in line}
            self.assertLessEqual(lost, set(manifest["libraries_of_cuda"]), name)


class RejectionTest(KitTest):
    def test_reports_missing_gpu_in_one_line(self):
        code, out, err = self.call()
        self.assertEqual((code, out), (2, ""))
        self.assertEqual(err.count("\n"), 1, err)
        self.assertRegex(err, "no GPU on this machine|built without the CUDA toolkit: .* it lacks cuda_ops_benchmark")
        self.assertFalse(os.path.exists(self.results))

    def test_explains_invalid_flags(self):
        for flags, message in ((["--stages=speed"], "no stage 'speed'; there are environment,tests"),
                               (["--plan=second"], "no such plan; there are first,first-1,"),
                               (["--plan=first", "--stages=tests"], "give one of them"),
                               (["--device=emulated", "--stages=repeat:x"], "no such item; there are fp32-first"),
                               (["--report"], "no results yet")):
            code, _, err = self.call(*flags)
            self.assertEqual(code, 2)
            self.assertIn(message, err)

    def test_never_mixes_rehearsals_and_measurements(self):
        write(self.results, json.dumps({"version": 1, "machine": {"device": "cuda"}, "stages": {}}))
        code, _, err = self.call("--device=emulated")
        self.assertEqual(code, 2)
        self.assertIn("has results of --device=cuda", err)

    def test_never_mixes_cards(self):
        write(self.results, json.dumps({"version": 1, "machine": {"device": "emulated", "gpus": ["NVIDIA H200"]},
                                        "stages": {}}))
        code, _, err = self.call("--device=emulated")
        self.assertEqual(code, 2)
        self.assertIn("has results of NVIDIA H200, and here is no GPU", err)


class ResumeTest(KitTest):
    def test_runs_only_items_without_result(self):
        self.store({"repeat": {"fp32-first": FAKE}})
        code, out, _ = self.call("--device=emulated", "--stages=repeat:fp32-first,repeat:fp32-second")
        self.assertEqual(self.stored()["repeat"]["fp32-first"], FAKE)
        self.assertEqual(len(self.stored()["repeat"]["fp32-second"]["values"]["losses"]), 3)
        self.assertRegex(out, r"fp32-first +passed +\(earlier\)")
        self.assertEqual(code, 1)  # The fake run has other bits.

    def test_repeats_failures_on_request(self):
        self.store({"repeat": {"fp32-first": BROKEN}})
        self.assertEqual(self.call("--device=emulated", "--stages=repeat:fp32-first")[0], 1)
        self.assertEqual(self.stored()["repeat"]["fp32-first"], BROKEN)
        self.assertEqual(self.call("--device=emulated", "--stages=repeat:fp32-first", "--retry")[0], 0)
        self.assertEqual(self.stored()["repeat"]["fp32-first"]["status"], "passed")

    def test_starts_nothing_after_the_time_limit(self):
        code, out, _ = self.call("--device=emulated", "--time_limit=1")
        self.assertEqual(code, 3)
        self.assertIn("call again", out)
        started = [item for items in self.stored().values() for item, outcome in items.items()
                   if outcome["status"] != "skipped"]
        self.assertEqual(started, [])


def lives(pid):
    try:
        return "Z" not in read("/proc/%s/stat" % pid)
    except OSError:
        return False


class ItemTest(KitTest):
    """One command that fails does not end the others."""

    def outcome(self, command, read_output=lambda done: {"output": done.output}, **more):
        kit = stages.Kit(KIT, self.directory)
        item = stages.Item("x", command, read_output, 1, **more)
        return run_kit.run_item(kit, item, PROGRAMS, os.path.join(self.directory, "log"), item.timeout)

    def test_stores_output_of_command(self):
        outcome = self.outcome(["/bin/echo", "text"])
        self.assertEqual((outcome["status"], outcome["values"]), ("passed", {"output": "text\n"}))

    def test_failures_have_a_reason(self):
        for command, reason in ((["/bin/sh", "-c", "echo bad; exit 3"], "exit code 3: bad"),
                                (["/bin/sh", "-c", "kill -9 $$"], "exit code -9")):
            outcome = self.outcome(command, lambda done: done.require_success())
            self.assertEqual(outcome["status"], "failed")
            self.assertIn(reason, outcome["reason"])
        self.assertIn("KeyError", self.outcome(["/bin/true"], lambda done: {}["x"])["reason"])

    def test_kills_hanging_command_with_children(self):
        outcome = self.outcome(["/bin/sh", "-c", "sleep 1000 & echo $! >pid; wait"], timeout=1)
        self.assertEqual((outcome["status"], outcome["reason"]), ("failed", "not done after 1 s"))
        self.assertLess(outcome["seconds"], 30)
        child = read("pid").strip()
        os.remove("pid")
        # A killed process may live on for a moment.
        deadline = time.monotonic() + 10
        while lives(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(lives(child))

    def test_skips_missing_programs(self):
        self.assertEqual(self.outcome(["/no/such"])["reason"], "this kit was built without such")

    def test_variables_are_changed_for_one_item(self):
        outcome = self.outcome(["/bin/sh", "-c", "echo $X ${LD_LIBRARY_PATH-unset}"], env={"X": "7", "LD_LIBRARY_PATH": None})
        self.assertEqual(outcome["values"]["output"], "7 unset\n")

    def test_run_rejected_by_trainer_fails(self):
        kit = stages.Kit(KIT, os.path.join(self.directory, "work"), "emulated")
        item = stages.train_item(kit, "mfu", "x", "parity", stages.losses_of, 10, flags={"mesh": "dp3,tp7"})
        outcome = run_kit.run_item(kit, item, PROGRAMS, os.path.join(self.directory, "log"), 60)
        self.assertEqual(outcome["status"], "failed")
        self.assertIn("exit code 2", outcome["reason"])


class CommandTest(KitTest):
    def test_every_program_accepts_the_flags_it_gets(self):
        code, out, _ = self.call("--dry_run")
        self.assertEqual(code, 0)
        lines = [line for line in out.splitlines() if "skipped" not in line]
        self.assertGreater(len(lines), 40)
        missing = json.loads(read(os.path.join(KIT, "manifest.json")))["missing"]
        for line in lines:
            command = shlex.split(line.split(": ", 1)[1]) if ": " in line else [""]
            if command[0] and os.path.basename(command[0]) not in missing:
                self.check_command(command)

    def check_command(self, command):
        if os.path.basename(command[0]) == "train":
            code, text = machine.run_text(command + ["--dry_run"], 120, PROGRAMS)
            self.assertEqual(code, 0, text)
            return
        code, text = machine.run_text([command[0], "--help"], 60, PROGRAMS)
        for flag in (part[2:].split("=")[0] for part in command[1:] if part.startswith("--")):
            if flag in ("help", "gtest_list_tests", "benchmark_list_tests"):
                self.assertNotIn("error while loading", machine.run_text(command, 60, PROGRAMS)[1])
            else:
                self.assertIn("--" + flag, text, command)

    def test_the_calls_of_the_first_plan_end_in_time(self):
        for plan in ("first-1", "first-2", "first-3"):
            # As if all tools were there: their stages skip themselves otherwise.
            with mock.patch.object(machine, "find_program", return_value="/bin/true"), \
                    mock.patch.object(machine, "python_with_torch", return_value=("/bin/true", "2.11")):
                kit = stages.Kit(KIT, self.directory, "cuda", "H100")
                seconds = sum(item.seconds for stage in stages.PLANS[plan] for item in stages.items_of(stage, kit))
            self.assertLess(seconds, 0.95 * stages.CALL_SECONDS, plan)

    def test_every_run_fits_an_h100_and_an_h200(self):
        for card in predictions.CARDS:
            code, out, err = self.call("--check_memory=" + card)
            self.assertEqual(code, 0, out + err)
            self.assertGreaterEqual(out.count(" fits\n"), 25)
            self.assertEqual("mfu_8b       two_sequences " in out, card == "H200", out)

    def test_commands_of_the_readme_are_short_enough(self):
        blocks = re.findall(r"```sh\n(.*?)```", read(os.path.join(KIT, "README.md")), re.S)
        commands = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if "run_kit" in line]
        self.assertGreaterEqual(len(commands), 4)
        for command in commands:
            self.assertLess(len(command), _MOST_COMMAND)

    def test_reference_losses_match_trainer(self):
        code, out, err = self.call("--check_reference=20")
        self.assertEqual(code, 0, out + err)
        self.assertEqual(out.count("20 losses differ by at most"), 2)


# Stands for the program that it is named after: checks how it is called, and runs the program behind the options.
_TOOL = """#!/bin/sh
name=$(basename $0)
echo "$name $*" >>%s
while [ $# -gt 0 ] && [ ! -x "$1" -o -d "$1" ]; do shift; done
"$@" >/dev/null || exit $?
case $name in
compute-sanitizer) echo "========= ERROR SUMMARY: 0 errors" ;;
ncu) cat <<'END'
%s
END
esac
"""
_NCU_TABLE = "\n".join([
    ",".join(['"ID"', '"Kernel Name"'] + ['"%s"' % name for name in stages._NCU_METRICS]),
    '"","","us","%","%","%",""', '"0","tessera::native::AddKernel(float*)","10.0","80","20","50","0"'])


class RehearsalTest(KitTest):
    """Every stage of every plan, on an emulated device with a tiny model."""

    def setUp(self):
        super().setUp()
        self.tools = os.path.join(self.directory, "tools")
        self.calls = os.path.join(self.directory, "calls")
        os.mkdir(self.tools)
        for name in ("compute-sanitizer", "ncu"):
            path = os.path.join(self.tools, name)
            write(path, _TOOL % (self.calls, _NCU_TABLE))
            os.chmod(path, 0o755)

    def test_every_stage_runs_and_leaves_its_results(self):
        out = os.path.join(self.directory, "out")
        environment = {"PATH": self.tools + ":" + os.environ["PATH"], "OUT": out}
        with mock.patch.dict(ENVIRONMENT, environment):
            code, text, err = self.call("--device=emulated", "--time_limit=1000")
        self.assertEqual(code, 0, text + err)
        self.check_outcomes(self.stored())
        self.assertEqual(sorted(os.listdir(out)), ["logs.tar.xz", "report.md", "results.json"])
        self.assertEqual(json.loads(read(os.path.join(out, "results.json"))), json.loads(read(self.results)))
        self.assertIn("a rehearsal with --device=emulated", read(os.path.join(out, "report.md")))
        with tarfile.open(os.path.join(out, "logs.tar.xz")) as logs:
            self.assertIn("logs/mfu_1.2b-fast/metrics.jsonl", logs.getnames())

    def check_outcomes(self, stored):
        self.assertEqual(list(stored), stages.STAGES)
        for stage, items in stored.items():
            for name, outcome in items.items():
                self.assertIn(outcome["status"], ("passed", "skipped"), (stage, name, outcome))
                # What no GPU program could show here: rates, tests that need a GPU, and PyTorch.
                if outcome["status"] == "skipped":
                    self.assertIn(stage, ("ceilings", "tests", "peer", "peer_8b"), (stage, name, outcome))
        calls = read(self.calls)
        self.assertIn("--tool memcheck --padding 256 --error-exitcode 86 --kernel-name kernel_substring=tessera", calls)
        self.assertIn("--clock-control none --kernel-name-base demangled --kernel-name regex:tessera", calls)

    def test_interrupted_call_keeps_results(self):
        out = os.path.join(self.directory, "out")
        command = [sys.executable, os.path.join(KIT, "run_kit.py"), "--results=" + self.results, "--device=emulated",
                   "--work_dir=" + os.path.join(self.directory, "work"), "--out=" + out, "--stages=environment,repeat"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT,
                              universal_newlines=True) as process:
            for line in process.stdout:  # Ends with the first run of the trainer.
                if line.startswith("repeat"):
                    process.terminate()
                    break
            process.stdout.read()
        self.assertEqual(process.returncode, 128 + 15)
        stored = json.loads(read(os.path.join(out, "results.json")))["stages"]
        self.assertIn("fp32-first", stored["repeat"])
        self.assertTrue(os.path.exists(os.path.join(out, "logs.tar.xz")))


class ReadTest(unittest.TestCase):
    """What is read from the output of programs."""

    def test_losses_are_compared_with_the_reference(self):
        references = json.loads(read(os.path.join(KIT, "reference_losses.json")))
        for dtype, limit in (("fp32", 1e-5), ("bf16", 2e-2)):
            self.assertEqual(len(references[dtype]["losses"]), 20)
            losses = list(references[dtype]["losses"])
            self.assertEqual(stages.compare({"losses": losses}, references, dtype)["difference"], 0)
            losses[7] *= 1 + 2 * limit
            with self.assertRaisesRegex(stages.Failed, "differ from the processor"):
                stages.compare({"losses": losses}, references, dtype)
            losses[7] = None
            with self.assertRaisesRegex(stages.Failed, "19 finite losses"):
                stages.compare({"losses": losses}, references, dtype)

    def test_a_large_run_begins_with_the_reference_loss(self):
        references = json.loads(read(os.path.join(KIT, "reference_losses.json")))
        kit = stages.Kit(KIT, ".", "cuda", "H100")
        lines = [{"loss": loss, "grad_norm": 3.0, "seconds": 1.0, "tokens_per_second": 10.0, "memory_bytes": 1}
                 for loss in [references["1.2b"]["losses"][0] * 1.01, 11.0, 10.0]]
        known = references["1.2b"]["losses"]
        self.assertEqual(stages.speed_of(kit, lines, 1, "1.2b", 4096, known)["losses"][2], 10.0)
        lines[0]["loss"] *= 1.02
        with self.assertRaisesRegex(stages.Failed, "the loss of step 1 is 12.54.*, on the processor 12.17"):
            stages.speed_of(kit, lines, 1, "1.2b", 4096, known)

    def test_a_small_bias_of_bf16_fails(self):
        references = json.loads(read(os.path.join(KIT, "reference_losses.json")))
        losses = [loss + 0.01 for loss in references["bf16"]["losses"]]
        with self.assertRaisesRegex(stages.Failed, "are biased"):
            stages.compare({"losses": losses}, references, "bf16")

    def test_kernels_are_read_from_the_table_of_ncu(self):
        header = ['"ID"', '"Kernel Name"'] + ['"%s"' % name for name in stages._NCU_METRICS]
        rows = [header, ['""', '""', '"us"', '"%"', '"%"', '"%"', '""'],
                ['"0"', '"AddKernel(float*)"', '"10.0"', '"80"', '"20"', '"50"', '"0"'],
                ['"1"', '"AddKernel(float*)"', '"20.0"', '"90"', '"20"', '"50"', '"2"'],
                ['"2"', '"Gemm"', '"1,000.5"', '"10"', '"95"', '"20"', '"0"']]
        text = "==PROF== Connected\n" + "\n".join(",".join(row) for row in rows) + "\n"
        kernels = stages.read_ncu(stages.Done(0, text))
        self.assertEqual([(kernel["name"], kernel["launches"]) for kernel in kernels], [("Gemm", 1), ("AddKernel", 2)])
        self.assertAlmostEqual(kernels[0]["seconds"], 1000.5e-6)
        self.assertEqual(kernels[1]["dram_percent"], 85)
        with self.assertRaisesRegex(stages.Skipped, "permission"):
            stages.read_ncu(stages.Done(1, "==ERROR== ERR_NVGPUCTRPERM"))

    def test_errors_of_the_sanitizer_are_added(self):
        self.assertEqual(stages.read_sanitizer(stages.Done(0, "ERROR SUMMARY: 0 errors"))["errors"], 0)
        with self.assertRaisesRegex(stages.Failed, "5 errors"):
            stages.read_sanitizer(stages.Done(86, "ERROR SUMMARY: 3 errors\nRACECHECK SUMMARY: 2 hazards displayed"))

    def test_skipped_tests_do_not_pass(self):
        path = os.path.join(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")), "report.json")
        passed = {"classname": "A", "name": "B"}
        skipped = {**passed, "result": "SKIPPED"}

        def outcome_of(*cases, code=0):
            write(path, json.dumps({"testsuites": [{"testsuite": list(cases)}]}))
            return stages.read_gtest(stages.Done(code, "last line"), path)

        self.assertEqual(outcome_of(passed, passed, skipped), {"passed": 2, "failed": [], "skipped": 1})
        with self.assertRaisesRegex(stages.Skipped, "1 of 2 tests skip themselves"):
            outcome_of(passed, skipped)
        with self.assertRaisesRegex(stages.Failed, "1 of 2 tests failed: A.B"):
            outcome_of(passed, {**passed, "failures": [{}]}, code=1)
        with self.assertRaisesRegex(stages.Failed, "exit code -6 after the tests"):
            outcome_of(passed, code=-6)

    def test_runs_with_wrong_losses_fail(self):
        values = {"losses": [3.0, 2.5, 2.0], "gradient_norms": [1.0, 1.0, 1.0]}
        self.assertIsNone(stages.problem_of_losses(values, [3.01, 2.51]))
        self.assertIn("of step 2 is 2.5000, on the processor 2.7000", stages.problem_of_losses(values, [3.0, 2.7]))
        self.assertIn("did not fall", stages.problem_of_losses({**values, "losses": [2.0, 1.0, 2.0]}, None))
        self.assertIn("not finite", stages.problem_of_losses({**values, "losses": [2.0, None, 1.0]}, None))
        self.assertIn("not finite", stages.problem_of_losses({**values, "gradient_norms": [1.0, math.nan, 1.0]}, None))

    def test_names_missing_or_old_libraries(self):
        good = {"path": "/x", "version": 130100}
        found = {"libcublasLt.so.13": good, "libcudnn.so.9": {"path": "/y", "version": 90501},
                 "libnccl.so.2": {"error": "no such file"}}
        self.assertEqual(machine.problems_of_libraries(found), [
            "libcudnn.so.9: version 90501 at /y, 90600 or newer is needed (the Python package nvidia-cudnn-cu13 has it)",
            "libnccl.so.2: no such file (the Python package nvidia-nccl-cu13 has it)"])
        kit = stages.Kit(KIT, ".", "cuda")
        with self.assertRaisesRegex(stages.Failed, "libcudnn.so.9: version 90501"):
            stages.read_libraries(stages.Done(0, json.dumps(found)), kit)
        kit.device = "emulated"
        self.assertEqual(stages.read_libraries(stages.Done(0, json.dumps(found)), kit), {"libraries": found})

    def test_sizes_of_the_models(self):
        self.assertEqual(workloads.parameters(workloads.MODELS["1.2b"]), 1235814400)  # Llama 3.2 1B.
        self.assertEqual(workloads.parameters(workloads.MODELS["8b"]), 8030261248)
        self.assertAlmostEqual(workloads.flops_per_token(workloads.MODELS["8b"], 4096) / 1e10, 5.14, 2)


class ReportTest(KitTest):
    def setUp(self):
        super().setUp()
        shutil.copy(RESULTS, self.results)

    def test_has_the_tables(self):
        code, out, _ = self.call("--report")
        self.assertEqual(code, 0)
        for line in ("| figure | measured | predicted | ratio | limit |",
                     "| MFU of 8 B | 0.468 | 0.561 to 0.601; at least 0.5 | 0.83 | FAIL |",
                     "| step of 1.2 B, for 4 x 4096 tokens, s | 0.273 | 0.256 to 0.272 | 1.00 |  |",
                     "| attention with its conversions, heads of 128, forward: share of cuDNN alone | 0.8 | 0.77 to 0.851 | 1.00 |  |",
                     "| losses of large models, largest relative difference between variants | 0.01 | at most 0.02 |  | pass |",
                     "| steps by CUDA graphs whose losses and gradient norms have other bits | 1 | at most 0 |  | FAIL |",
                     "| tokens/s of 1.2 B over compiled PyTorch with autocast | 1.21 | at least 1 |  | pass |",
                     "| libnccl.so.2 | missing | no such file |",
                     "| losses of 20 steps in f32, largest relative difference from the CPU | 2.5e-07 | at most 1e-05 |  | pass |",
                     "| repeated runs whose losses and gradient norms have other bits | 1 | at most 0 |  | FAIL |",
                     "| tokens/s lost by --offload=optimizer, 1.2 B, 16 x 4096 tokens | 0.125 | at most 0.15 |  | pass |",
                     "| collectives of threads on one GPU: least share of the copy rate | 0.833 | at least 0.7 |  | pass |",
                     "| PCIe, host to device, page-locked, GB/s |  | 50 to 55 |  | not measured |",
                     "| errors that compute-sanitizer reported | failed | at most 0 |  | FAIL |",
                     "| losses of 20 steps in fp8, largest relative difference from bf16 on the CPU | 0.012 | at most 0.05 |  | pass |",
                     "| fp8, 1.2b | 81920 | 0.200 | 0.681 | 0.747 |",
                     "| peer, 1.2b-autocast-compiled | 49648 | 0.330 | 0.412 |  |",
                     "| ceilings | pcie | skipped | offload_bench of this kit has no --device |"):
            self.assertIn(line + "\n", out)

    def test_goes_between_the_markers_of_a_document(self):
        docs = os.path.join(self.directory, "gpu.md")
        write(docs, "before\n%s\nold\n%s\nafter\n" % (report.BEGIN, report.END))
        for _ in range(2):
            self.assertEqual(self.call("--report", "--docs=" + docs)[0], 0)
        text = read(docs)
        self.assertTrue(text.startswith("before\n%s\nMeasured by" % report.BEGIN))
        self.assertTrue(text.endswith("|\n%s\nafter\n" % report.END))
        self.assertNotIn("old", text)

    def test_leaves_a_document_without_markers_alone(self):
        docs = os.path.join(self.directory, "gpu.md")
        write(docs, "text\n")
        code, _, err = self.call("--report", "--docs=" + docs)
        self.assertEqual((code, read(docs)), (2, "text\n"))
        self.assertIn("no lines <!-- gpu_kit: begin -->", err)

    def test_failed_items_have_no_figure(self):
        failed = {"status": "failed", "reason": "made up", "seconds": 1, "values": {}}
        skipped = {**failed, "status": "skipped"}
        content = json.loads(read(RESULTS))
        for stage, items in content["stages"].items():
            content["stages"][stage] = {item: failed for item in items}
        figures = report.figures_of(content)
        self.assertEqual(report.failures(content), [figure["key"] for figure in figures])
        for stage, items in content["stages"].items():
            content["stages"][stage] = {item: skipped for item in items}
        self.assertEqual(report.failures(content), [])
        self.assertIn("| GPU tests that failed |  | at most 0 |  | not measured |", report.markdown(content))

    def test_every_prediction_has_measurement(self):
        content = json.loads(read(RESULTS))
        keys = [figure["key"] for figure in report.figures_of(content)]
        self.assertEqual(sorted(keys), sorted(report.measured(content)))

    def test_predictions_depend_on_card(self):
        content = json.loads(read(RESULTS))
        ranges = {}
        for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA L4"):
            content["machine"]["gpus"] = [name]
            ranges[name] = [figure.get("range") for figure in report.figures_of(content) if figure["key"] == "mfu_1.2b"]
        self.assertEqual(ranges["NVIDIA L4"], [None])
        self.assertAlmostEqual(ranges["NVIDIA H100 80GB HBM3"][0][0], 0.476, 3)
        self.assertAlmostEqual(ranges["NVIDIA H200"][0][0], 0.5, 3)

    def test_the_document_has_the_predictions(self):
        code, out, _ = self.call("--predictions")
        self.assertEqual(code, 0)
        self.assertIn(out.strip(), read(DOCS))

    def test_results_of_several_calls_are_merged(self):
        first, second = json.loads(read(RESULTS)), json.loads(read(RESULTS))
        first["stages"] = {"tests": {"a": FAKE}, "repeat": {"x": BROKEN}}
        second["stages"] = {"repeat": {"x": FAKE}}
        self.assertEqual(report.merged([first, second])["stages"], {"tests": {"a": FAKE}, "repeat": {"x": FAKE}})
        second["machine"]["gpus"] = ["NVIDIA H100"]
        with self.assertRaisesRegex(ValueError, "report each by itself"):
            report.merged([first, second])


if __name__ == "__main__":
    unittest.main()
