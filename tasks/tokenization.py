"""Trains a byte-level BPE on train documents only, or loads a given tokenizer, and encodes all documents.

Reads data/dedupe/documents (Parquet shards of survivors).
Writes data/tokenize/tokenizer (Hugging Face folder) and data/tokenize/shards: for each input shard a .bin of flat ids,
each document followed by the end-of-document id, and an .idx of its documents; manifest.json names them all.
Drops nothing. (The module is not called `tokenize`: that name belongs to the standard library.)
"""

import heapq
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import xxhash

from tasks.kit.errors import InputError
from tasks.kit.files import empty_folder, file_digest, folder_digest, link_or_copy, write_json
from tasks.kit.paths import Paths
from tasks.kit.shards import Shard, ShardResult, map_shards
from tasks.model.token_files import MANIFEST, TokenShard, dtype_of
from tasks.model.token_shards import encode_shard, index_shard
from tasks.model.tokenizer_files import copy_tokenizer
from tasks.params.runtime import RuntimeParams
from tasks.params.split import SidesParams
from tasks.params.tokenize import TokenizeParams
from tasks.text.bpe import PAD, train_merges, write_bpe_tokenizer
from tasks.text.encoding import TokenizerFacts
from tasks.text.sides import side_of, split_key

logger = logging.getLogger("train_llm")

_BATCH_ROWS = 256


@dataclass(frozen=True)
class TokenizeFigures:
    """What tokenizing gave.

    Attributes:
        documents: documents encoded.
        tokens: ids written, end-of-document ids included.
        characters: code points encoded.
        characters_per_token: of the text's own tokens, without the ends of documents.
        unknown_rate: share of the unknown id among those.
        max_id: largest id written.
        train_documents_seen: documents that the trainer saw; 0 with a given tokenizer.
        train_bytes_seen: their UTF-8 bytes.
        fast_path: what encoded: gigatoken, tokenizers, or gigatoken with the number of shards that fell back.
        round_trip: `exact` when every document was decoded to its very bytes, else what was found in the sample.
    """

    vocabulary_size: int
    documents: int
    tokens: int
    characters: int
    characters_per_token: float
    unknown_rate: float
    max_id: int
    train_documents_seen: int
    train_bytes_seen: int
    fast_path: str
    round_trip: str
    end_of_document_id: int
    tokenizer_digest: str
    tokens_by_source: dict[str, int]


class _Seen(NamedTuple):
    documents: int
    bytes: int


def tokenize(
    params: TokenizeParams, sides: SidesParams, runtime: RuntimeParams, paths: Paths
) -> TokenizeFigures:
    """Make the tokenizer, encode every shard, write the manifest.

    Raises:
        InputError: there is nothing to train on, or a tokenizer that cannot be used.
    """
    inputs = sorted(paths.dedupe_documents.glob("*.parquet"))
    if sum(pq.read_metadata(path).num_rows for path in inputs) == 0:
        raise InputError(f"{paths.dedupe_documents} holds no document: look at what clean and dedupe dropped")
    empty_folder(paths.tokenizer)
    if params.tokenizer is None:
        seen = _train(params, sides, inputs, paths.tokenizer)
    else:
        seen = _Seen(0, 0)
        copy_tokenizer(params.tokenizer, paths.tokenizer)
    facts, digest = TokenizerFacts.read(paths.tokenizer), folder_digest(paths.tokenizer)
    encoded = _encode_all(params, digest, inputs, runtime, paths)
    indexed = _index_all(facts, sides, inputs, encoded, runtime, paths)
    _lay_out(facts, digest, encoded, indexed, paths.token_shards)
    return _figures(params, facts, digest, seen, [result.figures for result in encoded])


def _train(params: TokenizeParams, sides: SidesParams, inputs: Sequence[Path], folder: Path) -> _Seen:
    texts = _training_texts(inputs, sides, params.max_training_bytes)
    if not texts:
        raise InputError(
            f"no document fell on the train side (share {sides.train:.0%}), so there is nothing to train the tokenizer "
            "on: bring more documents, or another split.seed"
        )
    special_tokens = [params.end_of_document, PAD, *params.special_tokens]
    merges = train_merges(texts, params.vocabulary_size - len(special_tokens), params.fast)
    write_bpe_tokenizer(folder, merges, special_tokens)
    size = TokenizerFacts.read(folder).vocabulary_size
    if size < params.vocabulary_size:
        logger.warning(
            "the texts gave %d entries of the %d asked for: no pair is left", size, params.vocabulary_size
        )
    return _Seen(len(texts), sum(len(text.encode()) for text in texts))


