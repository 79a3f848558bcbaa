"""Tokenize trains on train documents only, writes every document's ids, and gives each text back."""

import dataclasses
import json
import shutil
from pydoc_data import topics

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from tasks.kit.errors import EnvironmentProblem, InputError, ParamsError
from tasks.kit.files import file_digest, folder_digest
from tasks.kit.paths import Paths
from tasks.model.token_files import dtype_of, map_index, map_tokens, read_manifest
from tasks.params.runtime import RuntimeParams
from tasks.params.split import SplitParams
from tasks.params.tokenize import TokenizeParams
from tasks.params.tree import parse_params
from tasks.text.bpe import train_merges
from tasks.text.sides import side_of
from tasks.tokenization import tokenize

RUNTIME = RuntimeParams(num_workers=1)
PARAMS = TokenizeParams(vocabulary_size=600)
HARD_TEXTS = [
    "What <|endoftext|> means, and <|pad|>, and </s>: they end documents, but not this one.",
    "名不正,則言不順;言不順,則事不成。😀 👩‍👩‍👧 e\u0301 \u200f\u05d0 \ue000 \U00020000 \ufffd",
    "\tdef f(x):\r\n\t\treturn  x \x0b\x0c  \n\n\n",
    " leading and trailing ",
]


def document(text: str, source: str = "docs", group: str | None = None) -> dict[str, object]:
    digest = xxhash.xxh3_128_hexdigest(text.encode())
    return {
        "id": digest,
        "text": text,
        "source": source,
        "group": group,
        "characters": len(text),
        "cluster": digest[:16],
    }


def real_documents() -> list[dict[str, object]]:
    """Python's language reference, topic by topic, and texts with everything that breaks tokenizers."""
    return [document(text, "topics") for text in topics.topics.values()] + [
        document(t, "hard") for t in HARD_TEXTS
    ]


def write_shards(paths: Paths, shards: dict[str, list[dict[str, object]]]) -> None:
    paths.dedupe_documents.mkdir(parents=True, exist_ok=True)
    strings = [(name, pa.string()) for name in ("id", "source", "group", "cluster")]
    schema = pa.schema([*strings, ("text", pa.large_string()), ("characters", pa.int32())])
    for name, documents in shards.items():
        pq.write_table(pa.Table.from_pylist(documents, schema), paths.dedupe_documents / f"{name}.parquet")


def two_shards() -> dict[str, list[dict[str, object]]]:
    documents = real_documents()
    return {"0a": documents[::2], "1b": documents[1::2]}


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory):
    """The real documents in two shards, tokenized once for the tests that only look."""
    paths = Paths(tmp_path_factory.mktemp("tokenized"))
    write_shards(paths, two_shards())
    return paths, tokenize(PARAMS, SplitParams(), RUNTIME, paths)


def texts_of(paths: Paths, decode) -> dict[str, str]:
    """Each document's text from its ids alone."""
    manifest = read_manifest(paths.token_shards)
    texts = {}
    for shard in manifest["shards"]:
        ids = map_tokens(paths.token_shards / f"{shard['name']}.bin", dtype_of(manifest["vocabulary_size"]))
        start = 0
        for row in map_index(paths.token_shards / f"{shard['name']}.idx").to_pylist():
            *body, end = ids[start : row["end"]].tolist()
            assert end == manifest["end_of_document_id"] and end not in body
            texts[row["id"]] = decode(body)
            start = row["end"]
        assert start == len(ids) == shard["tokens"]
    return texts


def test_every_document_comes_back_from_its_ids(tokenized):
    from transformers import AutoTokenizer

    paths, figures = tokenized
    tokenizer = AutoTokenizer.from_pretrained(paths.tokenizer)
    texts = texts_of(paths, lambda ids: tokenizer.decode(ids, clean_up_tokenization_spaces=False))
    assert texts == {d["id"]: d["text"] for d in real_documents()}
    assert figures.round_trip == "exact" and figures.fast_path == "gigatoken"


