"""Tests the installed package tessera without torch, and the examples of its README."""

import glob
import importlib.util
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zipfile

import tessera
from tessera import _core, estimate, launch, pipeline, plan
from tessera.errors import DeadlineExceeded, InvalidArgument, StatusError
from tessera.topology import Cluster, Mesh, layers_per_stage, parallel_config, place
from tessera_tools import PROGRAM

HAS_TORCH = importlib.util.find_spec("torch") is not None


class WheelTest(unittest.TestCase):
    def test_depends_only_on_c_library(self):
        text = subprocess.run(["readelf", "-d", _core.__file__], check=True, capture_output=True, text=True).stdout
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", text))
        self.assertLessEqual(needed, {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"})
        self.assertNotIn("RUNPATH", text)
        exported = subprocess.run(
            ["nm", "-D", "--defined-only", "--extern-only", _core.__file__], check=True, capture_output=True, text=True
        ).stdout
        self.assertEqual([line.split()[-1] for line in exported.splitlines()], ["PyInit__core"])

    def test_it_is_small_and_typed(self):
        self.assertLess(os.path.getsize(os.environ["WHEEL"]), 30 << 20)
        self.assertLess(os.path.getsize(os.environ["TOOLS_WHEEL"]), 40e6)
        names = zipfile.ZipFile(os.environ["WHEEL"]).namelist()
        for name in ("tessera/py.typed", "tessera/_core.pyi"):
            self.assertIn(name, names)
        self.assertRegex(os.path.basename(os.environ["WHEEL"]), r"manylinux_2_\d+_")
        self.assertIn(f"tessera-{tessera.__version__}-", os.environ["WHEEL"])

    def test_it_does_not_import_torch_or_numpy(self):
        program = "import sys, tessera; print([m for m in ('torch', 'numpy') if m in sys.modules])"
        self.assertEqual(subprocess.check_output([sys.executable, "-c", program], text=True).strip(), "[]")

    def test_stubs_match_module(self):
        path = os.path.join(os.path.dirname(tessera.__file__), "_core.pyi")
        with open(path) as file:
            stubs = set(re.findall(r"^(?:class|def) (\w+)", file.read(), re.M))
        self.assertEqual(stubs, {name for name in dir(_core) if not name.startswith("_")})

    def test_the_examples_of_the_readme(self):
        with open(os.environ["README"]) as file:
            blocks = re.findall(r"^```(\w+)\n(.*?)^```$", file.read(), re.M | re.S)
        examples = [(code, text) for (kind, code), (_, text) in itertools.pairwise(blocks) if kind == "python"]
        self.assertGreaterEqual(len(examples), 5)
        for code, text in examples:
            if "torch" in code and not HAS_TORCH:
                continue
            with tempfile.TemporaryDirectory() as directory:
                output = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=directory)
            self.assertEqual(output, text)


class ParallelConfigTest(unittest.TestCase):
    def test_returns_all_fields(self):
        config = parallel_config(ranks=8, mesh="dp2,pp4", layers=10, memory_strategy="standard")
        self.assertEqual((config["mesh"], config["layers"], config["chunks"]), ("dp2,pp4", 10, 1))
        self.assertEqual(parallel_config(**config), config)

    def test_lists_all_problems(self):
        with self.assertRaises(InvalidArgument) as caught:
            parallel_config(ranks=6, mesh="dp2,pp4", layers=3, micro_batch=0)
        for words in ("3 problems", "has 8 ranks, and the job 6", "micro_batch=0: must be at least 1", "4 stages"):
            self.assertIn(words, str(caught.exception))
        with self.assertRaisesRegex(InvalidArgument, "layer=3: is not a field; the nearest is layers"):
            parallel_config(layer=3)

    def test_divides_layers(self):
        self.assertEqual(layers_per_stage(mesh="pp4", layers=10), [3, 3, 2, 2])
        self.assertEqual(layers_per_stage([1, 1, 1, 5, 1], mesh="pp2", layers=5, layers_per_stage="cost"), [3, 2])
        self.assertEqual(layers_per_stage(mesh="pp2", layers=5, layers_per_stage="1,4"), [1, 4])


class MeshTest(unittest.TestCase):
    def test_groups_match_brute_force(self):
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


class ClusterTest(unittest.TestCase):
    def test_clusters(self):
        cluster = Cluster("hosts=2,gpus=4,memory=80GB,name=node")
        self.assertEqual((cluster.hosts, cluster.devices), (2, 8))
        self.assertEqual([cluster.link(0, n).level for n in (0, 3, 4)], ["device", "nvlink", "network"])
        self.assertEqual(cluster.device(5)[:4], (1, "node1", 1, "gpu"))
        self.assertEqual(Cluster.from_json(cluster.to_json()), cluster)
        with tempfile.TemporaryDirectory() as directory:
            cluster.save(directory + "/c.json")
            self.assertEqual(Cluster.load(directory + "/c.json"), cluster)
        self.assertIsNone(Cluster("hosts=1,cpus=2").device(1).nvlink_domain)

    def test_placement_has_least_cost(self):
        rng = random.Random(3)
        kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
        for _ in range(10):
            cluster = Cluster(f"hosts={rng.choice((2, 4))},gpus=4")
            axes = {"dp": 2, "tp": 2, "pp": 2}
            traffic = {name: [(rng.choice(kinds), rng.uniform(1e6, 1e9), rng.randrange(1, 9))] for name in axes}
            best = place(axes, cluster, traffic=traffic)
            costs = [
                place(dict(order), cluster, traffic=traffic, keep_order=True).seconds_per_step
                for order in itertools.permutations(axes.items())
            ]
            self.assertAlmostEqual(best.seconds_per_step, min(costs))
            self.assertAlmostEqual(sum(axis.seconds_per_step for axis in best.axes.values()), best.seconds_per_step)
            self.assertEqual(best.mesh.world_size, 8)

    def test_bad_input(self):
        for call, text in (
            (lambda: Cluster("hosts=2"), "gpus"),
            (lambda: Cluster("gpus=0"), "0"),
            (lambda: Cluster("gpus=1").link(0, 1), "1"),
            (lambda: place("dp4", "gpus=2", traffic={}), "4"),
            (lambda: place("dp2", "gpus=2"), "give either"),
            (lambda: place("dp2", "gpus=2", traffic={"tp": []}), "tp"),
            (lambda: place("dp2", "gpus=2", traffic={"dp": [("gossip", 1, 1)]}), "gossip"),
            (lambda: place("dp2", "gpus=2", layers=-1), "layers"),
        ):
            with self.assertRaisesRegex(StatusError, text):
                call()
        with self.assertRaisesRegex(TypeError, "heads"):
            place("dp2", "gpus=2", heads=3)


class PlanTest(unittest.TestCase):
    def test_plans_fit_and_match_estimates(self):
        plans = plan.find("llama-7b", "hosts=1,gpus=8", memory="80GB", batch=64, top=3)
        self.assertEqual(len(plans), 3)
        self.assertEqual(sorted(p.step_seconds for p in plans), [p.step_seconds for p in plans])
        for found in plans:
            self.assertLessEqual(found.memory_bytes, 80e9)
            self.assertEqual(found.dp * found.pp * found.cp * found.tp, 8)
            run = estimate.run(**found.settings, memory="800GB")
            self.assertEqual(run.parameters, plans.report["parameters"])
            self.assertTrue(run.fits)
            # The planner extrapolates from fewer micro-batches.
            self.assertAlmostEqual(run.ranks[0]["memory"]["device"] / found.memory_bytes, 1, delta=0.02)
        self.assertIn(plans[0].mesh, str(plans))

    def test_estimates(self):
        one = estimate.run("llama-1m", zero=3, offload="none", batch=4, memory="1TB")
        two = estimate.run("llama-1m", "dp2", zero=3, offload="none", batch=4, memory="1TB")
        self.assertEqual((one.world_size, two.world_size), (1, 2))
        self.assertLess(two.ranks[0]["memory"]["optimizer"], 0.6 * one.ranks[0]["memory"]["optimizer"])
        self.assertGreater(sum(axis["bytes"] for axis in two.ranks[0]["traffic"]), 0)
        small = estimate.run("llama-1m", "dp2", batch=4, memory="1MB")
        self.assertFalse(small.fits)
        self.assertFalse(any("--" in advice.setting for advice in small.advice))
        self.assertTrue(estimate.run("llama-1m", batch=4).fits)
        self.assertEqual(estimate.settings()["zero"][0], 3)

    def test_bad_input(self):
        for call, text in (
            (lambda: plan.find("llama-9b", "gpus=8,memory=80GB"), "^model=llama-9b: .*llama-7b"),
            (lambda: plan.find("llama-7b", "gpus=8"), "^memory=0: "),
            (lambda: plan.find("llama-7b", "gpus=8", memory="80 apples"), "apples"),
            (lambda: plan.find("llama-7b", "gpus=8,memory=80GB", dtype="int4"), "int4"),
            (lambda: plan.find("llama-70b", "gpus=1,memory=1GB"), "1 GiB|memory|fit"),
            (lambda: estimate.run("llama-1m", "dp3"), "^batch=16: must be a multiple of 3"),
            (lambda: estimate.run("llama-1m", zeroo=3), "zeroo"),
            (lambda: estimate.run("llama-1m", zero="three"), "zero"),
            (lambda: estimate.run("llama-1m", zero={}), "zero"),
            (lambda: estimate.run("llama-1m", data=object()), "settings are"),
        ):
            with self.assertRaisesRegex(StatusError, text):
                call()


class LaunchTest(unittest.TestCase):
    def run_ranks(self, program, **options):
        """Runs a Python program that launches; returns its process."""
        code = f"from tessera import launch\nlaunch.run({program!r}, **{options!r})"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    def test_ranks_have_their_environment(self):
        done = self.run_ranks(["sh", "-c", "echo $RANK of $WORLD_SIZE at $MASTER_ADDR"], np=3)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), [f"[{n}] {n} of 3 at 127.0.0.1" for n in range(3)])

    def test_logs(self):
        with tempfile.TemporaryDirectory() as directory:
            launch.run(["sh", "-c", "echo $COLOUR"], np=2, output=directory + "/logs", env={"PATH": os.environ["PATH"], "COLOUR": "red"})
            with open(directory + "/logs/rank1.log") as file:
                self.assertEqual(file.read(), "red\n")

    def test_failures_name_the_rank(self):
        with self.assertRaisesRegex(StatusError, "rank 1 .*exited with code 7") as caught:
            launch.run(["sh", "-c", "[ $RANK = 0 ] && sleep 60; exit 7"], np=2)
        self.assertEqual(caught.exception.code, "ABORTED")
        begin = time.monotonic()
        with self.assertRaisesRegex(DeadlineExceeded, "ranks 0, 1 of 2 still ran after timeout=300ms"):
            launch.run(["sleep", "60"], np=2, timeout=0.3)
        self.assertLess(time.monotonic() - begin, 30)
        for options, text in (({"np": 0}, "np=0"), ({"bind": "x"}, "bind=x"), ({"output": "x"}, "output=x"), ({"grace": -1}, "grace")):
            with self.assertRaisesRegex(InvalidArgument, text):
                launch.run(["true"], **options)
        with self.assertRaisesRegex(InvalidArgument, "nosuch"):
            launch.run(["nosuch"])
        with self.assertRaisesRegex(InvalidArgument, "a list"):
            launch.run("true")

    def test_no_rank_outlives_the_caller(self):
        """An interrupt ends the ranks, and so does the death of the process that launched them."""
        for ending in (signal.SIGINT, signal.SIGKILL):
            with tempfile.TemporaryDirectory() as directory:
                ranks = ["sh", "-c", f"echo $$ >{directory}/$RANK; exec sleep 600"]
                code = f"from tessera import launch\nlaunch.run({ranks!r}, np=2)"
                process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
                pids = []
                deadline = time.monotonic() + 30
                while len(pids) < 2 and time.monotonic() < deadline:
                    time.sleep(0.05)
                    pids = [int(text) for text in map(read, glob.glob(directory + "/*")) if text.strip()]
                process.send_signal(ending)
                errors = process.stderr.read()
                process.stderr.close()
                process.wait(30)
                self.assertEqual("KeyboardInterrupt" in errors, ending == signal.SIGINT)
                self.assertEqual(len(pids), 2)
                while any(map(is_running, pids)) and time.monotonic() < deadline:
                    time.sleep(0.05)
                self.assertFalse(any(map(is_running, pids)))


