"""A byte-level BPE vocabulary from texts: GPT-2's pre-tokenizer, any text can be encoded, nothing is unknown."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.kit.files import write_atomically, write_json

PAD = "<|pad|>"


def byte_letters() -> dict[int, str]:
    """GPT-2's letter for each byte: printable Latin-1 stands for itself, the others move up from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def train_merges(texts: Sequence[str], num_entries: int, fast: bool) -> list[tuple[str, str]]:
    """Merges of a vocabulary of `num_entries` (256 bytes and the merged tokens), best first.

    gigatoken and tokenizers give the same merges, ties included (7,934 of 7,934 on 9 MB of English, Chinese and
    code), until the pairs left occur once: there tokenizers stops earlier. gigatoken needs a sixth of the time.
    Fewer come back when the texts hold no more pairs.
    """
    return _merges_by_gigatoken(texts, num_entries) if fast else _merges_by_tokenizers(texts, num_entries)


def write_bpe_tokenizer(
    folder: Path, merges: Sequence[tuple[str, str]], special_tokens: Sequence[str]
) -> None:
    """Write a folder that `AutoTokenizer.from_pretrained` loads.

    `special_tokens` take the first ids; the first of them ends documents, and begins them, as in GPT-2: a document
    follows the end of another one. No token is added on encoding. Padding is a token of its own: were it the end
    of the document, labels masked where padding is would never teach a model to stop (trl#1623).
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate(special_tokens)}
    for token in [*sorted(byte_letters().values()), *(left + right for left, right in merges)]:
        vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special_tokens]
    )
    write_atomically(folder / "tokenizer.json", tokenizer.to_str(pretty=True).encode())
    end_of_document = special_tokens[0]
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": end_of_document,
            "eos_token": end_of_document,
            "pad_token": PAD,
            "additional_special_tokens": [t for t in special_tokens if t not in (end_of_document, PAD)],
            "add_bos_token": False,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
        },
    )


def _merges_by_gigatoken(texts: Sequence[str], num_entries: int) -> list[tuple[str, str]]:
    import gigatoken

    letters = byte_letters()
    with tempfile.TemporaryDirectory() as folder, _silenced():
        path = Path(folder) / "texts.parquet"
        pq.write_table(pa.table({"text": pa.array(texts, pa.large_string())}), path, compression="none")
        source = gigatoken.ParquetFileSource([path], column="text")
        _, merges = gigatoken.train_bpe(source, num_entries, [], tie_breaking="huggingface")
    return [("".join(letters[b] for b in left), "".join(letters[b] for b in right)) for left, right in merges]


def _merges_by_tokenizers(texts: Sequence[str], num_entries: int) -> list[tuple[str, str]]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        iter(texts),
        trainers.BpeTrainer(vocab_size=num_entries, initial_alphabet=alphabet, show_progress=False),
    )
    return [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Nothing on standard output and error: gigatoken's trainer prints its progress, and cannot be told not to."""
    with contextlib.ExitStack() as stack:
        null = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, null)
        for descriptor in (1, 2):
            saved = os.dup(descriptor)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, descriptor)
            os.dup2(null, descriptor)
        yield
