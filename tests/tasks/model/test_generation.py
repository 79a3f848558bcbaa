"""BLEU and ROUGE in every script, and generation that repeats."""

from pathlib import Path

import numpy as np
import pytest

from tasks.model.blocks import Blocks
from tasks.model.generation import bleu, bleu_tokenizer, document_openings, generate, rouge
from tasks.model.saved_model import load_model

CHINESE = ["话说天下大势，分久必合，合久必分。", "周末七国分争，并入于秦。"]


@pytest.mark.parametrize(
    ("texts", "name"),
    [
        (["the cat sat on the mat today"], "13a"),
        (CHINESE, "zh"),
        (["むかしむかし、おじいさんがいました。"], "char"),
        (["Die Größe ändert sich nicht sehr"], "13a"),
    ],
)
def test_equal_texts_score_100_with_the_tokenizer_that_their_script_needs(
    texts: list[str], name: str
) -> None:
    assert bleu_tokenizer(texts) == name
    assert bleu(texts, texts, name) == pytest.approx(100)
    assert rouge(texts, texts) == {"rouge1": 1.0, "rougeL": 1.0}


def test_rouge_counts_characters_of_chinese_and_words_of_cyrillic() -> None:
    half = rouge(["天下大势"], ["天下分合"])
    assert half["rouge1"] == pytest.approx(0.5)
    assert rouge(["привет мир"], ["привет всем"])["rouge1"] == pytest.approx(0.5)
    assert rouge(["b a"], ["a b"]) == {"rouge1": 1.0, "rougeL": 0.5}


def test_samples_repeat_with_the_seed_and_stop_before_the_end_of_document(trained_project: Path) -> None:
    model = load_model(trained_project / "data" / "train" / "model")
    starts = np.zeros((2, 1), np.int64)
    first, second, other = (generate(model, starts, 40, 0, temperature=1.0, seed=s) for s in (1, 1, 2))
    assert first == second != other
    assert all(0 not in ids and len(ids) <= 40 for ids in first)


def test_a_document_that_goes_on_in_a_second_shard_opens_only_once(trained_project: Path) -> None:
    blocks = Blocks.open(trained_project / "data" / "split", "test")
    everything = document_openings(blocks, 1000, 8, 8)
    few = document_openings(blocks, 3, 8, 8)
    ids = [opening.id for opening in everything]
    assert len(ids) == len(set(ids)) > 3
    assert [opening.id for opening in few] == [ids[0], few[1].id, ids[-1]]
    assert document_openings(blocks, 0, 8, 8) == []