def test_transformers_adds_no_token_and_pads_with_another_one_than_the_end(tokenized):
    from transformers import AutoTokenizer

    paths, figures = tokenized
    tokenizer = AutoTokenizer.from_pretrained(paths.tokenizer)
    assert (
        tokenizer("def f(x):")["input_ids"] == tokenizer("def f(x):", add_special_tokens=False)["input_ids"]
    )
    assert (
        tokenizer.eos_token == "<|endoftext|>" and tokenizer.eos_token_id == figures.end_of_document_id == 0
    )
    assert tokenizer.pad_token_id == 1
    assert len(tokenizer) == figures.vocabulary_size == 600


def test_figures_agree_with_the_files(tokenized):
    paths, figures = tokenized
    manifest = read_manifest(paths.token_shards)
    ids = np.concatenate([np.fromfile(p, "<u2") for p in sorted(paths.token_shards.glob("*.bin"))])
    documents = real_documents()
    characters = sum(len(d["text"]) for d in documents)
    assert figures.tokens == len(ids) == sum(figures.tokens_by_source.values())
    assert figures.max_id == ids.max() < figures.vocabulary_size
    assert figures.documents == len(documents) == sum(s["documents"] for s in manifest["shards"])
    assert figures.characters_per_token == pytest.approx(characters / (len(ids) - len(documents)), abs=1e-6)
    assert figures.unknown_rate == 0
    assert figures.tokenizer_digest == folder_digest(paths.tokenizer) == manifest["tokenizer_digest"]
    for shard in manifest["shards"]:
        assert file_digest(paths.token_shards / f"{shard['name']}.bin") == shard["digest"]
        assert file_digest(paths.token_shards / f"{shard['name']}.idx") == shard["index_digest"]
    json.dumps(dataclasses.asdict(figures), allow_nan=False)


def test_the_slow_encoder_writes_the_same_bytes(tokenized, tmp_path):
    paths, figures = tokenized
    slow = Paths(tmp_path)
    write_shards(slow, two_shards())
    slow_figures = tokenize(PARAMS.model_copy(update={"fast": False}), SplitParams(), RUNTIME, slow)
    assert slow_figures.fast_path == "tokenizers"
    assert folder_digest(slow.token_shards) == folder_digest(paths.token_shards)
    assert folder_digest(slow.tokenizer) == folder_digest(paths.tokenizer)


def test_order_of_shards_and_number_of_workers_change_nothing(tokenized, tmp_path):
    paths, figures = tokenized
    other = Paths(tmp_path)
    documents = real_documents()
    write_shards(other, {"z": documents[1::2][::-1], "y": documents[::2]})
    other_figures = tokenize(PARAMS, SplitParams(), RuntimeParams(num_workers=2), other)
    assert folder_digest(other.tokenizer) == folder_digest(paths.tokenizer)
    assert other_figures == figures
    assert file_digest(other.token_shards / "y.bin") == file_digest(paths.token_shards / "0a.bin")


def test_the_trainer_sees_train_documents_only(tokenized, tmp_path):
    paths, figures = tokenized
    documents = [d for d in real_documents() if side_of(d["cluster"], SplitParams()) == "train"]
    assert figures.train_documents_seen == len(documents) < len(real_documents())
    alone = Paths(tmp_path)
    write_shards(alone, {"train": documents})
    tokenize(PARAMS, SplitParams(), RUNTIME, alone)
    assert folder_digest(alone.tokenizer) == folder_digest(paths.tokenizer)


def test_a_cap_takes_whole_documents_by_the_hash_of_their_id(tmp_path):
    paths = Paths(tmp_path)
    write_shards(paths, two_shards())
    figures = tokenize(
        PARAMS.model_copy(update={"max_training_bytes": 50_000}), SplitParams(), RUNTIME, paths
    )
    chosen, total = 0, 0
    train = [d for d in real_documents() if side_of(d["cluster"], SplitParams()) == "train"]
    for d in sorted(train, key=lambda d: xxhash.xxh3_64_intdigest(d["id"].encode())):
        if total + len(d["text"].encode()) > 50_000:
            break
        chosen, total = chosen + 1, total + len(d["text"].encode())
    assert (figures.train_documents_seen, figures.train_bytes_seen) == (chosen, total)


