"""Shard by shard: each output is kept under the hash of what made it, so that only new shards cost work."""

import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
import yaml

from tasks.kit.console import Progress
from tasks.kit.executor import executor
from tasks.kit.files import (
    atomic_path,
    empty_folder,
    file_digest,
    json_digest,
    link_or_copy,
    read_json,
    write_json,
)
from tasks.params.runtime import RuntimeParams

logger = logging.getLogger("train_llm")


@dataclass(frozen=True)
class Shard:
    """One piece of a stage's work: `function(*arguments, output)` writes the file `output` and returns figures.

    `name` is the file name of the result; `identity` is everything, beside the stage's own code, that the
    result depends on (parameters, digests of inputs).
    """

    name: str
    identity: Any
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class ShardResult:
    """What became of a shard: where it lies, its figures, and whether it was computed in this run."""

    path: Path
    figures: dict[str, Any]
    computed: bool


@functools.cache
def code_digest(stage: str) -> str:
    """Digest of the source files that dvc.yaml declares for `stage`: a changed rule makes every key new."""
    root = Path(__file__).resolve().parents[2]
    stages = yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    digest = xxhash.xxh3_128()
    for dependency in sorted(d for d in stages[stage]["deps"] if d.endswith(".py")):
        digest.update(f"{dependency}\0{file_digest(root / dependency)}\n".encode())
    return digest.hexdigest()


def map_shards(
    function: Callable[..., dict[str, Any]],
    shards: Sequence[Shard],
    *,
    stage: str,
    store: Path,
    output: Path,
    runtime: RuntimeParams,
) -> list[ShardResult]:
    """Run `function` on every shard that `store` does not hold yet and lay all results out in `output`.

    A result and its marker (digest and figures, written last) stay in `store`, which is no declared output: a killed or
    repeated run finds them. Entries that this run did not need are removed. Results come in the order of `shards`.

    Raises:
        Whatever `function` raises first; shards finished by then stay in `store`.
    """
    store.mkdir(parents=True, exist_ok=True)
    keys = [json_digest([code_digest(stage), shard.name, shard.identity]) for shard in shards]
    missing = [index for index, key in enumerate(keys) if not _is_whole(store / key)]
    if missing:
        progress = Progress(len(shards), "shards", len(shards) - len(missing))
        with executor(runtime, max_jobs=len(missing), preload=[function.__module__]) as engine:
            futures = [
                engine.submit(_work, function, shards[index].arguments, store / keys[index])
                for index in missing
            ]
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                progress.update(len(shards) - len(missing) + done)
    empty_folder(output)
    computed = set(missing)
    results = []
    for index, (shard, key) in enumerate(zip(shards, keys, strict=True)):
        target = output / shard.name
        link_or_copy(store / key, target)
        results.append(ShardResult(target, read_json(_marker(store / key))["figures"], index in computed))
    _prune(store, set(keys))
    logger.info("%d shards, %d of them computed now", len(shards), len(missing))
    return results


def _work(function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], result: Path) -> None:
    with atomic_path(result) as temporary:
        figures = function(*arguments, temporary)
    write_json(_marker(result), {"digest": file_digest(result), "figures": figures})


def _marker(result: Path) -> Path:
    return result.with_name(f"{result.name}.json")


def _is_whole(result: Path) -> bool:
    """Whether the result lies there as it was written: it shares its bytes with the output, which a user can edit."""
    try:
        recorded = read_json(_marker(result))["digest"]
        return bool(recorded == file_digest(result))
    except (FileNotFoundError, ValueError):
        return False


def _prune(store: Path, keep: set[str]) -> None:
    for path in store.iterdir():
        if path.name.removesuffix(".json") not in keep:
            path.unlink(missing_ok=True)
