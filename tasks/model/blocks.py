"""The packed blocks of one side of the split, memory-mapped: what train, evaluate and quantize read."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.kit.errors import InputError
from tasks.kit.files import json_digest
from tasks.model.token_files import dtype_of, map_tokens, read_manifest
from tasks.text.sides import SIDES

if TYPE_CHECKING:
    import datasets

_MASK_ROWS = 1024


class Blocks:
    """Fixed blocks of token ids of one side, in the order of the shards; nothing is read before it is needed.

    Attributes:
        block_size: tokens of a block.
        manifest: the split's manifest.json (dtype, block_size, vocabulary_size, tokenizer_digest,
            end_of_document_id, sides).
        shards: one read-only array (blocks, block_size) a shard.
    """

    def __init__(self, shards: list[np.ndarray], manifest: dict[str, Any], folder: Path) -> None:
        self.shards = shards
        self.manifest = manifest
        self.folder = folder
        self.block_size: int = manifest["block_size"]
        self._starts = np.cumsum([0, *(len(shard) for shard in shards)])

    @classmethod
    def open(cls, split: Path, side: str) -> "Blocks":
        """The blocks of `side` (train, validation or test) below the folder of the split.

        Raises:
            InputError: a file is missing or does not have the size that the manifest says.
        """
        if side not in SIDES:
            raise InputError(f"no side {side!r} in {split}; there are {', '.join(SIDES)}")
        manifest = read_manifest(split)
        block_size, dtype = manifest["block_size"], dtype_of(manifest["vocabulary_size"])
        shards = []
        for entry in manifest["sides"][side]["shards"]:
            path = split / side / f"{entry['name']}.bin"
            tokens = map_tokens(path, dtype)
            if len(tokens) != entry["tokens"] or len(tokens) % block_size:
                raise InputError(
                    f"{path} holds {len(tokens):,} tokens, the manifest says {entry['tokens']:,} in blocks "
                    f"of {block_size}: it was cut off or belongs to another split; run the stage split again"
                )
            shards.append(tokens.reshape(-1, block_size))
        return cls(shards, manifest, split / side)

    def __len__(self) -> int:
        """Number of blocks."""
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> np.ndarray:
        """Block `index` as a view of the file (uint16 or uint32), without a copy."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        position = index % len(self)
        shard = int(np.searchsorted(self._starts, position, side="right")) - 1
        return self.shards[shard][position - self._starts[shard]]

    def gather(self, indices: np.ndarray) -> np.ndarray:
        """The blocks at `indices` (n,) as int64 (n, block_size), in that order: one copy, ready for torch."""
        indices = np.asarray(indices, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"blocks {indices.min()} to {indices.max()} of {len(self)}")
        result = np.empty((len(indices), self.block_size), np.int64)
        owners = np.searchsorted(self._starts, indices, side="right") - 1
        for shard in np.unique(owners):
            rows = np.flatnonzero(owners == shard)
            result[rows] = self.shards[shard][indices[rows] - self._starts[shard]]
        return result

    def as_dataset(self) -> "datasets.Dataset":
        """A `datasets.Dataset` (input_ids, attention_mask) whose ids are the mapped files themselves.

        The mask is all ones (packed blocks have no padding), and one small buffer stands for all of it.
        """
        import datasets
        import pyarrow as pa

        value_type = pa.from_numpy_dtype(self.manifest["dtype"])
        ids = [self._arrow_list(shard.reshape(-1), value_type) for shard in self.shards]
        whole = self._arrow_list(np.ones(_MASK_ROWS * self.block_size, np.int8), pa.int8())
        mask = [
            whole.slice(0, min(_MASK_ROWS, len(self) - start)) for start in range(0, len(self), _MASK_ROWS)
        ]
        columns = {
            "input_ids": pa.chunked_array(ids, pa.list_(value_type, self.block_size)),
            "attention_mask": pa.chunked_array(mask, pa.list_(pa.int8(), self.block_size)),
        }
        # Without a fingerprint datasets would pickle the whole table to hash it.
        fingerprint = json_digest([self.manifest, self.folder.name])[:16]
        return datasets.Dataset(datasets.table.InMemoryTable(pa.table(columns)), fingerprint=fingerprint)

    def _arrow_list(self, flat: np.ndarray, value_type: Any) -> Any:
        import pyarrow as pa

        values = pa.Array.from_buffers(value_type, len(flat), [None, pa.py_buffer(flat)])
        return pa.FixedSizeListArray.from_arrays(values, self.block_size)
