"""Shard functions run through one `concurrent.futures.Executor`: local processes, or a Dask cluster."""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any

from tasks.kit.errors import EnvironmentProblem
from tasks.params.runtime import RuntimeParams

DASK_CONNECT_SECONDS = 30.0


class InlineExecutor(Executor):
    """Runs each call at once in this process: for one worker, debuggers and tests."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        return future


def num_workers(runtime: RuntimeParams) -> int:
    """Processes of a data stage: the number asked for, or one a core that this process may use."""
    return runtime.num_workers or len(os.sched_getaffinity(0))


@contextlib.contextmanager
def executor(
    runtime: RuntimeParams, max_jobs: int | None = None, preload: Sequence[str] = ()
) -> Iterator[Executor]:
    """The engine of `runtime`: Dask where an address is given, else `num_workers` local processes.

    `max_jobs` caps the local processes (no use in more workers than shards). Forkserver, since the parent may
    hold threads (numba, boto3) that a fork would copy locked; it imports the modules `preload` once, and its
    forks have them: three pools of two workers took 26 s without and 6 s with it on a busy machine.

    Raises:
        EnvironmentProblem: the Dask scheduler does not answer.
    """
    if runtime.dask_address:
        from distributed import Client

        try:
            client = Client(runtime.dask_address, timeout=DASK_CONNECT_SECONDS)
        except OSError as error:
            raise EnvironmentProblem(
                f"no Dask scheduler answers at runtime.dask_address {runtime.dask_address!r} ({error}): "
                "start it, or leave the address empty to use local processes"
            ) from None
        with client, client.get_executor(pure=False, retries=2) as engine:
            yield engine
        return
    workers = min(num_workers(runtime), max_jobs or 10**9)
    if workers <= 1:
        yield InlineExecutor()
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
