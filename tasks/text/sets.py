"""The shingle sets of many shards as one array on disk, and the Jaccard similarity of two of them."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.text.compiled import compiled


class Sets(NamedTuple):
    """`values[starts[i]:ends[i]]` is the i-th set, sorted; `values` is a memory map."""

    values: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


@contextlib.contextmanager
def lay_out_sets(paths: Sequence[Path], target: Path) -> Iterator[Sets]:
    """The sets of Arrow files (column `shingles`), one file after the other, mapped from the temporary file `target`.

    Sets take more room than their texts (8 bytes a word), so they never lie in memory all at once.
    """
    lengths: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with target.open("wb") as file:
            file.write(bytes(8))  # an empty file cannot be mapped
            for path in paths:
                with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
                    for index in range(reader.num_record_batches):
                        column = reader.get_batch(index)["shingles"]
                        file.write(np.ascontiguousarray(column.flatten().to_numpy()).data)
                        lengths.append(np.diff(column.offsets.to_numpy()))
        sizes = np.concatenate(lengths)
        ends = np.cumsum(sizes) + 1
        yield Sets(np.asarray(np.memmap(target, np.uint64, "r")), ends - sizes, ends)
    finally:
        target.unlink(missing_ok=True)


@compiled
def jaccard(values, start, end, other_start, other_end, least):  # type: ignore[no-untyped-def]
    """Jaccard similarity of two sorted sets; -1 where their sizes alone hold it below `least`."""
    size, other_size = end - start, other_end - other_start
    if not min(size, other_size) or min(size, other_size) / max(size, other_size) < least:
        return -1.0
    common = 0
    while start < end and other_start < other_end:
        first, second = values[start], values[other_start]
        common += first == second
        start += first <= second
        other_start += second <= first
    return common / (size + other_size - common)
