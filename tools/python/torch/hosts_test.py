"""Runs the other tests of the installed tessera_torch on two simulated hosts, network namespaces connected by a virtual cable.

    python hosts_test.py
    RATE=1gbit python hosts_test.py run 2,2 benchmark.py --sizes=8,65536  # Runs a program on them; RATE limits the cable.

Ends with 77 if this user may not create network namespaces.
"""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TWO_HOSTS = os.path.join(HERE, "../../launch/two_hosts.sh")
DEADLINE = 240
# torch's gloo finds no address by itself.
USE_GLOO = ("smoke_test.py", "benchmark.py", "clients.py")
PORTS = itertools.count(29500)


def start(ranks, program, *arguments, env=()):
    """Starts the program on `ranks[0]` ranks of the first host and so on, with torchrun's variables."""
    processes, port = [], next(PORTS)
    for host, local_size in enumerate(ranks):
        for local_rank in range(local_size):
            variables = dict(
                os.environ,
                MASTER_ADDR="10.77.0.1",
                MASTER_PORT=str(port),
                RANK=str(sum(ranks[:host]) + local_rank),
                WORLD_SIZE=str(sum(ranks)),
                LOCAL_RANK=str(local_rank),
                LOCAL_WORLD_SIZE=str(local_size),
                GROUP_RANK=str(host),
            )
            variables.update(env)
            if program in USE_GLOO:
                variables["GLOO_SOCKET_IFNAME"] = f"cable{host}"
            processes.append(on_host(host, [sys.executable, os.path.join(HERE, program), *arguments], variables))
    return processes


def on_host(host, command, env):
    command = ["ip", "netns", "exec", f"host{host}", *command]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def await_line(process, text):
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"a rank ended without printing {text}")


