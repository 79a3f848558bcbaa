"""Runs and registered models in MLflow: the only module that imports it.

Without MLFLOW_TRACKING_URI everything lies in `.state/mlflow`: `mlflow.db` (sqlite) and `artifacts`.
"""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field
from pydantic_settings import BaseSettings

from tasks.kit.console import redact
from tasks.kit.errors import EnvironmentProblem
from tasks.kit.files import atomic_path
from tasks.kit.paths import Paths
from tasks.kit.processes import switch_telemetry_off

logger = logging.getLogger("train_llm")

_SQLITE = "sqlite:///"
KEY_TAG = "train_llm.key"
EXPERIMENT = "train-llm"

# MLflow's own defaults wait 7 retries of up to 120 s: over four minutes until a wrong address is noticed.
_QUICK_FAILURE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}
_METRICS_OF_A_BATCH = 1000  # limits of the REST interface
_PARAMS_OF_A_BATCH = 100


class TrackingSettings(BaseSettings):
    """Where runs are kept, from the environment; passwords and tokens are read by MLflow itself."""

    tracking_uri: str = Field(default="", validation_alias="MLFLOW_TRACKING_URI")
    experiment: str = Field(default=EXPERIMENT, validation_alias="MLFLOW_EXPERIMENT_NAME")


def tracking_uri(paths: Paths) -> str:
    """Address of the tracking store: MLFLOW_TRACKING_URI, else the sqlite file in `.state/mlflow`.

    Raises:
        EnvironmentProblem: MLFLOW_TRACKING_URI names a folder; MLflow 3 keeps no runs in files any more.
    """
    uri = TrackingSettings().tracking_uri
    if not uri:
        return f"sqlite:///{(paths.state / 'mlflow' / 'mlflow.db').resolve()}"
    if urlsplit(uri).scheme in ("", "file"):
        raise EnvironmentProblem(
            f"MLFLOW_TRACKING_URI is {redact(uri)!r}, a folder: MLflow 3 refuses its file store. "
            "Use sqlite:///PATH/mlflow.db or the address of a server, or unset it"
        )
    return uri


