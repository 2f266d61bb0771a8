"""Trains a model: `tessera train` with settings as keyword arguments and metrics as an iterator.

    run = tessera.train(model="llama-1m", mesh="dp2,tp2", steps=100)
    for metrics in run:
        print(metrics["step"], metrics["loss"])
    print(run.result["checkpoint"])

The ranks are processes of the trainer; this process only reads their metrics.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from tessera_tools import PROGRAM

from tessera.errors import InvalidArgument, StatusError, flags_as_arguments, from_code

__all__ = ["Run", "train"]

_PR_SET_PDEATHSIG = 1


def train(**settings: Any) -> Run:
    """Starts a training run and returns it without waiting.

    Args:
      settings: the flags of `tessera train --help=all`, with numbers, strings, booleans and lists of strings as values.
        Without `run_dir`, the run has a new temporary directory. With quiet=False the table of steps appears on stderr.

    Raises:
      InvalidArgument: a value has an invalid type. Invalid settings and failures are raised by the Run.
    """
    return Run(settings)


class Run:
    """A training run. Iterating returns the metrics of each step as a dictionary (docs/metrics.md), as soon as it ends.

    An exception inside `with run:`, also KeyboardInterrupt, ends the run, and so does the death of this process; the run
    then writes a checkpoint after its current step. A run is used by one thread at a time.

    Raises, from iteration, wait() and result:
      InvalidArgument: a setting is unknown or invalid; nothing was trained.
      StatusError: the run failed or was ended; the message is the trainer's.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        chosen = {"quiet": True, **settings, "format": "json"}
        chosen.setdefault("run_dir", "")
        self.directory: str = os.fspath(chosen["run_dir"]) or tempfile.mkdtemp(prefix="train-")
        chosen["run_dir"] = self.directory
        self._arguments = ["tessera", "train", *(f"--{name}={_flag_value(name, value)}" for name, value in chosen.items())]
        self._quiet = chosen["quiet"]
        self._last_lines: deque[str] = deque(maxlen=20)
        self._output = ""
        self._started = threading.Event()
        self._ended = threading.Event()
        self._start_error: OSError | None = None
        self._process: subprocess.Popen[str] | None = None
        # The trainer gets a signal when the thread that started it ends, so that thread waits for it.
        threading.Thread(target=self._execute, daemon=True).start()
        self._started.wait()
        if self._start_error:
            raise self._start_error

    def _execute(self) -> None:
        prctl = ctypes.CDLL(None).prctl
        with tempfile.TemporaryFile("w+") as output:
            try:
                self._process = subprocess.Popen(
                    self._arguments,
                    executable=PROGRAM,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                    preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
                )
            except OSError as error:
                self._start_error = error
                return
            finally:
                self._started.set()
            with self._process as process:
                assert process.stderr
                for line in process.stderr:
                    self._last_lines.append(line.rstrip("\n"))
                    if not self._quiet:
                        sys.stderr.write(line)
            output.seek(0)
            self._output = output.read()
        self._ended.set()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        path = os.path.join(self.directory, "metrics.jsonl")
        next_step, offset, inode = 0, 0, None
        while True:
            has_ended = self._ended.wait(0.02)
            if os.path.exists(path):
                with open(path, "rb") as file:
                    # A rank that is replaced rewrites the file with the steps before its own.
                    if os.fstat(file.fileno()).st_ino != inode:
                        inode, offset = os.fstat(file.fileno()).st_ino, 0
                    file.seek(offset)
                    for line in file:
                        if not line.endswith(b"\n"):
                            break
                        offset += len(line)
                        metrics = json.loads(line)
                        if metrics["step"] >= next_step:
                            next_step = metrics["step"] + 1
                            yield metrics
            if has_ended:
                self.wait()
                return

    @property
    def result(self) -> dict[str, Any]:
        """The summary that `tessera train --format=json` prints, with first_loss, last_loss and checkpoint; waits for it."""
        return self.wait()

    def wait(self) -> dict[str, Any]:
        """Waits for the end of the run and returns its result."""
        self._ended.wait()
        assert self._process
        code = self._process.returncode
        if code == 0:
            return json.loads(self._output)
        message = next((line for line in reversed(self._last_lines) if line.startswith("train: ")), f"train: it ended with {code}")
        message = message.removeprefix("train: ").partition("; for example: ")[0]
        if code != 2:
            raise from_code("ABORTED", message)
        with flags_as_arguments():
            raise from_code("INVALID_ARGUMENT", message)

    def stop(self) -> None:
        """Ends the run after its current step, with a checkpoint. wait() then raises a StatusError."""
        if self._process and not self._ended.is_set():
            self._process.send_signal(signal.SIGTERM)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is not None:
            self.stop()
        try:
            self.wait()
        except StatusError:
            if kind is None:
                raise


def _flag_value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float, str, os.PathLike)):
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if isinstance(value, (list, tuple)) and all(isinstance(entry, str) for entry in value):
        return ",".join(value)
    raise InvalidArgument(f"{name}={value!r}: settings are numbers, strings, booleans and lists of strings")
