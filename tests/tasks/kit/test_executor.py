"""The executor: local processes and a Dask cluster run the same function; an absent cluster is named."""

import pytest
from distributed import LocalCluster

from tasks.kit.errors import EnvironmentProblem
from tasks.kit.executor import executor
from tasks.params.runtime import RuntimeParams


@pytest.mark.parametrize("workers", [1, 2])
def test_local_processes_run_the_calls(workers: int) -> None:
    with executor(RuntimeParams(num_workers=workers)) as engine:
        assert list(engine.map(len, ["a", "bb", "ccc"])) == [1, 2, 3]


def test_a_dask_cluster_runs_the_calls() -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        executor(RuntimeParams(dask_address=cluster.scheduler_address)) as engine,
    ):
        assert list(engine.map(len, ["a", "bb", "ccc"])) == [1, 2, 3]


def test_an_absent_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.kit.executor.DASK_CONNECT_SECONDS", 1)
    with (
        pytest.raises(EnvironmentProblem, match=r"runtime\.dask_address"),
        executor(RuntimeParams(dask_address="tcp://127.0.0.1:1")),
    ):
        pass