class Run:
    """An open run. Metrics that cannot be sent are kept and tried again: tracking never stops a training."""

    def __init__(self, client: Any, run_id: str, continued: bool) -> None:
        self.run_id = run_id
        self._client = client
        self._continued = continued
        self._known_steps: dict[str, set[int]] = {}
        self._waiting: list[tuple[int, int, dict[str, float]]] = []  # (milliseconds, step, values)

    def log_metrics(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Log (step, {name: value}) rows in one batch; steps that the run already has are left out.

        A resumed training repeats the steps after its checkpoint, and MLflow would append them a second time.
        """
        now = int(time.time() * 1000)
        self._waiting.extend((now, step, dict(values)) for step, values in rows)
        try:
            self._send()
        except Exception as error:
            logger.warning(
                "MLflow takes no metrics (%s): %d rows are kept and tried again",
                first_line(error),
                len(self._waiting),
            )

    def log_artifacts(self, folder: Path, artifact_path: str | None = None) -> None:
        """Copy the files of a folder to the run."""
        self._client.log_artifacts(self.run_id, str(folder), artifact_path)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run, redacted."""
        from mlflow.entities import RunTag

        self._client.log_batch(self.run_id, tags=[RunTag(k, redact(v)) for k, v in tags.items()])

    def _send(self) -> None:
        from mlflow.entities import Metric

        metrics, seen = [], {name: set(steps) for name, steps in self._known_steps.items()}
        for milliseconds, step, values in self._waiting:
            for name, value in values.items():
                if name not in seen:
                    seen[name] = self._steps_of(name)
                if step not in seen[name]:
                    seen[name].add(step)
                    metrics.append(Metric(name, float(value), milliseconds, step))
        for start in range(0, len(metrics), _METRICS_OF_A_BATCH):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + _METRICS_OF_A_BATCH])
        self._known_steps = seen
        self._waiting.clear()

    def _steps_of(self, name: str) -> set[int]:
        if not self._continued:
            return set()
        return {metric.step for metric in self._client.get_metric_history(self.run_id, name)}

    def close(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED; what could not be logged is counted in a warning."""
        try:
            self._send()
            self._client.set_terminated(self.run_id, status)
        except Exception as error:
            logger.warning(
                "MLflow did not take the end of run %s (%s); %d rows of metrics are not recorded there",
                self.run_id,
                first_line(error),
                len(self._waiting),
            )


@contextlib.contextmanager
def open_run(
    paths: Paths,
    name: str,
    key: str,
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
) -> Iterator[Run]:
    """Open the run of `key`: the one that an earlier attempt began, else a new one.

    `params` may be nested; they are flattened to dotted names and redacted, as the tags are. Parameters of a run
    cannot change in MLflow, so an attempt whose `params` differ gets a new run with the tag `mlflow.parentRunId`.
    The run ends as FINISHED, FAILED when the block raises, or KILLED when it is interrupted.

    Raises:
        EnvironmentProblem: the store does not answer; names its address.
    """
    with store(paths) as (client, experiment_id):
        flat = flatten(params or {})
        with reported(paths), store_lock(tracking_uri(paths), "runs"):
            run = _find_or_create(client, experiment_id, name, key, flat)
            _log_params_and_tags(client, run.run_id, flat, tags or {})
        try:
            yield run
        except (KeyboardInterrupt, SystemExit):
            run.close("KILLED")
            raise
        except BaseException:
            run.close("FAILED")
            raise
        run.close("FINISHED")


@contextlib.contextmanager
def store(paths: Paths) -> Iterator[tuple[Any, str]]:
    """The client of the tracking store and the id of the project's experiment, both made when absent.

    An absent sqlite store is set up under a lock: of 4 processes that open one together 3 die in its migrations.

    Raises:
        EnvironmentProblem: the store does not answer.
    """
    switch_telemetry_off()
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    for variable, value in _QUICK_FAILURE.items():
        os.environ.setdefault(variable, value)
    from mlflow import MlflowClient

    uri = tracking_uri(paths)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with reported(paths, OSError), store_lock(uri, "set_up"):
        _make_database(uri)
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        experiment_id = _experiment(client, uri, paths)
    yield client, experiment_id


def _make_database(uri: str) -> None:
    """Make an absent sqlite file beside its place and rename it.

    Killed in the middle of its migrations it would be refused at every later start ("out-of-date schema").
    """
    from mlflow import MlflowClient

    database = _sqlite_file(uri)
    if database is None or database.exists():
        return
    with atomic_path(database) as beside:
        MlflowClient(tracking_uri=f"{_SQLITE}{beside}").search_experiments(max_results=1)


def download(paths: Paths, uri: str, target: Path) -> Path:
    """Copy the artifacts at `uri` below the folder `target`. Returns the path of the copy.

    Raises:
        EnvironmentProblem: they are gone or out of reach.
    """
    from mlflow.artifacts import download_artifacts

    with reported(paths):
        return Path(
            download_artifacts(artifact_uri=uri, dst_path=str(target), tracking_uri=tracking_uri(paths))
        )


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested values as {dotted name: redacted text}."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = redact(str(value))
    return flat


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without secrets, cut to 300 characters."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return redact(lines[0])[:300]


def _experiment(client: Any, uri: str, paths: Paths) -> str:
    name = TrackingSettings().experiment
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    local = uri.startswith("sqlite:")
    location = (paths.state / "mlflow" / "artifacts").resolve().as_uri() if local else None
    try:
        return str(client.create_experiment(name, artifact_location=location))
    except Exception:  # made by another machine in between
        found = client.get_experiment_by_name(name)
        if found is None:
            raise
        return str(found.experiment_id)


def _find_or_create(client: Any, experiment_id: str, name: str, key: str, params: Mapping[str, str]) -> Run:
    found = client.search_runs(
        [experiment_id], f"tags.`{KEY_TAG}` = '{key}'", max_results=1, order_by=["attributes.start_time DESC"]
    )
    tags = {KEY_TAG: key}
    if found:
        previous = found[0]
        if all(previous.data.params.get(name, value) == value for name, value in params.items()):
            client.update_run(previous.info.run_id, status="RUNNING")
            return Run(client, previous.info.run_id, continued=True)
        tags["mlflow.parentRunId"] = previous.info.run_id
    created = client.create_run(experiment_id, tags=tags, run_name=name)
    return Run(client, created.info.run_id, continued=False)


def _log_params_and_tags(
    client: Any, run_id: str, params: Mapping[str, str], tags: Mapping[str, str]
) -> None:
    from mlflow.entities import Param, RunTag

    entries = [Param(name, value) for name, value in params.items()]
    client.log_batch(run_id, tags=[RunTag(name, redact(value)) for name, value in tags.items()])
    for start in range(0, len(entries), _PARAMS_OF_A_BATCH):
        client.log_batch(run_id, params=entries[start : start + _PARAMS_OF_A_BATCH])


@contextlib.contextmanager
def reported(paths: Paths, *also: type[Exception]) -> Iterator[None]:
    """Turn what MLflow raises when its store is away or broken, and `also`, into a message with the address."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, *also) as error:
        raise EnvironmentProblem(
            f"MLflow at {redact(tracking_uri(paths))} cannot be used ({first_line(error)}): start it, correct "
            "MLFLOW_TRACKING_URI and its credentials, or unset it to keep the runs in .state/mlflow"
        ) from None


@contextlib.contextmanager
def store_lock(uri: str, name: str) -> Iterator[None]:
    """Hold the lock file NAME beside a sqlite store; a server orders its writers itself."""
    database = _sqlite_file(uri)
    if database is None:
        yield
        return
    path = database.with_name(f"{database.name}.{name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sqlite_file(uri: str) -> Path | None:
    return Path(uri.removeprefix(_SQLITE).partition("?")[0]) if uri.startswith(_SQLITE) else None
