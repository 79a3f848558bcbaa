"""Runs and registered models in a real sqlite store, and a server that is not there."""

import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tasks.kit.errors import EnvironmentProblem
from tasks.kit.paths import Paths
from tasks.kit.tracking import open_run, store, tracking_uri

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Paths(tmp_path)


def test_a_second_attempt_with_the_same_key_continues_the_run_and_doubles_no_step(paths: Paths) -> None:
    with (
        pytest.raises(RuntimeError),
        open_run(paths, "train", "key-1", {"stage": "train"}, {"a": {"b": 1}}) as run,
    ):
        run.log_metrics([(step, {"loss": 1.0 / step}) for step in range(1, 6)])
        raise RuntimeError
    with store(paths) as (client, _):
        assert client.get_run(run.run_id).info.status == "FAILED"
    with open_run(paths, "train", "key-1", {"stage": "train"}, {"a": {"b": 1}}) as again:
        again.log_metrics([(step, {"loss": 1.0 / step}) for step in range(4, 9)])
        again.log_metrics([(8, {"loss": 0.125}), (9, {"loss": 0.1})])
    assert again.run_id == run.run_id
    with store(paths) as (client, _):
        finished = client.get_run(run.run_id)
        assert finished.info.status == "FINISHED"
        assert finished.data.params == {"a.b": "1"}
        assert finished.info.artifact_uri.startswith(
            (paths.state / "mlflow" / "artifacts").resolve().as_uri()
        )
        assert [metric.step for metric in client.get_metric_history(run.run_id, "loss")] == list(range(1, 10))


def test_changed_params_under_the_same_key_make_a_linked_new_run(paths: Paths) -> None:
    with open_run(paths, "train", "key-2", params={"ranks": 2}) as first:
        pass
    with open_run(paths, "train", "key-2", params={"ranks": 1}) as second:
        pass
    with store(paths) as (client, _):
        assert second.run_id != first.run_id
        assert client.get_run(second.run_id).data.tags["mlflow.parentRunId"] == first.run_id


def test_processes_that_open_an_absent_store_together_all_get_a_run(paths: Paths) -> None:
    program = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        from tasks.kit.paths import Paths
        from tasks.kit.tracking import open_run
        with open_run(Paths(Path({str(paths.root)!r})), "train", "key-" + sys.argv[1]) as run:
            run.log_metrics([(1, {{"loss": 1.0}})])
        """
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, str(n)], cwd=ROOT) for n in range(3)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    with store(paths) as (client, experiment_id):
        assert len(client.search_runs([experiment_id])) == 3


def test_no_secret_reaches_params_tags_or_the_database(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_SECRET_KEY", "hunter2-planted")
    params = {"endpoint": "https://user:pass-planted@host/x", "key": "hunter2-planted"}
    with open_run(paths, "train", "key-3", {"source": "s3://hunter2-planted/x"}, params):
        pass
    database = (paths.state / "mlflow" / "mlflow.db").read_bytes()
    assert b"planted" not in database
    assert b"https://user:********@host/x" in database


def test_a_server_that_is_away_is_named_within_seconds_and_without_its_password(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:open-sesame@127.0.0.1:{port}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with (
        pytest.raises(EnvironmentProblem, match=rf"http://user:\*+@127.0.0.1:{port}") as caught,
        store(paths),
    ):
        pass
    assert "sesame" not in str(caught.value)


def test_a_folder_as_the_store_is_refused_with_what_to_use(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    with pytest.raises(EnvironmentProblem, match="sqlite:///"):
        tracking_uri(paths)


def test_metrics_that_the_store_refused_are_sent_with_the_next_ones(paths: Paths) -> None:
    with open_run(paths, "train", "key-4") as run:
        with store(paths) as (client, _):
            client.set_terminated(run.run_id)
            client.delete_run(run.run_id)  # a deleted run takes no metrics
            run.log_metrics([(1, {"loss": 3.0})])
            client.restore_run(run.run_id)
        run.log_metrics([(2, {"loss": 2.0})])
    with store(paths) as (client, _):
        assert [metric.step for metric in client.get_metric_history(run.run_id, "loss")] == [1, 2]


def test_killed_while_the_store_is_made_the_next_start_makes_it(paths: Paths) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from tasks.kit.paths import Paths; from tasks.kit.tracking import store\n"
        "with store(Paths(Path(sys.argv[1]))): pass"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(paths.root)], cwd=ROOT)
    folder = paths.state / "mlflow"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if any(file.stat().st_size for file in folder.glob(".mlflow.db.*.tmp")):  # its tables are being made
            break
        time.sleep(0.005)
    process.kill()
    process.wait()
    with open_run(paths, "train", "after the kill"):
        pass
