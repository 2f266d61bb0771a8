"""Tests the installed package tessera without torch, and the examples of its README."""

import importlib.util
import itertools
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zipfile

import tessera
from tessera import _core, pipeline
from tessera.errors import InvalidArgument, StatusError
from tessera.topology import Mesh

HAS_TORCH = importlib.util.find_spec("torch") is not None


class WheelTest(unittest.TestCase):
    def test_it_needs_the_c_library_alone(self):
        text = subprocess.run(["readelf", "-d", _core.__file__], check=True, capture_output=True, text=True).stdout
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", text))
        self.assertLessEqual(needed, {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"})
        self.assertNotIn("RUNPATH", text)
        exported = subprocess.run(
            ["nm", "-D", "--defined-only", _core.__file__], check=True, capture_output=True, text=True
        ).stdout
        self.assertEqual([line.split()[-1] for line in exported.splitlines()], ["PyInit__core"])

    def test_it_is_small_and_typed(self):
        self.assertLess(os.path.getsize(os.environ["WHEEL"]), 30 << 20)
        names = zipfile.ZipFile(os.environ["WHEEL"]).namelist()
        for name in ("tessera/py.typed", "tessera/_core.pyi"):
            self.assertIn(name, names)
        self.assertRegex(os.path.basename(os.environ["WHEEL"]), r"manylinux_2_\d+_")

    def test_it_does_not_import_torch_or_numpy(self):
        program = "import sys, tessera; print([m for m in ('torch', 'numpy') if m in sys.modules])"
        self.assertEqual(subprocess.check_output([sys.executable, "-c", program], text=True).strip(), "[]")

    def test_the_stubs_name_what_there_is(self):
        path = os.path.join(os.path.dirname(tessera.__file__), "_core.pyi")
        with open(path) as file:
            stubs = set(re.findall(r"^(?:class|def) (\w+)", file.read(), re.M))
        self.assertEqual(stubs, {name for name in dir(_core) if not name.startswith("_")})

    def test_the_examples_of_the_readme(self):
        with open(os.environ["README"]) as file:
            blocks = re.findall(r"^```(\w+)\n(.*?)^```$", file.read(), re.M | re.S)
        examples = [(code, text) for (kind, code), (_, text) in itertools.pairwise(blocks) if kind == "python"]
        self.assertGreaterEqual(len(examples), 3)
        for code, text in examples:
            if "torch" in code and not HAS_TORCH:
                continue
            with tempfile.TemporaryDirectory() as directory:
                output = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=directory)
            self.assertEqual(output, text)


class MeshTest(unittest.TestCase):
    def test_groups_equal_those_of_brute_force(self):
        rng = random.Random(0)
        for _ in range(30):
            names = rng.sample(["dp", "tp", "pp", "cp"], rng.randrange(1, 5))
            axes = {name: rng.randrange(1, 4) for name in names}
            mesh = Mesh(axes)
            chosen = rng.sample(names, rng.randrange(1, len(names) + 1))
            expected = {}
            for rank in range(mesh.world_size):
                rest = rank
                coordinates = {}
                for name, size in axes.items():
                    coordinates[name] = rest % size
                    rest //= size
                self.assertEqual(mesh.coordinates(rank), coordinates)
                self.assertEqual(mesh.rank_at(**coordinates), rank)
                key = tuple(coordinates[name] for name in names if name not in chosen)
                expected.setdefault(key, []).append(rank)
            self.assertEqual(mesh.groups(chosen), sorted(expected.values()))
            for group in expected.values():
                self.assertEqual(mesh.group_of(group[-1], ",".join(chosen)), group)

    def test_divisions(self):
        mesh = Mesh("dp8,tp2", order="tp-dp").redivide("dp", {"dp_shard": 4, "dp_replicate": 2})
        self.assertEqual(mesh.group_of(0, "dp_shard"), [0, 2, 4, 6])
        self.assertEqual(Mesh("dp4,tp2").with_expert_axes(4, 2).size_of("ep"), 4)
        self.assertEqual(mesh.group_name(3, "tp"), "tp_group_dp1")

    def test_bad_input(self):
        for call, text in (
            (lambda: Mesh("dp0"), "dp"),
            (lambda: Mesh("dp2,dp3"), "dp"),
            (lambda: Mesh("dp2", order="tp"), "dp"),
            (lambda: Mesh("dp2").coordinates(2), "2"),
            (lambda: Mesh("dp2").groups("tp"), "tp"),
            (lambda: Mesh("dp2").rank_at(tp=1), "tp"),
            (lambda: Mesh("dp2").group_of(7, "dp"), "7"),
        ):
            with self.assertRaisesRegex(InvalidArgument, text) as caught:
                call()
            self.assertIsInstance(caught.exception, ValueError)
            self.assertEqual(caught.exception.code, "INVALID_ARGUMENT")
        with self.assertRaises(TypeError):
            Mesh("dp2").coordinates("0")


class PipelineTest(unittest.TestCase):
    def test_every_generator_is_proven_and_goes_through_text(self):
        self.assertGreaterEqual(len(pipeline.generators()), 8)
        for name in pipeline.generators():
            schedule = pipeline.generate(name, ranks=4, microbatches=8)
            lowered = pipeline.lower(schedule)
            self.assertTrue(lowered.is_lowered)
            self.assertEqual(pipeline.validate(schedule).messages, pipeline.validate(lowered).messages)
            self.assertEqual(pipeline.from_csv(schedule.to_csv()).to_csv(), schedule.to_csv())
            self.assertEqual(pipeline.from_json(lowered.to_json()), lowered)
            self.assertEqual(sum(map(len, pipeline.actions(schedule))) > 0, True)
            self.assertEqual(sorted(set().union(*map(schedule.stages_of, range(4)))), list(range(schedule.stages)))

    def test_times_equal_those_of_the_formula(self):
        # GPipe: (m + p - 1) (F + B).
        timeline = pipeline.simulate(
            pipeline.generate("gpipe", ranks=3, microbatches=5), {"forward": 2, "backward_input": 3, "backward_weight": 1}
        )
        self.assertEqual(timeline.makespan, (5 + 2) * 6)
        self.assertEqual(timeline.busy, [30.0] * 3)
        self.assertAlmostEqual(timeline.bubble_rate, 1 - 30 / 42)
        self.assertEqual(len(timeline.computations[0]), 10)

    def test_the_search_is_no_worse_than_the_generators(self):
        costs = {"forward": 1.0, "backward_input": 1.3, "backward_weight": 0.7}
        best = pipeline.synthesize(4, 8, costs)
        for name in ("gpipe", "1f1b", "zb_h1", "zb_h2"):
            other = pipeline.simulate(pipeline.generate(name, 4, 8), costs)
            self.assertLessEqual(best.timeline.bubble_rate, other.bubble_rate + 1e-9)
        self.assertGreaterEqual(best.gap, 0)
        pipeline.validate(best.schedule)

    def test_pictures(self):
        timeline = pipeline.simulate(pipeline.generate("1f1b", 2, 4))
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "a.svg")
            svg = pipeline.draw({"a": timeline, "b": timeline}, path)
            self.assertTrue(svg.startswith("<?xml") or svg.startswith("<svg"))
            with open(path) as file:
                self.assertEqual(file.read(), svg)
            self.assertEqual(os.listdir(directory), ["a.svg"])
        with self.assertRaises(OSError):
            pipeline.draw(timeline, "/nowhere/a.svg")

    def test_bad_input(self):
        for call, text in (
            (lambda: pipeline.generate("zb_h9", 4, 8), "zb_h9"),
            (lambda: pipeline.generate("zb_h1", 0, 8), "0"),
            (lambda: pipeline.synthesize(2, 4, placement="spiral"), "spiral"),
            (lambda: pipeline.from_csv("0F0,\n1X0"), "1X0"),
            (lambda: pipeline.validate(pipeline.from_csv("0F0,0B0\n1B0,1F0")), "1B0"),
            (lambda: pipeline.simulate(pipeline.generate("gpipe", 2, 2), {"forward": -1}), "a time of -1 in stage 0"),
            (lambda: pipeline.simulate(pipeline.generate("gpipe", 2, 2), [{}, {}, {}]), "3"),
        ):
            with self.assertRaisesRegex(InvalidArgument, text):
                call()
        with self.assertRaisesRegex(TypeError, "fwd"):
            pipeline.stage_costs(fwd=1)
        with self.assertRaises(IndexError):
            pipeline.generate("gpipe", 2, 2).stages_of(2)

    def test_others_run_while_it_computes(self):
        """The interpreter's lock is released."""
        counted = 0
        stop = threading.Event()

        def count():
            nonlocal counted
            while not stop.is_set():
                counted += 1
                time.sleep(0.001)

        thread = threading.Thread(target=count)
        thread.start()
        begin = time.monotonic()
        _core.synthesize(6, 24, 1, [pipeline.stage_costs(forward=1.1)], 0, float("inf"), True, 0, 1, 1, False, "")
        took = time.monotonic() - begin
        stop.set()
        thread.join()
        self.assertGreater(counted, took * 50)

    def test_an_interrupt_ends_a_search(self):
        program = (
            "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "from tessera import pipeline\nprint('begins', flush=True)\n"
            "costs = [{'forward': 1 + 0.13 * (i * 7 % 5), 'communication': 0.2} for i in range(8)]\n"
            "pipeline.synthesize(8, 24, costs, memory_limit=6, effort=1000)\n"
        )
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.readline()
        time.sleep(0.3)
        begin = time.monotonic()
        process.send_signal(2)
        _, errors = process.communicate(timeout=30)
        self.assertIn("KeyboardInterrupt", errors)
        self.assertLess(time.monotonic() - begin, 5)


class CommandTest(unittest.TestCase):
    def run_command(self, *args):
        return subprocess.run([sys.executable, "-m", "tessera", *args], capture_output=True, text=True)

    def test_commands(self):
        self.assertIn("schedule", self.run_command("--help").stdout)
        self.assertEqual(self.run_command("mesh", "dp2,tp2", "tp").stdout, "tp_group_dp0: 0 2\ntp_group_dp1: 1 3\n")
        self.assertIn("rank 1", self.run_command("schedule", "1f1b", "--ranks=2").stdout)
        self.assertTrue(self.run_command("schedule", "auto", "--ranks=2", "--csv").stdout.startswith("0F0,"))
        wrong = self.run_command("schedule", "2f2b")
        self.assertEqual((wrong.returncode, len(wrong.stderr.splitlines())), (2, 1), wrong.stderr)
        self.assertIn("1f1b", wrong.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
