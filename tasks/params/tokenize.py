"""Section `tokenize` of params.yaml."""

from typing import Literal

from pydantic import Field

from tasks.params.base import Section


class TokenizeParams(Section):
    """Which tokenizer, and how it is made."""

    tokenizer: str | None = None
    """A folder or hub id of a pretrained tokenizer; none: one is trained here, on train documents only."""
    model: Literal["bpe"] = "bpe"
    """Kind of the tokenizer trained here: byte-level BPE."""
    vocabulary_size: int = Field(default=2048, ge=300, le=2**20)
    """Entries of the vocabulary, special tokens included."""
    max_training_bytes: int = Field(default=200 * 2**20, gt=0)
    """Text that the trainer sees at most: whole documents, picked by the hash of their id."""
    end_of_document: str = "<|endoftext|>"
    """Token put after each document; the same string inside a text stays text."""
    special_tokens: tuple[str, ...] = ()
    """Further special tokens."""
    fast: bool = True
    """Encode with gigatoken, checked against `tokenizers` on a sample of every shard; differs: falls back."""
