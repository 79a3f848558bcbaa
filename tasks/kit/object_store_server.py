"""Supervisor of the embedded S3 server: `python -m tasks.kit.object_store_server FOLDER`.

Starts SeaweedFS over FOLDER/data, says where it listens in FOLDER/server.json, and stops it as soon as nobody
holds FOLDER/users.lock. All states are locks of the kernel, which frees those of a killed process: nothing has
to be cleaned up after kill -9, and no pid that the system has reused is ever believed.

    start.lock   exclusive: one process at a time looks for a server, starts it, fills it
    users.lock   shared: held by every process while it uses the store
    server.lock  exclusive: held by the supervisor for as long as the server runs
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tasks.kit.ports import free_ports_with_twins
from tasks.kit.processes import start_child

_POLL_SECONDS = 0.1
_START_SECONDS = 60.0
_NAMES = ("master", "volume", "filer", "s3", "admin")


@contextlib.contextmanager
def file_lock(path: Path, kind: int) -> Iterator[int]:
    """Hold a lock (`fcntl.LOCK_SH`, `LOCK_EX`, with `LOCK_NB` for BlockingIOError) on `path`; yields its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, kind)
        yield descriptor
    finally:
        os.close(descriptor)


def weed_binary() -> str | None:
    """Path of SeaweedFS's `weed`: beside this Python, where its package puts it, else on the PATH."""
    return shutil.which(
        "weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    )


def write_credentials(path: Path) -> None:
    """Make random keys once, in the form of SeaweedFS's S3 configuration, readable by the owner only."""
    if path.exists():
        return
    identity = {
        "name": "train-llm",
        "credentials": [{"accessKey": secrets.token_hex(10), "secretKey": secrets.token_hex(20)}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"identities": [identity]}, file)
    temporary.replace(path)


def _start(binary: str, folder: Path, ports: dict[str, int]) -> "subprocess.Popen[bytes]":
    command = [
        binary,
        "mini",
        f"-dir={folder / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        *(f"-{name}.port={port}" for name, port in ports.items()),
        f"-s3.config={folder / 'credentials.json'}",
        "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.iam=false",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        "-admin.ui=false",
        "-webdav=false",
    ]
    # Credentials of the user's own cloud are no business of this server; HOME keeps it from ~/.seaweedfs.
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "WEED_", "S3_"))
    }
    with (folder / "weed.log").open("wb") as log:
        return start_child(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**kept, "HOME": str(folder), "GOMEMLIMIT": "300MiB"},
        )


def _answers(port: int) -> bool:
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"http://127.0.0.1:{port}/", timeout=2
        ).close()
    except urllib.error.HTTPError:
        return True  # 403: it is up, and wants a signature
    except OSError:
        return False
    return True


def _start_and_wait(binary: str, folder: Path) -> tuple["subprocess.Popen[bytes]", dict[str, int]]:
    """Start the server, on other ports if these were taken meanwhile. Raises OSError when it does not answer."""
    ports_lock = Path(tempfile.gettempdir()) / f"train-llm-ports-{os.getuid()}.lock"
    for attempt in range(3):
        with file_lock(ports_lock, fcntl.LOCK_EX):  # two servers must not choose the same ports
            ports = free_ports_with_twins(_NAMES, attempt)
            server = _start(binary, folder, ports)
            deadline = time.monotonic() + _START_SECONDS
            while server.poll() is None and time.monotonic() < deadline:
                if _answers(ports["s3"]):
                    return server, ports
                time.sleep(0.02)
            server.kill()
            server.wait()
            _remove_sockets(ports)
    raise OSError("SeaweedFS did not start in three attempts")


def _remove_sockets(ports: dict[str, int]) -> None:
    """SeaweedFS leaves its sockets in /tmp; their names carry the ports, so these are ours."""
    for name, port in ports.items():
        for socket_name in (f"seaweedfs-{name}-{port}.sock", f"seaweedfs-{name}-grpc-{port + 10000}.sock"):
            Path("/tmp", socket_name).unlink(missing_ok=True)


def clear_stale_note(folder: Path) -> None:
    """Remove the note, and the sockets, of a server that was killed together with its supervisor."""
    note = folder / "server.json"
    with contextlib.suppress(OSError, ValueError, KeyError, AttributeError):
        _remove_sockets(json.loads(note.read_text(encoding="utf-8"))["ports"])
    note.unlink(missing_ok=True)


def _wait_until_unused(server: "subprocess.Popen[bytes]", users_lock: int) -> None:
    """Return when nobody uses the store (then `users_lock` is held exclusively) or the server has died."""
    while server.poll() is None:
        try:
            fcntl.flock(users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_POLL_SECONDS)


def supervise(folder: Path) -> int:
    """Run the server for as long as the store has users. Returns the exit code: 0, or 3 when it did not start."""
    binary = weed_binary()
    if binary is None:
        (folder / "weed.log").write_text("no `weed` beside this Python or on the PATH\n", encoding="utf-8")
        return 3
    write_credentials(folder / "credentials.json")
    state = folder / "server.json"
    users_lock = os.open(folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
    # Never closed: the kernel frees it when this process is gone, which is what its users wait for.
    fcntl.flock(os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)
    state.unlink(missing_ok=True)
    try:
        (folder / "data").mkdir(exist_ok=True)
        server, ports = _start_and_wait(binary, folder)
    except OSError as error:
        with (folder / "weed.log").open("a", encoding="utf-8") as log:
            log.write(f"{error}\n")
        return 3
    try:
        temporary = state.with_suffix(".tmp")
        temporary.write_text(
            json.dumps({"supervisor": os.getpid(), "server": server.pid, "port": ports["s3"], "ports": ports})
        )
        temporary.replace(state)
        _wait_until_unused(server, users_lock)
    finally:
        state.unlink(missing_ok=True)
        # Not asked to end gently, which takes it 1.2 s: with no request under way all that it has acknowledged is
        # with the kernel (a test kills it in the middle and reads everything back).
        server.kill()
        server.wait()
        _remove_sockets(ports)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    sys.exit(supervise(Path(sys.argv[1])))