def test_both_trainers_give_the_same_merges():
    texts = [*HARD_TEXTS, *list(topics.topics.values())[:40]]
    assert train_merges(texts, 5_000, fast=True) == train_merges(texts, 5_000, fast=False)


def test_trainers_part_only_when_the_pairs_left_occur_once():
    fast, slow = (train_merges(HARD_TEXTS, 600, fast) for fast in (True, False))
    assert fast[: len(slow)] == slow and len(slow) > 100


def test_an_added_shard_leaves_the_others_as_they_are(tmp_path, shared_data):
    paths = Paths(tmp_path)
    given = PARAMS.model_copy(update={"tokenizer": str(shared_data("models/tokenizers/minimind"))})
    write_shards(paths, two_shards())
    tokenize(given, SplitParams(), RUNTIME, paths)
    before = {p.name: p.stat().st_ino for p in paths.token_shards.iterdir()}
    write_shards(paths, {"2c": [document("one more document, which came later")]})
    figures = tokenize(given, SplitParams(), RUNTIME, paths)
    after = {p.name: p.stat().st_ino for p in paths.token_shards.iterdir()}
    assert {"2c.bin", "2c.idx"} == after.keys() - before.keys()
    assert all(after[name] == inode for name, inode in before.items() if name != "manifest.json")
    assert figures.documents == len(real_documents()) + 1


def test_a_given_byte_level_tokenizer_keeps_special_tokens_in_text_as_text(tmp_path, shared_data):
    paths = Paths(tmp_path)
    write_shards(paths, {"0a": real_documents()})
    folder = shared_data("models/tokenizers/minimind")
    figures = tokenize(PARAMS.model_copy(update={"tokenizer": str(folder)}), SplitParams(), RUNTIME, paths)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = texts_of(paths, lambda ids: tokenizer.decode(ids, skip_special_tokens=False))
    assert texts == {d["id"]: d["text"] for d in real_documents()}
    assert (
        figures.fast_path == "gigatoken"
        and figures.round_trip == "exact"
        and figures.train_documents_seen == 0
    )
    assert figures.end_of_document_id == tokenizer.token_to_id("<|im_end|>")


def test_the_llama_tokenizer_of_stories260k_encodes_with_its_own_end_and_bytes_for_what_it_lacks(
    tmp_path, shared_data
):
    paths = Paths(tmp_path)
    write_shards(paths, {"0a": [document("a</s>b"), document("中😀 Once upon a time")]})
    folder = shared_data("models/stories260K/hf")
    figures = tokenize(PARAMS.model_copy(update={"tokenizer": str(folder)}), SplitParams(), RUNTIME, paths)
    ids = np.fromfile(paths.token_shards / "0a.bin", "<u2").tolist()
    assert ids[:7] == [261, 504, 492, 419, 505, 430, 2]  # </s> stays text (data/README.md)
    assert figures.vocabulary_size == 512 and figures.end_of_document_id == 2
    assert figures.unknown_rate == 0 and 1 not in ids
    assert figures.round_trip == "0 of 2 sampled documents decode differently"
    assert figures.fast_path == "gigatoken"


