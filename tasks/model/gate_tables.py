"""The tables that the gate looks at: one row a document, without texts, and one row of figures."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tasks.kit.errors import InputError
from tasks.kit.files import file_digest, folder_digest, read_json
from tasks.kit.paths import Paths
from tasks.model.token_files import dtype_of, map_index, map_tokens, read_manifest
from tasks.text.sides import SIDES, split_key

if TYPE_CHECKING:
    import pandas

_BATCH_ROWS = 1024


def survivors_table(documents: Path) -> "pandas.DataFrame":
    """id, source, cluster, characters, content (hash of the text), wrong_length (id where `characters` is not true).

    The texts pass through once, batch by batch; about 300 bytes a document stay.
    """
    names = ("id", "source", "cluster", "characters")
    tables = []
    for path in sorted(documents.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(_BATCH_ROWS, columns=[*names, "text"]):
            texts = batch["text"].to_pylist()
            content = [None if t is None else xxhash.xxh3_128_hexdigest(t.encode()) for t in texts]
            lengths = zip(batch["id"].to_pylist(), batch["characters"].to_pylist(), texts, strict=True)
            wrong = [identity if text is None or len(text) != n else None for identity, n, text in lengths]
            columns = {name: batch[name] for name in names}
            tables.append(
                pa.table({**columns, "content": content, "wrong_length": pa.array(wrong, pa.string())})
            )
    return _frame(tables, [*names, "content", "wrong_length"])


def placements_table(split: Path, survivors: "pandas.DataFrame") -> "pandas.DataFrame":
    """id, side, tokens, leaked_key (group or cluster that is on another side too), stranger (id that is no survivor),
    tokens_over_four_a_character."""
    frame = _frame(list(_indexes(split)), ["id", "characters", "side", "tokens", "key", "folder"])
    folder, key = frame.pop("folder"), frame.pop("key")
    frame["side"] = folder.where(folder == frame["side"], folder + " (index says " + frame["side"] + ")")
    frame["leaked_key"] = key.where(folder.groupby(key).transform("nunique") > 1, None)
    frame["stranger"] = frame["id"].where(~frame["id"].isin(survivors["id"]), None)
    frame["tokens_over_four_a_character"] = (frame["tokens"] - 4 * frame.pop("characters")).clip(lower=0)
    return frame


def figures_table(paths: Paths, num_survivors: int) -> "pandas.DataFrame":
    """One row: the funnel's differences, shares, and what the files of the split really hold."""
    import pandas

    stages = ("ingest", "clean", "dedupe", "tokenize", "split")
    metrics = {stage: _metrics(paths.metrics(stage)) for stage in stages}
    return pandas.DataFrame([{**_funnel(metrics, num_survivors), **_split_files(paths), **_shares(metrics)}])


def _frame(tables: list[pa.Table], names: list[str]) -> "pandas.DataFrame":
    table = (
        pa.concat_tables(table.select(names) for table in tables)
        if tables
        else pa.table({n: [] for n in names})
    )
    return table.to_pandas(strings_to_categorical=False, self_destruct=True)


def _indexes(split: Path) -> Iterator[pa.Table]:
    manifest = read_manifest(split)
    for side in SIDES:
        for shard in manifest["sides"][side]["shards"]:
            index = map_index(split / side / f"{shard['name']}.idx")
            # From Arrow: pandas turns a missing group into NaN, which is true, and then all documents share a key.
            pairs = zip(index["group"].to_pylist(), index["cluster"].to_pylist(), strict=True)
            keys = pa.array([split_key(group, cluster) for group, cluster in pairs], pa.string())
            index = index.append_column("key", keys)
            yield index.append_column("folder", pa.array([side] * len(index), pa.string()))


def _metrics(path: Path) -> dict[str, Any]:
    try:
        figures: dict[str, Any] = read_json(path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: run the stage {path.stem} first") from None
    return figures


def _funnel(metrics: dict[str, dict[str, Any]], num_survivors: int) -> dict[str, float]:
    """Differences that are 0 when no document is lost on the way from one stage to the next."""
    ingest, clean, dedupe, tokenize, split = metrics.values()
    dropped = sum(clean["dropped_by_reason"].values())
    removed = dedupe["exact_removed"] + dedupe["near_removed"]
    sides = split["sides"].values()
    return {
        "ingest_less_clean_in": ingest["documents"] - clean["documents_in"],
        "clean_in_less_out_and_dropped": clean["documents_in"] - clean["documents_out"] - dropped,
        "clean_out_less_dedupe_in": clean["documents_out"] - dedupe["documents_in"],
        "dedupe_in_less_out_and_removed": dedupe["documents_in"] - dedupe["documents_out"] - removed,
        "dedupe_out_less_rows": dedupe["documents_out"] - num_survivors,
        "dedupe_out_less_tokenized": dedupe["documents_out"] - tokenize["documents"],
        "tokenized_less_placed": tokenize["documents"] - sum(side["documents"] for side in sides),
        "tokens_less_blocks_and_tails": tokenize["tokens"]
        - sum(side["tokens"] + side["dropped_tail_tokens"] for side in sides),
        "dropped_share": _share(dropped, clean["documents_in"]),
        "duplicate_share": _share(removed, dedupe["documents_in"]),
        "unknown_rate": tokenize["unknown_rate"],
        "characters_per_token": tokenize["characters_per_token"],
    }


def _share(part: int, whole: int) -> float:
    """1, the worst, when there is nothing."""
    return round(part / whole, 6) if whole else 1.0


def _split_files(paths: Paths) -> dict[str, Any]:
    """What the files say for themselves: largest id, digests, and whose tokenizer it was."""
    manifest = read_manifest(paths.split)
    dtype, max_id, corrupted = dtype_of(manifest["vocabulary_size"]), -1, []
    sizes: dict[str, int] = {}
    for side in SIDES:
        for shard in manifest["sides"][side]["shards"]:
            path = paths.split / side / f"{shard['name']}.bin"
            for file, digest in ((path, shard["digest"]), (path.with_suffix(".idx"), shard["index_digest"])):
                if file_digest(file) != digest:
                    corrupted.append(f"{side}/{file.name}")
            ids = map_tokens(path, dtype)
            sizes[side] = sizes.get(side, 0) + len(ids)
            max_id = max(
                [
                    max_id,
                    *(int(part.max()) for part in np.array_split(ids, len(ids) // 2**24 + 1) if len(part)),
                ]
            )
    digest = folder_digest(paths.tokenizer)
    return {
        "max_token_id": max_id,
        "corrupted_shards": ", ".join(corrupted) or None,
        "other_tokenizer": None if digest == manifest["tokenizer_digest"] else digest,
        "train_tokens": sizes.get("train", 0),
        **{f"{side}_blocks": sizes.get(side, 0) // manifest["block_size"] for side in SIDES},
    }


def _shares(metrics: dict[str, dict[str, Any]]) -> dict[str, float]:
    return {
        f"{side}_share": figures["share_of_clusters"] for side, figures in metrics["split"]["sides"].items()
    }
