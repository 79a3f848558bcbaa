"""Which side of the split a document belongs to: a pure function of its group or cluster alone.

A document's side does not depend on what else is in the corpus, so ten more documents move none of the first
thousand, and tokenize can train its vocabulary on train documents before split has placed any.
"""

import xxhash

from tasks.params.split import SidesParams

SIDES = ("train", "validation", "test")


def split_key(group: str | None, cluster: str) -> str:
    """What keeps documents together: their group where they have one, else their cluster of duplicates."""
    return group or cluster


def side_of(key: str, params: SidesParams) -> str:
    """The side of all documents with this group or cluster: the hash of (seed, key) against the shares."""
    position = xxhash.xxh3_64_intdigest(f"{params.seed}\0{key}".encode()) / 2**64
    if position < params.train:
        return "train"
    if position < params.train + params.validation:
        return "validation"
    return "test"
