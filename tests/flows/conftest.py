"""A small project to run flows on: five quick stages, our params.yaml, a git repository and a DVC cache of its own."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flows.children import environment
from flows.server import Server, client_environment, prefect_server

ROOT = Path(__file__).resolve().parents[2]

DVC_YAML = """
stages:
  list:
    cmd: exec python work.py list
    always_changed: true
    deps: []
    params: [snapshot]
    outs: [data/list.txt]
    meta: {retries: 1, tags: [network]}
  words:
    cmd: exec python work.py words
    deps: [work.py, data/list.txt]
    params: [clean]
    outs: [data/words.txt]
    metrics: [data/metrics/words.json]
  left:
    cmd: exec python work.py left
    deps: [data/words.txt]
    params: [evaluate]
    outs: [data/left.txt]
  right:
    cmd: exec python work.py right
    deps: [data/words.txt]
    params: [quantize]
    outs: [data/right.txt]
  end:
    cmd: exec python work.py end
    deps: [data/left.txt, data/right.txt]
    params: [report]
    outs: [data/end.txt]
"""

WORK = '''
"""The work of a stage: what it was told, what it read; `behaviour` (no dependency) makes it fail or hang.
In a worktree, which has no such file, the environment says it."""
import json, os, pathlib, sys, time, yaml
from tasks.kit.processes import die_with_parent

die_with_parent()
stage = sys.argv[1]
data = pathlib.Path("data")
(data / "metrics").mkdir(parents=True, exist_ok=True)
params = yaml.safe_load(pathlib.Path("params.yaml").read_text())
behaviour = pathlib.Path(f"behaviour-{stage}")
words = (behaviour.read_text() if behaviour.exists() else os.environ.get(f"BEHAVIOUR_{stage}", "")).split()
with open("ran.log", "a") as log:
    log.write(stage + "\\n")
print(f"{stage}: at work", flush=True)
if "hang" in words:
    pathlib.Path("hanging.pid").write_text(str(os.getpid()))
    time.sleep(600)
if "killed" in words:
    os.kill(os.getpid(), 9)
if "away-once" in words:
    pathlib.Path(f"behaviour-{stage}").unlink()
    print(f"{stage}: error: the store is away", flush=True)
    sys.exit(3)
if "fail" in words:
    print(f"{stage}: error: asked to fail", flush=True)
    sys.exit(int(words[1]))
if "chat" in words:
    for number in range(3000):
        print("line", number, os.environ.get("CHAT_SECRET", ""))
inputs = {"list": [], "words": ["list"], "left": ["words"], "right": ["words"], "end": ["left", "right"]}[stage]
text = "".join((data / f"{name}.txt").read_text() for name in inputs)
section = {"list": "snapshot", "words": "clean", "left": "evaluate", "right": "quantize", "end": "report"}[stage]
(data / f"{stage}.txt").write_text(f"{stage} {json.dumps(params[section])}\\n{text}")
if stage == "words":
    (data / "metrics" / "words.json").write_text(json.dumps({"documents": len(text)}))
'''


@pytest.fixture(scope="session")
def toy_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as committed, nothing run."""
    folder = tmp_path_factory.mktemp("template") / "toy"
    folder.mkdir()
    (folder / "dvc.yaml").write_text(DVC_YAML)
    (folder / "work.py").write_text(WORK)
    (folder / ".gitignore").write_text("/.state/\n/runs/\n/data/\n/ran.log\n/behaviour-*\n/hanging.pid\n")
    params = (ROOT / "params.yaml").read_text().replace("object_store: embedded", "object_store: aws")
    (folder / "params.yaml").write_text(params)
    _call(folder, "git", "init", "-q", "-b", "main")
    _call(folder, sys.executable, "-m", "dvc", "init", "-q")
    (folder / ".dvcignore").write_text("/.state\n/runs\n")
    _call(folder, "git", "add", "-A")
    author = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    _call(folder, "git", *author, "commit", "-qm", "Toy")
    return folder


@pytest.fixture
def toy(toy_template: Path, tmp_path: Path) -> Path:
    """A fresh copy of the project."""
    return Path(shutil.copytree(toy_template, tmp_path / "toy", symlinks=True))


@pytest.fixture(scope="session")
def repro() -> Callable[..., None]:
    """Plain `dvc repro` in a folder."""

    def run(folder: Path, *arguments: str) -> None:
        _call(folder, sys.executable, "-m", "dvc", "repro", "-q", *arguments)

    return run


@pytest.fixture(scope="session")
def toy_done(
    toy_template: Path, tmp_path_factory: pytest.TempPathFactory, repro: Callable[..., None]
) -> Path:
    """The project with all stages run; never altered, see `done`."""
    folder = Path(shutil.copytree(toy_template, tmp_path_factory.mktemp("done") / "toy", symlinks=True))
    repro(folder)
    return folder


@pytest.fixture
def done(toy_done: Path, tmp_path: Path) -> Path:
    """A copy of the project with all stages run."""
    return Path(shutil.copytree(toy_done, tmp_path / "toy", symlinks=True))


@pytest.fixture
def ran() -> Callable[[Path], list[str]]:
    """Names of the stages whose command ran in a folder, in order."""

    def read(folder: Path) -> list[str]:
        log = folder / "ran.log"
        return log.read_text().split() if log.exists() else []

    return read


def _call(folder: Path, *command: str) -> None:
    result = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Prefect server with everything that deployments need, one for all tests."""
    with prefect_server(tmp_path_factory.mktemp("server"), services=True) as started:
        started.wait()
        yield started


@pytest.fixture(scope="session")
def variables(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of everything that talks to that server: nothing of this machine's profiles."""
    return {
        **client_environment(tmp_path_factory.mktemp("client")),
        "PREFECT_API_URL": server.url,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }


@pytest.fixture
def migrated(server: Server) -> Callable[[Path], None]:
    """Give a project a Prefect database that is made already: making one takes a quarter of a minute."""

    def copy(folder: Path) -> None:
        target = folder / ".state" / "prefect" / "prefect.db"
        target.parent.mkdir(parents=True)
        with (
            contextlib.closing(sqlite3.connect(server.log.with_name("prefect.db"))) as source,
            contextlib.closing(sqlite3.connect(target)) as new,
        ):
            source.backup(new)

    return copy


@pytest.fixture
def train_llm() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run the command line in a folder, as its users do."""

    def run(
        folder: Path, *arguments: str, variables: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "flows.cli", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=500,
        )

    return run


@pytest.fixture
def nothing_lives() -> Callable[[Path], None]:
    """Wait until no process works in a folder; fails, naming those that do, after 20 s."""

    def check(folder: Path) -> None:
        deadline = time.monotonic() + 20
        while living := _processes_of(folder):
            assert time.monotonic() < deadline, living
            time.sleep(0.1)

    return check


def _processes_of(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid}: {' '.join(process.cmdline())}")
        except (psutil.Error, OSError):
            continue
    return found
