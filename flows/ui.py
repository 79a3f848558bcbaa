"""The web pages of Prefect and MLflow over the databases in `.state`, until Ctrl-C."""

import contextlib
import sys
from pathlib import Path

from flows.children import ProcessGroup, stopped_by_signals
from flows.server import free_port, prefect_server, wait_until_healthy
from tasks.kit.paths import Paths


def serve(root: Path) -> int:
    """Start both servers on loopback, say where they are, wait. Returns 0 after Ctrl-C, 1 when one ends by itself."""
    with contextlib.suppress(KeyboardInterrupt), stopped_by_signals(), contextlib.ExitStack() as stack:
        prefect = stack.enter_context(prefect_server(root))
        mlflow, url, log = _start_mlflow(root)
        stack.callback(mlflow.stop, grace_seconds=8.0)
        prefect.wait()
        wait_until_healthy(f"{url}/health", mlflow, log)
        sys.stdout.write(f"Prefect  {prefect.url.removesuffix('/api')}\nMLflow   {url}\nCtrl-C stops both.\n")
        sys.stdout.flush()
        while True:
            with contextlib.suppress(Exception):
                mlflow.process.wait(1)
            if mlflow.process.poll() is not None or prefect.group.process.poll() is not None:
                sys.stderr.write(f"a server ended; see {log} and {prefect.log}\n")
                return 1
    return 0


def _start_mlflow(root: Path) -> tuple[ProcessGroup, str, Path]:
    """MLflow's server on a free port; without its job runner, which costs eight processes (0.7 GB)."""
    from tasks.kit.tracking import tracking_uri

    paths = Paths(root)
    folder = paths.state.resolve() / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), folder / "server.log"
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    command += ["--backend-store-uri", tracking_uri(paths)]
    command += ["--default-artifact-root", (folder / "artifacts").as_uri()]
    with log.open("a", encoding="utf-8") as output:
        group = ProcessGroup(command, folder, {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}, output)
    return group, f"http://127.0.0.1:{port}", log
