"""Starts the ranks of a program on this host and ends them together, as torchrun does.

    tessera.launch.run([sys.executable, "train.py", "--steps=100"], np=4)

    $ python -m tessera launch --np=4 -- python train.py --steps=100

Each rank has RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and torchrun's other variables. When a rank
fails, at the timeout, and on signals, all ranks and their descendants get SIGTERM and, after the grace period, SIGKILL.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tessera import _core
from tessera.errors import InvalidArgument, StatusError, flags_as_arguments, from_code

__all__ = ["StatusError", "run"]


def run(
    command: Sequence[str | os.PathLike[str]],
    np: int = 1,
    *,
    nnodes: int = 1,
    node_rank: int = 0,
    master_addr: str = "",
    master_port: int = 0,
    timeout: float = math.inf,
    grace: float = 5,
    output: str | os.PathLike[str] = "prefix",
    bind: str = "none",
    env: Mapping[str, str] | None = None,
) -> None:
    """Runs `np` ranks of a program and returns when all of them have exited with 0.

    Args:
      command: the program and its arguments.
      np: ranks of this node.
      nnodes: number of nodes; call this once on each. If there are several, the environment must contain
        TESSERA_JOB_SECRET or TESSERA_JOB_SECRET_FILE.
      node_rank: number of this node.
      master_addr: address of node 0.
      master_port: port of node 0.
      timeout: seconds after which the ranks are ended.
      grace: seconds between SIGTERM and SIGKILL.
      output: "prefix": whole lines, each after its rank; "raw": whole lines, unchanged; otherwise a directory for
        rank0.log, rank1.log and so on.
      bind: "core" binds each rank to a core of its own; "none".
      env: the environment of the ranks; by default that of this process.

    Raises:
      StatusError: with code "ABORTED", a rank failed; the message says which and how.
      DeadlineExceeded: the timeout passed.
      InvalidArgument: a value is invalid, or there is no such program.

    The ranks are children of a helper process, because a launcher needs a process without other threads. The helper ends
    them if this process dies. Ctrl-C ends them, too.
    """
    if isinstance(command, (str, bytes)):
        raise InvalidArgument(f"command={command!r}; give a list: the program and its arguments")
    plan = {
        "command": [os.fspath(word) for word in command],
        "environment": [f"{name}={value}" for name, value in (os.environ if env is None else env).items()],
        "np": np,
        "nnodes": nnodes,
        "node_rank": node_rank,
        "master_addr": master_addr,
        "master_port": master_port,
        "timeout": timeout,
        "grace": grace,
        "output": os.fspath(output),
        "bind": bind,
        "colour": False,
    }
    ours, theirs = socket.socketpair()
    with ours, theirs:
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        serve = f"launch._serve({theirs.fileno()}, {os.getpid()})"
        program = f"import sys; sys.path.insert(0, {here!r}); from tessera import launch; {serve}"
        process = subprocess.Popen([sys.executable, "-c", program], pass_fds=[theirs.fileno()])
        theirs.close()
        try:
            ours.sendall(json.dumps(plan).encode())
            ours.shutdown(socket.SHUT_WR)
            answer = _read_all(ours)
            process.wait()
        except BaseException:
            # An interrupt from the terminal has reached the launcher as well; other interrupts have not.
            if process.poll() is None:
                process.terminate()
            process.wait()
            raise
    if not answer:
        raise from_code("ABORTED", f"the launcher ended with {process.returncode}")
    code, message = json.loads(answer)
    if code != "OK":
        with flags_as_arguments():
            raise from_code(code, message)


def _read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def _serve(fd: int, parent: int) -> None:
    """The launcher's process: reads a plan, executes it and writes its status. Ends with its parent."""
    os.set_inheritable(fd, False)
    set_parent_death_signal = 1  # prctl(2), PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if os.getppid() != parent:
        return
    with socket.socket(fileno=fd) as connection:
        plan = json.loads(_read_all(connection))
        _, code, message = _launch(plan)
        connection.sendall(json.dumps([code, message]).encode())


def _launch(plan: dict[str, Any]) -> tuple[int, str, str]:
    """Launches in this process; returns the exit code and the status. The process has one thread."""
    try:
        return _core.launch(**plan)
    except StatusError as error:
        return (2 if isinstance(error, ValueError) else 1), error.code, str(error)