def test_a_tokenizer_that_gigatoken_does_not_know_falls_back_and_says_so(tmp_path, shared_data, caplog):
    """minimind's vocabulary as WordPiece, which gigatoken cannot load."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path / "wordpiece"
    folder.mkdir()
    words = [
        "[UNK]",
        "[SEP]",
        *"abcdefghijklmnopqrstuvwxyz",
        *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
        "the",
    ]
    tokenizer = Tokenizer(models.WordPiece({w: n for n, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[UNK]", "[SEP]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "[SEP]", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    paths = Paths(tmp_path)
    write_shards(paths, {"0a": [document("the cat 漢 sat"), document("the [SEP] dog")]})
    figures = tokenize(PARAMS.model_copy(update={"tokenizer": str(folder)}), SplitParams(), RUNTIME, paths)
    assert (
        figures.fast_path == "tokenizers (1 of 1 shards by tokenizers: gigatoken differed or cannot load it)"
    )
    assert figures.unknown_rate > 0
    assert figures.round_trip == "2 of 2 sampled documents decode differently"
    assert "gigatoken cannot load" in caplog.text


def test_ids_beyond_uint16_take_four_bytes(tmp_path, shared_data):
    folder = tmp_path / "large"
    shutil.copytree(shared_data("models/tokenizers/minimind"), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        if token["content"] == "<|im_end|>":
            del tokenizer["model"]["vocab"][token["content"]]
            token["id"] = 70_000
            tokenizer["model"]["vocab"][token["content"]] = 70_000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    paths = Paths(tmp_path)
    write_shards(paths, {"0a": real_documents()[:5]})
    figures = tokenize(PARAMS.model_copy(update={"tokenizer": str(folder)}), SplitParams(), RUNTIME, paths)
    assert figures.vocabulary_size == 70_001 and figures.max_id == figures.end_of_document_id == 70_000
    assert read_manifest(paths.token_shards)["dtype"] == "uint32"
    texts_of(paths, lambda ids: "")


def test_a_byte_level_vocabulary_that_lacks_bytes_is_refused_by_the_document(tmp_path, shared_data):
    folder = tmp_path / "broken"
    shutil.copytree(shared_data("models/tokenizers/minimind"), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    del tokenizer["model"]["vocab"]["ð"]  # byte 0xF0, with which every emoji begins
    tokenizer["model"]["merges"] = [m for m in tokenizer["model"]["merges"] if "ð" not in "".join(m)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    paths = Paths(tmp_path)
    bad = document("smile 😀 and go on")
    write_shards(paths, {"0a": [document("nothing strange"), bad]})
    with pytest.raises(InputError, match=rf"document {bad['id']}: its ids do not decode to its text"):
        tokenize(PARAMS.model_copy(update={"tokenizer": str(folder)}), SplitParams(), RUNTIME, paths)


def test_a_tokenizer_without_an_end_is_refused(tmp_path, shared_data):
    folder = tmp_path / "endless"
    shutil.copytree(shared_data("models/stories260K/hf"), folder)
    (folder / "special_tokens_map.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    paths = Paths(tmp_path)
    write_shards(paths, {"0a": [document("some text")]})
    with pytest.raises(InputError, match="no end-of-sequence token"):
        tokenize(PARAMS.model_copy(update={"tokenizer": str(folder)}), SplitParams(), RUNTIME, paths)


def test_a_tokenizer_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    paths = Paths(tmp_path)
    write_shards(paths, {"0a": [document("some text")]})
    with pytest.raises((ParamsError, EnvironmentProblem), match=r"no/such/folder"):
        tokenize(PARAMS.model_copy(update={"tokenizer": "/no/such/folder"}), SplitParams(), RUNTIME, paths)


def test_no_document_is_an_error(tmp_path):
    paths = Paths(tmp_path)
    write_shards(paths, {"0a": []})
    with pytest.raises(InputError, match="holds no document"):
        tokenize(PARAMS, SplitParams(), RUNTIME, paths)


def test_an_empty_shard_beside_a_full_one_is_written_empty(tmp_path):
    paths = Paths(tmp_path)
    write_shards(paths, {"0a": real_documents()[:20], "1b": []})
    figures = tokenize(PARAMS, SplitParams(), RUNTIME, paths)
    assert figures.documents == 20
    assert (paths.token_shards / "1b.bin").stat().st_size == 0 and len(
        map_index(paths.token_shards / "1b.idx")
    ) == 0


def test_special_tokens_that_clash_are_refused_by_params():
    with pytest.raises(ParamsError, match=r"tokenize: special tokens must differ"):
        parse_params("tokenize: {special_tokens: ['<|user|>', '<|user|>']}", "params.yaml")
