"""Runs and registered models in a real sqlite store, and a server that is not there."""

import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tasks.kit.errors import EnvironmentProblem
from tasks.kit.paths import Paths
from tasks.kit.tracking import flatten, open_run, store, tracking_uri

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def migrated_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set-up sqlite file: its migrations cost seconds, so they run once."""
    root = tmp_path_factory.mktemp("store")
    with store(Paths(root)):
        pass
    return root / ".state" / "mlflow" / "mlflow.db"


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