class HostsTest(unittest.TestCase):
    def outputs_of(self, processes, codes=None):
        """The outputs of processes that must end with these exit codes, by default 0."""
        for process in processes:
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.kill)
        outputs = [process.communicate(timeout=DEADLINE)[0] for process in processes]
        for i, (process, code) in enumerate(zip(processes, codes or [0] * len(processes))):
            self.assertEqual(process.returncode, code, f"process {i}: {outputs[i]}")
        return outputs

    def test_smoke_test_passes_under_torchrun(self):
        for ranks in ((2, 2), (2, 1)):
            agents, port = [], next(PORTS)
            for host, local_size in enumerate(ranks):
                command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node_rank={host}"]
                command += [f"--nproc_per_node={local_size}", "--master_addr=10.77.0.1", f"--master_port={port}"]
                env = dict(os.environ, GLOO_SOCKET_IFNAME=f"cable{host}")
                agents.append(on_host(host, [*command, os.path.join(HERE, "smoke_test.py")], env))
            self.outputs_of(agents)

    def test_programs_pass(self):
        for ranks in ((2, 2), (1, 1), (1, 3)):
            for output in self.outputs_of(start(ranks, "programs_test.py", "rank", "--steps=25")):
                self.assertIn("passed", output)

    def test_programs_pass_with_encryption(self):
        env = dict(TESSERA_ENCRYPT_DATA="1", TESSERA_JOB_SECRET="0123456789abcdef" * 4)
        for ranks in ((2, 2), (1, 1)):
            for output in self.outputs_of(start(ranks, "programs_test.py", "rank", "--steps=25", env=env)):
                self.assertIn("passed", output)
                self.assertNotIn("is not encrypted", output)

    def test_messages_of_all_kinds_arrive(self):
        encrypted = dict(TESSERA_ENCRYPT_DATA="1", TESSERA_JOB_SECRET="0123456789abcdef" * 4)
        for env in ({}, encrypted):
            for ranks in ((2, 2), (1, 2)):
                for output in self.outputs_of(start(ranks, "messages_test.py", env=env)):
                    self.assertIn("messages passed", output)

    def test_encryption_needs_a_secret_and_its_absence_is_noted(self):
        env = dict(TESSERA_ENCRYPT_DATA="1", TESSERA_JOB_SECRET="short")
        for output in self.outputs_of(start((1, 1), "programs_test.py", "rank", "--steps=1", env=env), [1, 1]):
            self.assertRegex(output, "TESSERA_ENCRYPT_DATA: the secret in TESSERA_JOB_SECRET has 5 bytes")
        output = self.outputs_of(start((1, 1), "programs_test.py", "rank", "--steps=1"))[0]
        note = "data between hosts is not encrypted, on the network of address 10.77.0.1; TESSERA_ENCRYPT_DATA=1 encrypts it"
        self.assertEqual(output.count(note), 1, output)

    def test_sharded_modules_train(self):
        self.outputs_of(start((2, 1), "zero_test.py"))

    def check_noticed(self, output, seconds, pattern):
        noticed = re.search(r"noticed (\S+) (.*)", output, re.S)
        self.assertIsNotNone(noticed, output)
        self.assertRegex(noticed.group(2), pattern)
        self.assertLess(float(noticed.group(1)), seconds, output)
        print(f"noticed after {float(noticed.group(1)):.2f} s: {noticed.group(2).splitlines()[0]}", file=sys.stderr)

    def test_killed_rank_is_named_on_all_hosts(self):
        outputs = self.outputs_of(start((2, 2), "fault_test.py", "rank", "killed"), [0, 0, -signal.SIGKILL, 0])
        died = float(re.search(r"died (\S+)", outputs[2]).group(1))
        for rank in (0, 1, 3):
            output = re.sub(r"noticed (\S+)", lambda match: f"noticed {float(match.group(1)) - died}", outputs[rank])
            self.check_noticed(output, 10, r"rank 2 \(host")

    def test_sender_that_dies_is_named(self):
        outputs = self.outputs_of(start((2, 2), "fault_test.py", "rank", "message"), [0, 0, 0, -signal.SIGKILL])
        self.check_noticed(outputs[0], 10, r"rank 0: group 0: send .*rank 3 \(host .*, pid \d+\)")

    def test_late_rank_is_named_within_the_timeout(self):
        processes = start((2, 2), "fault_test.py", "rank", "late", env={"TIMEOUT": "5"})
        await_line(processes[3], "stops")
        for output in self.outputs_of(processes[:3]):
            self.check_noticed(output, 15, r"rank 3 \(host")
        processes[3].kill()
        self.outputs_of(processes[3:], [-signal.SIGKILL])

    def test_cut_cable_ends_all_ranks_within_the_timeout(self):
        processes = start((2, 2), "fault_test.py", "rank", "runs_until_error", env={"TIMEOUT": "5"})
        for process in processes:
            await_line(process, "runs")
        subprocess.run(["ip", "-n", "host1", "link", "set", "cable1", "down"], check=True)
        self.addCleanup(subprocess.run, ["ip", "-n", "host1", "link", "set", "cable1", "up"], check=True)
        for rank, output in enumerate(self.outputs_of(processes)):
            self.check_noticed(output, 15, r"rank [23]\b" if rank < 2 else r"rank [01]\b")


def make_hosts():
    """Starts this program again where the hosts exist."""
    if "TWO_HOSTS" not in os.environ:
        inside = ["unshare", "-Urnm", "--kill-child", "bash", TWO_HOSTS]
        env = dict(os.environ, RATE="")
        if not shutil.which(inside[0]) or subprocess.run([*inside, "true"], env=env, capture_output=True).returncode != 0:
            sys.exit(77)
        os.environ["TWO_HOSTS"] = "1"
        os.execvp(inside[0], [*inside, sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]])
    os.environ["PATH"] += ":/usr/sbin:/sbin"


def main():
    make_hosts()
    if sys.argv[1:2] != ["run"]:
        return unittest.main(verbosity=2)
    ranks = [int(part) for part in sys.argv[2].split(",")]
    processes = start(ranks, *sys.argv[3:])
    for process in processes:
        print(process.communicate()[0], end="")
    sys.exit(max(abs(process.returncode) for process in processes))


if __name__ == "__main__":
    main()