def _training_texts(inputs: Sequence[Path], sides: SidesParams, max_bytes: int) -> list[str]:
    """Train documents in the order of the hash of their id, as many whole ones as fit (at least one).

    The hash makes a sample that neither the order of shards nor the number of workers moves. Memory holds no more
    than `max_bytes` and one batch: what lies beyond the cap is dropped from a heap as it shows.
    """
    heap: list[tuple[int, str, str]] = []  # negated hashes: the largest hash on top
    total, beyond = 0, 2**64  # hashes from `beyond` on do not fit
    for path in inputs:
        for batch in pq.ParquetFile(path).iter_batches(
            _BATCH_ROWS, columns=["id", "group", "cluster", "text"]
        ):
            rows = zip(*(batch[name].to_pylist() for name in ("id", "group", "cluster", "text")), strict=True)
            for identity, group, cluster, text in rows:
                position = xxhash.xxh3_64_intdigest(identity.encode())
                if position >= beyond or side_of(split_key(group, cluster), sides) != "train":
                    continue
                heapq.heappush(heap, (-position, identity, text))
                total += len(text.encode())
                while total > max_bytes and len(heap) > 1:
                    position, _, popped = heapq.heappop(heap)
                    total, beyond = total - len(popped.encode()), min(beyond, -position)
    return [text for _, _, text in sorted(heap, key=lambda entry: (-entry[0], entry[1]))]


def _encode_all(
    params: TokenizeParams, digest: str, inputs: Sequence[Path], runtime: RuntimeParams, paths: Paths
) -> list[ShardResult]:
    shards = [
        Shard(
            f"{path.stem}.bin",
            {"fast": params.fast, "tokenizer": digest, "documents": file_digest(path)},
            (path, paths.tokenizer, params.fast),
        )
        for path in inputs
    ]
    return map_shards(
        encode_shard,
        shards,
        stage="tokenize",
        store=paths.shard_store("tokenize") / "ids",
        output=paths.state / "tokenize" / "ids",
        runtime=runtime,
    )


def _index_all(
    facts: TokenizerFacts,
    sides: SidesParams,
    inputs: Sequence[Path],
    encoded: Sequence[ShardResult],
    runtime: RuntimeParams,
    paths: Paths,
) -> list[ShardResult]:
    placing = sides.model_dump(include={"train", "validation", "test", "seed"})
    shards = [
        Shard(
            f"{path.stem}.idx",
            {"sides": placing, "documents": file_digest(path), "ids": result.figures["digest"]},
            (path, result.path, facts, sides),
        )
        for path, result in zip(inputs, encoded, strict=True)
    ]
    return map_shards(
        index_shard,
        shards,
        stage="tokenize",
        store=paths.shard_store("tokenize") / "index",
        output=paths.state / "tokenize" / "index",
        runtime=runtime,
    )


def _lay_out(
    facts: TokenizerFacts,
    digest: str,
    encoded: Sequence[ShardResult],
    indexed: Sequence[ShardResult],
    folder: Path,
) -> None:
    empty_folder(folder)
    shards = []
    for ids, index in zip(encoded, indexed, strict=True):
        link_or_copy(ids.path, folder / ids.path.name)
        link_or_copy(index.path, folder / index.path.name)
        f = ids.figures
        shards.append(
            TokenShard(ids.path.stem, f["documents"], f["tokens"], f["digest"], index.figures["digest"])
        )
    write_json(
        folder / MANIFEST,
        {
            "dtype": dtype_of(facts.vocabulary_size).name,
            "vocabulary_size": facts.vocabulary_size,
            "tokenizer_digest": digest,
            "end_of_document_id": facts.end_of_document_id,
            "shards": [asdict(shard) for shard in shards],
        },
    )


def _figures(
    params: TokenizeParams, facts: TokenizerFacts, digest: str, seen: _Seen, shards: Sequence[dict[str, Any]]
) -> TokenizeFigures:
    total = {
        name: sum(shard[name] for shard in shards)
        for name in ("documents", "tokens", "unknown", "characters")
    }
    by_source: Counter[str] = Counter()
    for shard in shards:
        by_source.update(shard["tokens_by_source"])
    text_tokens = max(total["tokens"] - total["documents"], 1)
    fallen = sum(shard["fell_back"] is not None for shard in shards)
    fast_path = "gigatoken" if params.fast and fallen < len(shards) else "tokenizers"
    sampled, changed = (sum(shard[name] for shard in shards) for name in ("sampled", "changed"))
    return TokenizeFigures(
        vocabulary_size=facts.vocabulary_size,
        documents=total["documents"],
        tokens=total["tokens"],
        characters=total["characters"],
        characters_per_token=round(total["characters"] / text_tokens, 6),
        unknown_rate=round(total["unknown"] / text_tokens, 9),
        max_id=max(shard["max_id"] for shard in shards),
        train_documents_seen=seen.documents,
        train_bytes_seen=seen.bytes,
        fast_path=fast_path
        + (
            f" ({fallen} of {len(shards)} shards by tokenizers: gigatoken differed or cannot load it)"
            if fallen
            else ""
        ),
        round_trip="exact"
        if facts.reversible
        else f"{changed} of {sampled} sampled documents decode differently",
        end_of_document_id=facts.end_of_document_id,
        tokenizer_digest=digest,
        tokens_by_source=dict(sorted(by_source.items())),
    )
