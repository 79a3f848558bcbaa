"""Token shards on disk: NAME.bin of flat little-endian ids, NAME.idx of the documents in it, manifest.json.

The ids are read by memory map (225 million tokens a core-second, against 7 through Arrow tables), the index is
an uncompressed Arrow IPC file, which maps too.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.kit.errors import InputError
from tasks.kit.files import read_json

MANIFEST = "manifest.json"

INDEX_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("group", pa.string()),
        ("cluster", pa.string()),
        ("end", pa.int64()),  # exclusive end position in the .bin
        ("characters", pa.int32()),  # of the whole document's text
        ("side", pa.string()),
    ]
)
# A packed shard may cut its last document: `tokens` says how many of the document's ids this shard holds.
PACKED_INDEX_SCHEMA = INDEX_SCHEMA.append(pa.field("tokens", pa.int64()))


@dataclass(frozen=True)
class TokenShard:
    """What manifest.json says of one shard; digests are xxh3-128 of the two files."""

    name: str
    documents: int
    tokens: int
    digest: str
    index_digest: str


def dtype_of(vocabulary_size: int) -> np.dtype[Any]:
    """The narrowest type for every id: uint16 up to 65,536 entries, else uint32; always little-endian."""
    return np.dtype("<u2" if vocabulary_size <= 2**16 else "<u4")


def narrow(ids: np.ndarray, vocabulary_size: int, where: str) -> np.ndarray:
    """`ids` in the type of the file.

    Raises:
        InputError: an id lies outside the vocabulary. It would wrap to another token without a word, or crash
            the embedding hours later (transformers#12763).
    """
    if len(ids) and int(ids.max()) >= vocabulary_size:
        raise InputError(
            f"{where}: token id {int(ids.max())} lies outside the vocabulary of {vocabulary_size} entries: "
            "the tokenizer's files contradict one another (added tokens beyond the model's size?)"
        )
    return ids.astype(dtype_of(vocabulary_size), copy=False)


def map_tokens(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    """The ids of a .bin as a read-only memory map.

    Raises:
        InputError: the file is missing or its size is no multiple of an id's.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise InputError(
            f"{path} is missing, but the manifest beside it names it: run the stage again"
        ) from None
    if size % dtype.itemsize:
        raise InputError(
            f"{path} holds {size} bytes, no multiple of the {dtype.itemsize} of an id: it was cut off"
        )
    return np.memmap(path, dtype, "r") if size else np.empty(0, dtype)


def write_index(path: Path, table: pa.Table) -> None:
    """Write the documents of a shard as an Arrow IPC file."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def map_index(path: Path) -> pa.Table:
    """The documents of a shard, without reading them before they are looked at.

    Raises:
        InputError: the file is missing or no whole Arrow file.
    """
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise InputError(f"{path} cannot be read ({error}): run the stage that writes it again") from None


def read_manifest(folder: Path) -> dict[str, Any]:
    """manifest.json of a folder of token shards.

    Raises:
        InputError: it is missing or not JSON.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = read_json(path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: run the stages tokenize and split first") from None
    except ValueError as error:
        raise InputError(f"{path} is not whole JSON ({error}): run the stage that writes it again") from None
    return manifest
