"""Lists what comes from outside, so that what follows depends on what lies there now and not on its name.

Reads:  the listing of `snapshot.source` (S3 or a folder), no object's content in S3; the pretrained tokenizer and
        base model, where params.yaml names them
Writes: data/snapshot/manifest.json, data/snapshot/tokenizer.json, data/snapshot/base_model.json
Drops:  keys that `include` and `exclude` leave out, and folder placeholders
"""

import dataclasses
import fnmatch
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from tasks.kit.errors import InputError
from tasks.kit.files import json_digest, write_json
from tasks.kit.object_store import open_store
from tasks.kit.paths import Paths
from tasks.kit.pretrained import identity_of
from tasks.kit.sources import ObjectEntry, Source, list_bucket, list_folder, parse_source
from tasks.params.runtime import RuntimeParams
from tasks.params.snapshot import SnapshotParams
from tasks.params.tokenize import PretrainedTokenizer
from tasks.params.train import PretrainedModel

logger = logging.getLogger("train_llm")


@dataclass(frozen=True)
class SnapshotFigures:
    """What was found: number of objects, their size in bytes together, digest over keys, sizes and etags."""

    source: str
    objects: int
    bytes: int
    digest: str


def snapshot(
    params: SnapshotParams,
    tokenizing: PretrainedTokenizer,
    training: PretrainedModel,
    runtime: RuntimeParams,
    paths: Paths,
) -> SnapshotFigures:
    """Write the object manifest of the corpus, and what the pretrained parts are.

    Raises:
        InputError: nothing was found.
        ParamsError: a pretrained part is neither a folder nor a hub id.
        EnvironmentProblem: the object store or the hub is out of reach, or refuses.
    """
    write_json(paths.pretrained_tokenizer, identity_of(tokenizing.tokenizer, "tokenize.tokenizer"))
    write_json(paths.pretrained_model, identity_of(training.base_model, "train.base_model"))
    source = parse_source(params.source)
    listed = _list(source, runtime, paths)
    entries = sorted(_chosen(listed, source, params), key=lambda entry: entry.key)
    if not entries:
        raise InputError(_describe_nothing(source, params, len(listed)))
    objects = [dataclasses.asdict(entry) for entry in entries]
    digest = json_digest(objects)
    write_json(paths.snapshot_manifest, {"source": params.source, "objects": objects, "digest": digest})
    size = sum(entry.size for entry in entries)
    logger.info("%d objects, %s bytes in %s", len(entries), f"{size:,}", source.url)
    return SnapshotFigures(params.source, len(entries), size, digest)


def _list(source: Source, runtime: RuntimeParams, paths: Paths) -> list[ObjectEntry]:
    if source.bucket is None:
        return list(list_folder(source, paths.root))
    with open_store(runtime, paths) as store:
        return list(list_bucket(source, store))


def _chosen(entries: Iterable[ObjectEntry], source: Source, params: SnapshotParams) -> Iterable[ObjectEntry]:
    for entry in entries:
        key = source.relative(entry.key)
        included = any(fnmatch.fnmatchcase(key, pattern) for pattern in params.include)
        if included and not any(fnmatch.fnmatchcase(key, pattern) for pattern in params.exclude):
            yield entry


def _describe_nothing(source: Source, params: SnapshotParams, num_listed: int) -> str:
    if num_listed:
        return (
            f"none of the {num_listed:,} objects in {source.url} is left by snapshot.include {list(params.include)} "
            f"and snapshot.exclude {list(params.exclude)}: correct these patterns (they match keys below the source)"
        )
    return f"snapshot.source {source.url} holds no object: correct the prefix, or upload the corpus there"
