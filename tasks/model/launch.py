"""Starts the ranks of a training and ends with them: what they are told, and how they hear of an end."""

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tasks.kit.console import redact
from tasks.kit.errors import (
    EnvironmentProblem,
    InputError,
    ParamsError,
    StageError,
    TrainLLMError,
    machine_fault,
)
from tasks.kit.files import empty_folder, read_json, write_atomically, write_json
from tasks.kit.hardware import num_cores
from tasks.kit.ports import free_port
from tasks.kit.processes import TELEMETRY_OFF, start_child
from tasks.params.runtime import RuntimeParams
from tasks.params.train import TrainParams

_WORKER = "tasks.model.worker"
_KINDS: dict[str, type[TrainLLMError]] = {
    kind.__name__: kind for kind in (EnvironmentProblem, InputError, ParamsError, StageError)
}


@dataclass(frozen=True)
class Attempt:
    """Everything that the ranks of one attempt must know; travels as JSON."""

    train: TrainParams
    runtime: RuntimeParams
    folder: Path
    """Folder of the fingerprint: checkpoints, history, result."""
    split: Path
    tokenizer: Path
    base_model: Path | None
    device: str
    precision: str
    total_steps: int
    accumulation: int
    resume: Path | None
    """Checkpoint to go on from."""
    stage_process: int
    """The stage's pid: ranks end when it does."""
    stage_created: float

    def write(self, path: Path) -> None:
        """Write as JSON."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, value in values.items():
            if isinstance(value, Path):
                values[name] = str(value.absolute())
        values["train"] = self.train.model_dump(mode="json")
        values["runtime"] = self.runtime.model_dump(mode="json")
        write_json(path, values)

    @classmethod
    def read(cls, path: Path) -> "Attempt":
        """Read what `write` wrote."""
        values: dict[str, Any] = read_json(path)
        for name in ("folder", "split", "tokenizer", "base_model", "resume"):
            values[name] = Path(values[name]) if values[name] is not None else None
        values["train"] = TrainParams.model_validate(values["train"])
        values["runtime"] = RuntimeParams.model_validate(values["runtime"])
        return cls(**values)


@contextlib.contextmanager
def ranks(attempt: Attempt) -> Iterator["Ranks"]:
    """The running ranks of an attempt; when the block ends, however it does, none is left.

    On KeyboardInterrupt (Ctrl-C, or SIGTERM of the stage) they are asked to save a checkpoint first, and get as
    long as that takes; a second one ends them at once. The launcher holds the stage's lock as long as it lives, and
    it outlives its ranks: a stage that was killed cannot be started again before the last of them has gone.
    """
    failures = empty_folder(attempt.folder / "failures")
    config = attempt.folder / "attempt.json"
    attempt.write(config)
    log = attempt.folder / "ranks.log"
    log.unlink(missing_ok=True)
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as output:
        process = start_child(
            _command(attempt, config),
            death_signal=signal.SIGTERM,  # it ends its ranks before itself, and while it starts up it just ends
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(attempt),
            start_new_session=True,  # Ctrl-C on the terminal comes here first, not to all ranks at once
        )
    running = Ranks(process, failures, log)
    try:
        yield running
    except KeyboardInterrupt:
        if running.ask_to_stop():
            running.wait()
        raise
    finally:
        running.kill()
        _redact_file(log)


def _redact_file(path: Path) -> None:
    """Mask what libraries said of the environment; until now only the owner could read it."""
    text = path.read_text(encoding="utf-8", errors="replace")
    write_atomically(path, redact(text).encode())


class Ranks:
    """The launcher's process and what its ranks report."""

    def __init__(self, process: "subprocess.Popen[bytes]", failures: Path, log: Path) -> None:
        self._process, self._failures, self._log = process, failures, log

    def alive(self, max_seconds: float) -> bool:
        """Wait so long for the end; whether the ranks still run then."""
        try:
            self._process.wait(max_seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def wait(self) -> None:
        """Wait for the end."""
        self._process.wait()

    def ask_to_stop(self) -> bool:
        """Send SIGTERM to each rank, not to the launchers, which kill after 30 s: they save and end.

        Returns whether there is a rank: while the launcher starts up there is nothing to wait for.
        """
        asked = False
        for process in self._family():
            with contextlib.suppress(psutil.Error):
                if _is_rank(process.cmdline()):
                    process.terminate()
                    asked = True
        return asked

    def kill(self) -> None:
        """End what still runs: launcher and ranks."""
        if self._process.poll() is None:
            family = self._family()
            self._process.kill()
            for rank in family:
                with contextlib.suppress(psutil.Error):
                    rank.kill()
            psutil.wait_procs(family, timeout=10)
        self._process.wait()

    def check(self) -> None:
        """Raise what the ranks reported, once they have ended.

        Raises:
            TrainLLMError: of the class that the first failing rank named; StageError when one died without a word.
        """
        reports = sorted((read_json(path) for path in self._failures.glob("*.json")), key=lambda r: r["time"])
        told = [report for report in reports if report["kind"] in _KINDS]
        if told:
            raise _KINDS[told[0]["kind"]](told[0]["message"])
        if reports:
            first = reports[0]
            raise StageError(
                f"rank {first['rank']} failed: {first['message']}; all its lines are in {self._log}"
            )
        if self._process.returncode:
            tail = redact(self._log.read_text(encoding="utf-8", errors="replace")).splitlines()[-15:]
            raise EnvironmentProblem(  # of the machine: a second try goes on from the last checkpoint
                f"the ranks ended with code {self._process.returncode} without saying why (killed, or out of memory?); "
                f"the last lines of {self._log}:\n" + "\n".join(tail)
            )

    def _family(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def report_failure(folder: Path, rank: int, error: BaseException) -> None:
    """Leave word of a rank's failure for the stage."""
    path = folder / "failures" / f"{rank}.json"
    error = machine_fault(error) or error
    kind = type(error).__name__
    message = redact(str(error) if kind in _KINDS else f"{kind}: {error}")
    path.write_text(
        json.dumps({"rank": rank, "kind": kind, "message": message, "time": time.time()}), "utf-8"
    )


def _is_rank(command: list[str]) -> bool:
    """Whether a command line is a rank's (`-m tasks.model.worker`); launchers name the module as an argument."""
    return any(pair == ("-m", _WORKER) for pair in itertools.pairwise(command))


def _command(attempt: Attempt, config: Path) -> list[str]:
    processes = str(attempt.runtime.num_processes)
    worker = ["--module", _WORKER, "--config", str(config)]
    if attempt.runtime.launcher == "deepspeed":
        port = str(free_port())
        runner = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", processes]
        return [*runner, "--master_addr", "127.0.0.1", "--master_port", port, *worker]
    # A store of its own on a port that the kernel chooses: runs side by side do not meet.
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    runner = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", processes]
    return [*runner, *rendezvous, "--max-restarts", "0", *worker]


def _environment(attempt: Attempt) -> dict[str, str]:
    threads = max(1, num_cores() // attempt.runtime.num_processes)
    environment = {
        **os.environ,
        **TELEMETRY_OFF,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONUNBUFFERED": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS sums in one order only with this
    }
    if attempt.device == "cpu":
        environment |= {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    return environment


def stage_created() -> float:
    """When this process began: with its pid it names it, also after the pid is used again."""
    return psutil.Process().create_time()


def end_with_stage(attempt: Attempt) -> None:
    """End this rank at once when the stage's process is gone; a launcher between the two may outlive it."""

    def watch() -> None:
        try:
            stage = psutil.Process(attempt.stage_process)
            if abs(stage.create_time() - attempt.stage_created) < 1:
                stage.wait()
        except psutil.NoSuchProcess:
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