def read(path):
    with open(path) as file:
        return file.read()


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class PipelineTest(unittest.TestCase):
    def test_every_generator_is_valid_and_round_trips(self):
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

    def test_times_match_formula(self):
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

    def test_releases_gil_while_computing(self):
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
        _core.synthesize(6, 24, 1, [pipeline.stage_costs(forward=1.1)], 0, float("inf"), True, 0, 1, 1, False, "", _core.Stop())
        took = time.monotonic() - begin
        stop.set()
        thread.join()
        self.assertGreater(counted, took * 50)

    def test_an_interrupt_ends_a_search(self):
        program = (
            "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "from tessera import pipeline\nprint('begins', flush=True)\n"
            "costs = [{'forward': 1 + 0.13 * (i * 7 % 5), 'communication': 0.2} for i in range(8)]\n"
            "try:\n  pipeline.synthesize(8, 24, costs, memory_limit=6, effort=1000)\n"
            "finally:\n  import threading\n"
            "  for thread in threading.enumerate()[1:]: thread.join(1)\n"
            "  print(threading.active_count(), 'threads', flush=True)\n"
        )
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.readline()
        time.sleep(0.3)
        begin = time.monotonic()
        process.send_signal(2)
        output, errors = process.communicate(timeout=30)
        self.assertIn("KeyboardInterrupt", errors)
        self.assertEqual(output, "1 threads\n")
        self.assertLess(time.monotonic() - begin, 5)


