"""A Prefect server of our own on loopback, over the database in `.state/prefect`, for as long as a run needs it.

Not Prefect's ephemeral one: its limit of 20 s failed 3 of 3 times on a busy machine.
"""

import contextlib
import fcntl
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from flows.children import ProcessGroup
from tasks.kit.errors import EnvironmentProblem
from tasks.kit.paths import Paths

START_SECONDS = 240.0  # an empty database took 46 s once on a machine at load 8.5
HEARTBEAT_SECONDS = 30  # the default of 180 makes a zombie automation crash healthy runs

# Of use to deployments only. Not to be switched off: the task run recorder, without which no task run is seen.
_DEPLOYMENT_SERVICES = (
    "SCHEDULER",
    "LATE_RUNS",
    "PAUSE_EXPIRATIONS",
    "CANCELLATION_CLEANUP",
    "FOREMAN",
    "REPOSSESSOR",
    "TRIGGERS",
)


def client_environment(root: Path) -> dict[str, str]:
    """Settings of everything that talks to a Prefect server for us."""
    return {
        "PREFECT_HOME": str(Paths(root).state.resolve() / "prefect"),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_CLI_PROMPT": "false",
    }


def server_environment(root: Path, port: int, services: bool) -> dict[str, str]:
    """Settings of the server itself; the web page needs its own address, or it asks port 4200."""
    database = Paths(root).state.resolve() / "prefect" / "prefect.db"
    return {
        **client_environment(root),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}",
        "PREFECT_UI_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        **(
            {}
            if services
            else {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in _DEPLOYMENT_SERVICES}
        ),
    }


@dataclass(frozen=True)
class Server:
    """A server that was started, and may not answer yet."""

    url: str
    group: ProcessGroup
    log: Path

    def wait(self) -> None:
        """Return when it answers. Raises EnvironmentProblem when it never does."""
        wait_until_healthy(f"{self.url}/health", self.group, self.log)


@contextlib.contextmanager
def prefect_server(root: Path, port: int | None = None, services: bool = False) -> Iterator[Server]:
    """Start a server and stop it when the block ends. The database is made once and kept.

    `services`: also the scheduler and its kin, which deployments need and a run in this process does not.

    Raises:
        EnvironmentProblem: another server uses the database.
    """
    folder = Paths(root).state.resolve() / "prefect"
    folder.mkdir(parents=True, exist_ok=True)
    with _database_lock(folder):
        chosen = port or free_port()
        log = folder / "server.log"
        command = [
            sys.executable,
            "-m",
            "prefect",
            "server",
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(chosen),
        ]
        with log.open("a", encoding="utf-8") as output:
            group = ProcessGroup(
                command, folder, server_environment(root, chosen, services), output, stopped_by_signals=False
            )
        try:
            yield Server(f"http://127.0.0.1:{chosen}/api", group, log)
        finally:
            group.stop(grace_seconds=8.0)


@contextlib.contextmanager
def _database_lock(folder: Path) -> Iterator[None]:
    """One server a database: two would run each other's services, and SQLite takes one writer."""
    with (folder / "server.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentProblem(
                f"another train-llm run or `train-llm ui` uses the Prefect database in {folder}: wait for it, or set "
                "PREFECT_API_URL to a server that both use"
            ) from None
        yield


# Of our own servers, which are on loopback: never through a proxy that the environment names.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def wait_until_healthy(url: str, group: ProcessGroup, log: Path, seconds: float = START_SECONDS) -> None:
    """Return when `url` answers 200.

    Raises:
        EnvironmentProblem: the process ended, or `seconds` passed.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if group.process.poll() is not None:
            break
        with contextlib.suppress(OSError, ValueError), _direct.open(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    last = (
        " | ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:])
        if log.exists()
        else ""
    )
    raise EnvironmentProblem(f"no server answers at {url}; its log {log} ends: {last or '(empty)'}")


def free_port() -> int:
    """A port of the loopback that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def reach(url: str, seconds: float = 5.0) -> str:
    """Empty when `url` answers, else what went wrong."""
    ours = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    try:
        with (_direct.open if ours else urllib.request.urlopen)(url, timeout=seconds):
            return ""
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
