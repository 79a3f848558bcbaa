"""What can be wrong with the machine, the packages, the services or the workspace, and how to repair it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from flows.children import environment
from flows.locks import check_host, find_dead_locks
from flows.server import reach
from tasks.kit.console import redact
from tasks.kit.errors import TrainLLMError
from tasks.kit.paths import Paths

_LEAST_PYTHON = (3, 11)
_LEAST_DISK = 5 << 30
_LEAST_MEMORY = 4 << 30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    verdict: Literal["ok", "warn", "fail"]
    found: str
    repair: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)

    def as_text(self) -> str:
        line = f"{self.verdict:<4}  {self.subject:<14} {self.found}"
        return redact(f"{line}\n{'':<6}{'':<15}-> {self.repair}" if self.repair else line)


def examine(root: Path) -> Iterator[Finding]:
    """Look at everything; a check that cannot be made is a finding itself."""
    for subject, check in _CHECKS.items():
        try:
            yield from check(root)
        except TrainLLMError as error:
            yield Finding(subject, "fail", str(error))
        except Exception as error:
            yield Finding(subject, "warn", f"could not be looked at ({type(error).__name__}: {error})")


def _python(root: Path) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _LEAST_PYTHON:
        yield Finding(
            "python", "fail", f"{version}, 3.11 or newer is needed", "make install PYTHON=python3.11"
        )
    else:
        yield Finding("python", "ok", f"{version} ({sys.executable})")
    found = shutil.which("python")
    if found and Path(found).parent.resolve() == Path(sys.executable).parent.resolve():
        yield Finding("python on PATH", "ok", found)
    else:
        yield Finding(
            "python on PATH",
            "warn",
            f"`python` is {found or 'absent'}, and plain `dvc repro` runs the stages with it",
            f"export PATH={Path(sys.executable).parent}:$PATH   (train-llm itself needs no such thing)",
        )


def _packages(root: Path) -> Iterator[Finding]:
    constraints = root / "constraints.txt"
    if not constraints.exists():
        yield Finding("packages", "warn", "no constraints.txt to compare with")
        return
    differing, missing, compared = [], [], 0
    for line in constraints.read_text(encoding="utf-8").splitlines():
        name, separator, wanted = line.split("#")[0].strip().partition("==")
        if not separator:
            continue
        try:
            found = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        compared += 1
        if found != wanted.split(";")[0].strip().partition("+")[0]:
            differing.append(f"{name} {found} (pinned {wanted})")
    if differing or not compared:
        shown = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
        yield Finding("packages", "warn", f"not as pinned: {shown}", "make install")
    else:
        absent = f"; {len(missing)} pinned ones are not installed" if missing else ""
        yield Finding("packages", "ok", f"{compared} as pinned in constraints.txt{absent}")


def _foreign_packages(root: Path) -> Iterator[Finding]:
    """`python -m tasks` takes the first `tasks` that Python finds: it must be ours."""
    command = [sys.executable, "-c", "import tasks, flows; print(tasks.__file__); print(flows.__file__)"]
    result = subprocess.run(
        command,
        cwd=root,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    ours = Path(__file__).resolve().parents[1]
    foreign = [line for line in result.stdout.split() if ours not in Path(line).resolve().parents]
    if result.returncode or foreign:
        what = ", ".join(foreign) or result.stderr.strip().splitlines()[-1]
        yield Finding(
            "our packages", "fail", f"not ours: {what}", "pip uninstall that package, then make install"
        )
    else:
        yield Finding("our packages", "ok", f"tasks and flows come from {ours}")


def _project(root: Path) -> Iterator[Finding]:
    from tasks.params.tree import load_params

    load_params(Paths(root).params)
    yield Finding("params.yaml", "ok", "every key is known and every value fits")
    status = subprocess.run(
        ["git", "-C", str(root), "status", "--porcelain"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if status.returncode:
        yield Finding("git", "warn", "no git repository: runs are not tied to a commit", "git init, commit")
    else:
        changed = len(status.stdout.splitlines())
        yield Finding(
            "git", "ok", f"{changed} uncommitted change{'s' * (changed != 1)}" if changed else "clean"
        )
    check_host(root)
    dead = find_dead_locks(root)
    yield Finding("dvc", "warn" if dead else "ok", "; ".join(dead) or "no dead locks")


def _machine(root: Path) -> Iterator[Finding]:
    import psutil

    free = shutil.disk_usage(root).free
    yield Finding(
        "disk",
        "ok" if free >= _LEAST_DISK else "warn",
        f"{free / 2**30:,.1f} GiB free",
        "" if free >= _LEAST_DISK else "free some: `dvc gc --workspace` drops results of other parameters",
    )
    available = psutil.virtual_memory().available
    yield Finding(
        "memory",
        "ok" if available >= _LEAST_MEMORY else "warn",
        f"{available / 2**30:,.1f} GiB available",
        ""
        if available >= _LEAST_MEMORY
        else "close programs, or lower runtime.num_workers and micro_batch_size",
    )
    yield Finding("processors", "ok", f"{len(os.sched_getaffinity(0))} cores for this process")
    yield Finding("gpu", "ok", _gpus() or "none found: training runs on the processor")


def _gpus() -> str:
    """Names of the NVIDIA devices, without importing torch (seconds)."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    result = subprocess.run(
        query, capture_output=True, text=True, check=False, timeout=20, stdin=subprocess.DEVNULL
    )
    return "; ".join(result.stdout.strip().splitlines()) if result.returncode == 0 else ""


def _services(root: Path) -> Iterator[Finding]:
    for subject, variable, path in (
        ("prefect", "PREFECT_API_URL", "/health"),
        ("mlflow", "MLFLOW_TRACKING_URI", "/health"),
    ):
        address = os.environ.get(variable, "")
        if not address:
            yield Finding(subject, "ok", f"{variable} is not set: a database of our own in .state")
        elif urlsplit(address).scheme in ("http", "https"):
            trouble = reach(address.rstrip("/") + path)
            repair = f"start it, correct {variable}, or unset it to use .state" if trouble else ""
            found = f"{address} does not answer: {trouble}" if trouble else f"{address} answers"
            yield Finding(subject, "fail" if trouble else "ok", found, repair)
        else:
            yield Finding(subject, "ok", address)


def _store(root: Path) -> Iterator[Finding]:
    """Open the object store as a run would, and list the source's first objects."""
    from tasks.kit.object_store import explain_errors, open_store
    from tasks.params.tree import load_params

    params = load_params(Paths(root).params)
    source = params.snapshot.source
    if not source.startswith("s3://"):
        here = (root / source).exists()
        yield Finding("corpus", "ok" if here else "fail", f"{source} {'is there' if here else 'is missing'}")
        return
    bucket, _, prefix = source.removeprefix("s3://").partition("/")
    with open_store(params.runtime, Paths(root)) as store, explain_errors(store, source):
        count = store.client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=10).get("KeyCount", 0)
    if count:
        yield Finding("object store", "ok", f"{source} at {store.endpoint} lists objects")
    else:
        yield Finding(
            "object store", "fail", f"{source} at {store.endpoint} is empty", "correct snapshot.source"
        )


_CHECKS: dict[str, Callable[[Path], Iterator[Finding]]] = {
    "python": _python,
    "packages": _packages,
    "our packages": _foreign_packages,
    "project": _project,
    "machine": _machine,
    "services": _services,
    "object store": _store,
}
