"""Evaluate on a real small model and real text: figures that are right, repeatable, and comparable."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks.evaluate import EvaluateFigures, evaluate
from tasks.kit.errors import InputError, ParamsError, StageError
from tasks.kit.files import folder_digest, read_json, write_json
from tasks.kit.paths import Paths
from tasks.params.evaluate import EvaluateParams
from tasks.params.runtime import RuntimeParams

PARAMS = EvaluateParams(num_continuations=4, prompt_tokens=24, continuation_tokens=24, num_samples=2)


@pytest.fixture(scope="module")
def evaluated(
    trained_project: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Paths, EvaluateFigures]:
    root = tmp_path_factory.mktemp("evaluated") / "project"
    paths = Paths(shutil.copytree(trained_project, root))
    return paths, evaluate(PARAMS, RuntimeParams(), paths)


def test_the_trained_model_beats_its_untrained_twin_and_the_baselines_come_in_order(
    evaluated: tuple[Paths, EvaluateFigures],
) -> None:
    _, figures = evaluated
    baselines = figures.baselines
    assert figures.perplexity < 0.7 * baselines["unigram"].perplexity
    assert (
        baselines["bigram"].perplexity < baselines["unigram"].perplexity < baselines["untrained"].perplexity
    )
    assert baselines["untrained"].test_loss == pytest.approx(np.log(512), rel=0.02)
    assert figures.next_token_accuracy > 0.1 > (baselines["untrained"].next_token_accuracy or 0)
    low, high = figures.perplexity_interval
    assert low < figures.perplexity < high


def test_the_figures_follow_from_the_losses_that_are_kept_for_the_gate(
    evaluated: tuple[Paths, EvaluateFigures],
) -> None:
    paths, figures = evaluated
    table = pq.read_table(paths.test_losses).to_pydict()
    assert table["block"] == list(range(figures.blocks))
    assert sum(table["tokens"]) == figures.tokens == figures.blocks * 63
    assert np.exp(sum(table["nats"]) / figures.tokens) == pytest.approx(figures.perplexity)
    assert sum(table["nats"]) / np.log(2) / sum(table["bytes"]) == pytest.approx(figures.bits_per_byte)


def test_continuations_begin_where_real_documents_begin(evaluated: tuple[Paths, EvaluateFigures]) -> None:
    import pydoc_data.topics

    paths, figures = evaluated
    samples = read_json(paths.evaluate_samples)
    assert figures.continuations == len(samples["continuations"]) == 4
    assert len(samples["samples"]) == 2
    texts = list(pydoc_data.topics.topics.values())
    for entry in samples["continuations"]:
        assert any(text.startswith(entry["prompt"] + entry["reference"]) for text in texts)
        assert entry["greedy"]
    assert figures.bleu_tokenizer == "13a"
    assert 0 < (figures.rouge1 or 0) < 1


def test_a_second_run_gives_the_same_bytes_and_another_batch_size_the_same_figures(
    evaluated: tuple[Paths, EvaluateFigures], trained_project: Path, tmp_path: Path
) -> None:
    paths, figures = evaluated
    for batch_size in (16, 3):
        again = Paths(shutil.copytree(trained_project, tmp_path / str(batch_size)))
        repeated = evaluate(PARAMS, RuntimeParams(evaluation_batch_size=batch_size), again)
        if batch_size == 16:
            assert folder_digest(again.data / "evaluate") == folder_digest(paths.data / "evaluate")
            assert repeated == figures
        assert repeated.perplexity == pytest.approx(figures.perplexity, rel=1e-5)
        assert repeated.next_token_accuracy == pytest.approx(figures.next_token_accuracy, abs=1e-3)


def test_an_empty_test_side_is_refused_with_the_keys_to_change(project_copy: Paths) -> None:
    manifest = read_json(project_copy.split / "manifest.json")
    manifest["sides"]["test"] = {
        "blocks": 0,
        "documents": 3,
        "tokens": 0,
        "dropped_tail_tokens": 41,
        "shards": [],
    }
    write_json(project_copy.split / "manifest.json", manifest)
    with pytest.raises(InputError, match=r"41 tokens were too few.*split\.block_size"):
        evaluate(PARAMS, RuntimeParams(), project_copy)


def test_weights_that_are_not_finite_are_refused(project_copy: Paths) -> None:
    from safetensors.torch import load_file, save_file

    file = project_copy.model / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(StageError, match="not finite"):
        evaluate(PARAMS, RuntimeParams(), project_copy)


def test_a_prompt_beyond_the_model_s_context_is_refused_by_key(project_copy: Paths) -> None:
    long = PARAMS.model_copy(update={"prompt_tokens": 60})
    with pytest.raises(
        ParamsError, match=r"evaluate\.prompt_tokens 60 .* need 84 positions, the model has 64"
    ):
        evaluate(long, RuntimeParams(), project_copy)


def test_a_split_of_a_larger_vocabulary_is_refused(project_copy: Paths) -> None:
    manifest = read_json(project_copy.split / "manifest.json")
    write_json(project_copy.split / "manifest.json", manifest | {"vocabulary_size": 600})
    with pytest.raises(InputError, match=r"embeds 512 tokens.*vocabulary of 600"):
        evaluate(PARAMS, RuntimeParams(), project_copy)


def test_figures_are_plain_json(evaluated: tuple[Paths, EvaluateFigures], tmp_path: Path) -> None:
    write_json(tmp_path / "figures.json", dataclasses.asdict(evaluated[1]))
    assert read_json(tmp_path / "figures.json")["baselines"]["bigram"]["perplexity"] > 1