class CommandTest(unittest.TestCase):
    def run_command(self, *args):
        return subprocess.run([sys.executable, "-m", "tessera", *args], capture_output=True, text=True)

    def test_runs_tools(self):
        self.assertIn(" train; ", self.run_command("--help").stdout)
        self.assertIn('"world_size":4', self.run_command("mesh", "--mesh=dp2,tp2", "--format=json").stdout)
        self.assertEqual(self.run_command("launch", "--np=2", "--", "sh", "-c", "exit $RANK").returncode, 1)
        wrong = self.run_command("schedule", "--schedule=2f2b")
        self.assertEqual((wrong.returncode, len(wrong.stderr.splitlines())), (2, 1), wrong.stderr)
        self.assertIn("1f1b", wrong.stderr)

    def test_bundled_libraries_are_found(self):
        listed = subprocess.check_output(["ldd", PROGRAM], text=True)
        self.assertNotIn("not found", listed)
        bundled = os.path.join(os.path.dirname(os.path.dirname(tessera.__file__)), "tessera_tools.libs")
        for name in os.listdir(bundled):
            self.assertIn(f"{name} => ", listed)
            self.assertTrue(os.path.samefile(re.search(rf"{re.escape(name)} => (\S+)", listed)[1], os.path.join(bundled, name)))


