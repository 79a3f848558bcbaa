"""Sends each group or cluster to train, validation or test by hash, and packs each side into fixed blocks.

Reads data/tokenize/shards.
Writes data/split: for each side packed .bin shards (whole blocks of `block_size` ids) with their .idx, and
manifest.json, which `Blocks.open` reads.
Drops, and counts, the ids at the end of each output shard that fill no block.
"""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.kit.errors import InputError
from tasks.kit.files import empty_folder, write_json
from tasks.kit.paths import Paths
from tasks.model.packing import SHARD_TOKENS, TokenShards, cut_into_shards, pack
from tasks.model.token_files import MANIFEST, dtype_of, read_manifest
from tasks.params.split import SplitParams
from tasks.text.sides import SIDES, side_of, split_key

logger = logging.getLogger("train_llm")


@dataclass(frozen=True)
class SideFigures:
    """One side.

    Attributes:
        documents: documents sent there.
        clusters: what was sent there together: groups, and clusters of documents without a group.
        blocks: whole blocks packed.
        tokens: ids in them.
        dropped_tail_tokens: ids that filled no block.
        share_of_clusters: its clusters among those of all sides.
    """

    documents: int
    clusters: int
    blocks: int
    tokens: int
    dropped_tail_tokens: int
    share_of_clusters: float


@dataclass(frozen=True)
class SplitFigures:
    """What went where."""

    block_size: int
    documents: int
    clusters: int
    sides: dict[str, SideFigures]


def split(params: SplitParams, paths: Paths) -> SplitFigures:
    """Place, pack, and write the manifest.

    Raises:
        InputError: a side has not one whole block.
    """
    manifest = read_manifest(paths.token_shards)
    names = [shard["name"] for shard in manifest["shards"]]
    source = TokenShards(paths.token_shards, names, dtype_of(manifest["vocabulary_size"]))
    empty_folder(paths.split)
    entries = {side: _pack_side(source, side, params, paths.split / side) for side in SIDES}
    clusters = _count_clusters(source, params)
    _require_blocks(entries, clusters, params, manifest)
    _write_manifest(paths.split, manifest, params, entries)
    return _figures(params, entries, clusters)


def _pack_side(source: TokenShards, side: str, params: SplitParams, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    documents = source.documents(side, params.seed)
    shards, dropped = [], 0
    for number, part in enumerate(cut_into_shards(documents, params.block_size, SHARD_TOKENS)):
        shard, tail = pack(source, documents[part], params.block_size, folder, f"{number:05}")
        shards.append(shard)
        dropped += tail
    tokens = sum(shard.tokens for shard in shards)
    return {
        "blocks": tokens // params.block_size,
        "documents": len(documents),
        "tokens": tokens,
        "dropped_tail_tokens": dropped,
        "shards": [asdict(shard) for shard in shards],
    }


def _count_clusters(source: TokenShards, params: SplitParams) -> dict[str, int]:
    """Groups, and clusters of documents without a group, of each side; only their hashes are held."""
    found: dict[str, list[np.ndarray]] = {side: [] for side in SIDES}
    for index in source.indexes:
        rows = zip(*(index[name].to_pylist() for name in ("side", "group", "cluster")), strict=True)
        placed = {(side, split_key(group, cluster)) for side, group, cluster in rows}
        if any(side_of(key, params) != side for side, key in placed):
            raise InputError(
                "the token shards were made with another seed or other shares: run the stage tokenize again"
            )
        for side in SIDES:
            hashes = {hash(key) for where, key in placed if where == side}
            found[side].append(np.fromiter(hashes, np.int64, len(hashes)))
    return {side: len(np.unique(np.concatenate(hashes))) for side, hashes in found.items()}


def _require_blocks(
    entries: dict[str, dict[str, Any]],
    clusters: dict[str, int],
    params: SplitParams,
    manifest: dict[str, Any],
) -> None:
    short = [side for side in SIDES if not entries[side]["blocks"]]
    if not short:
        return
    total = sum(clusters.values())
    lines = [
        f"  {side}: {entries[side]['dropped_tail_tokens']:,} tokens of {entries[side]['documents']:,} documents, a "
        f"block needs {params.block_size:,} (share {getattr(params, side):.0%}, {clusters[side]:,} of {total:,} "
        "groups and clusters)"
        for side in short
    ]
    tokens = sum(shard["tokens"] for shard in manifest["shards"])
    raise InputError(
        f"{' and '.join(short)} would have no block, with {tokens:,} tokens in all:\n"
        + "\n".join(lines)
        + "\n"
        "Bring more documents, make split.block_size smaller, or give that side a larger share"
    )


def _write_manifest(
    folder: Path, manifest: dict[str, Any], params: SplitParams, entries: dict[str, dict[str, Any]]
) -> None:
    copied = ("dtype", "vocabulary_size", "tokenizer_digest", "end_of_document_id")
    write_json(
        folder / MANIFEST,
        {**{name: manifest[name] for name in copied}, "block_size": params.block_size, "sides": entries},
    )
    for side, entry in entries.items():
        logger.info("%s: %d documents in %d blocks", side, entry["documents"], entry["blocks"])


def _figures(
    params: SplitParams, entries: dict[str, dict[str, Any]], clusters: dict[str, int]
) -> SplitFigures:
    total = sum(clusters.values())
    sides = {
        side: SideFigures(
            documents=entry["documents"],
            clusters=clusters[side],
            blocks=entry["blocks"],
            tokens=entry["tokens"],
            dropped_tail_tokens=entry["dropped_tail_tokens"],
            share_of_clusters=round(clusters[side] / total, 6),
        )
        for side, entry in entries.items()
    }
    return SplitFigures(
        params.block_size, sum(entry["documents"] for entry in entries.values()), total, sides
    )
