"""Quantized folders judged from their own files: accepted when close and smaller, refused and removed otherwise."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tasks.kit.errors import InputError
from tasks.kit.files import folder_digest, read_json, write_json
from tasks.kit.paths import Paths
from tasks.model.onnx_export import GENAI, TRACED, decode_speed, export, session_logits
from tasks.model.saved_model import load_model
from tasks.model.scoring import model_logits, score_ids
from tasks.params.quantize import QuantizeParams
from tasks.params.runtime import RuntimeParams
from tasks.quantize import QuantizeFigures, ReferenceFigures, folder_bytes, judge, quantize


@pytest.fixture(scope="module")
def quantized(
    trained_project: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Paths, QuantizeFigures]:
    root = tmp_path_factory.mktemp("quantized") / "project"
    paths = Paths(shutil.copytree(trained_project, root))
    return paths, quantize(QuantizeParams(max_blocks=40), RuntimeParams(), paths)


def test_both_formats_are_close_smaller_and_measured_from_what_ships(
    quantized: tuple[Paths, QuantizeFigures],
) -> None:
    paths, figures = quantized
    assert figures.blocks == 40
    for name, limit in (("int8", 0.005), ("int4", 0.05)):
        found = figures.formats[name]
        assert (found.verdict, found.engine) == ("accepted", GENAI)
        assert abs(found.perplexity_increase) < limit
        assert found.bytes == folder_bytes(paths.quantized / name) < figures.reference.bytes
    assert figures.formats["int4"].bytes < figures.formats["int8"].bytes
    assert read_json(paths.quantized / "verdicts.json")["formats"]["int4"]["verdict"] == "accepted"


def test_the_saved_graph_scores_the_same_in_a_batch_and_alone(
    quantized: tuple[Paths, QuantizeFigures],
) -> None:
    paths, _ = quantized
    logits = session_logits(paths.quantized / "int8")
    ids = np.random.default_rng(0).integers(1, 512, (4, 64))
    together = score_ids(logits, ids)[0]
    alone = np.concatenate([score_ids(logits, ids[row : row + 1])[0] for row in range(4)])
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_the_folder_that_ships_is_served_by_its_engine(quantized: tuple[Paths, QuantizeFigures]) -> None:
    assert decode_speed(quantized[0].quantized / "int4", [5, 6, 7, 8], 16) > 0


def test_the_same_model_gives_the_same_bytes_wherever_it_is_built(
    quantized: tuple[Paths, QuantizeFigures], tmp_path: Path
) -> None:
    paths, _ = quantized
    sample = np.ones((1, 64), np.int64)
    assert export(paths.model, tmp_path / "elsewhere", "int4", sample) == GENAI
    assert folder_digest(tmp_path / "elsewhere") == folder_digest(paths.quantized / "int4")


def test_a_head_size_that_the_engine_refuses_is_traced_and_a_bad_format_does_not_ship(
    shared_data: Callable[[str], Path], project_copy: Paths
) -> None:
    shutil.rmtree(project_copy.model)
    shutil.copytree(shared_data("models/stories260K/hf"), project_copy.model)
    strict = QuantizeParams(max_blocks=10, max_perplexity_increase=0.01)
    figures = quantize(strict, RuntimeParams(), project_copy)
    assert {found.engine for found in figures.formats.values()} == {TRACED}
    assert figures.formats["int8"].verdict == "accepted"
    assert figures.formats["int4"].verdict == "refused"
    assert "max_perplexity_increase" in figures.formats["int4"].reason
    assert sorted(path.name for path in project_copy.quantized.iterdir()) == ["int8", "verdicts.json"]
    ids = np.random.default_rng(0).integers(3, 512, (2, 64))
    expected = score_ids(model_logits(load_model(project_copy.model)), ids)[0]
    np.testing.assert_allclose(
        score_ids(session_logits(project_copy.quantized / "int8"), ids)[0], expected, rtol=0.02
    )


@pytest.mark.parametrize(
    ("perplexity", "num_bytes", "verdict"),
    [
        (10.49, 500, "accepted"),
        (10.51, 500, "refused"),
        (9.0, 500, "accepted"),
        (10.0, 1000, "refused"),
        (float("nan"), 500, "refused"),
    ],
)
def test_the_verdict_follows_from_growth_and_size(perplexity: float, num_bytes: int, verdict: str) -> None:
    found = judge(GENAI, num_bytes, perplexity, ReferenceFigures(1000, 10.0), QuantizeParams())
    assert found.verdict == verdict


def test_an_empty_test_side_is_refused(project_copy: Paths) -> None:
    manifest = read_json(project_copy.split / "manifest.json")
    manifest["sides"]["test"]["shards"] = []
    write_json(project_copy.split / "manifest.json", manifest)
    with pytest.raises(InputError, match=r"split\.test"):
        quantize(QuantizeParams(), RuntimeParams(), project_copy)