class TrainTest(unittest.TestCase):
    settings = {"model": "llama-1m", "mesh": "dp2", "batch": 4, "sample_tokens": 0}

    def test_iterates_over_metrics(self):
        with tempfile.TemporaryDirectory() as directory:
            run = tessera.train(**self.settings, steps=4, run_dir=directory)
            losses = [metrics["loss"] for metrics in run]
            self.assertEqual(len(losses), 4)
            self.assertEqual((run.result["first_loss"], run.result["last_loss"]), (losses[0], losses[-1]))
            self.assertTrue(os.path.isdir(run.result["checkpoint"]))
            # The first two steps come from the file of the resumed run.
            resumed = tessera.train(**self.settings, steps=6, run_dir=directory, resume="latest")
            self.assertEqual([metrics["step"] for metrics in resumed], list(range(6)))

    def test_errors(self):
        for settings, error, text in (
            ({"stepz": 4}, InvalidArgument, "stepz; did you mean steps"),
            ({"mesh": "xp2"}, InvalidArgument, '^mesh=xp2: unknown axis "xp"'),
            ({"resume": "/nowhere"}, StatusError, "/nowhere"),
        ):
            with self.assertRaisesRegex(error, text):
                for _ in tessera.train(**{**self.settings, **settings}):
                    self.fail("a step")
        with self.assertRaisesRegex(InvalidArgument, "data=.*lists of strings"):
            tessera.train(data=[1])

    def test_exception_ends_run_with_checkpoint(self):
        with self.assertRaises(KeyboardInterrupt):
            with tessera.train(**self.settings, steps=100000) as run:
                for _ in run:
                    raise KeyboardInterrupt
        self.assertRegex(os.listdir(run.directory + "/checkpoints")[0], "step-")
        with self.assertRaisesRegex(StatusError, "ended by SIGTERM after the checkpoint .*; continue with: .* --resume=latest"):
            run.wait()

    def test_run_ends_with_its_process(self):
        """The death of the process that started the run ends its ranks."""
        code = f"import tessera\nrun = tessera.train(**{self.settings!r}, steps=100000)\nfor _ in run: print(run._process.pid, flush=True)"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        pid = int(process.stdout.readline())
        process.kill()
        process.wait()
        process.stdout.close()
        deadline = time.monotonic() + 30
        while is_running(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(is_running(pid))


if __name__ == "__main__":
    unittest.main(verbosity=2)
