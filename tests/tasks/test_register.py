"""Registering real models in a real store: lineage, the gate, no doubles, no secret."""

import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tasks.evaluate import evaluate
from tasks.kit.errors import EnvironmentProblem, GateError
from tasks.kit.files import folder_digest, read_json, write_json
from tasks.kit.model_registry import open_registry
from tasks.kit.paths import Paths
from tasks.kit.tracking import open_run, store
from tasks.params.evaluate import EvaluateParams
from tasks.params.register import RegisterParams
from tasks.params.runtime import RuntimeParams
from tasks.params.train import TrainParams
from tasks.register import RegisterFigures, dvc_lock_digest, register

ROOT = Path(__file__).resolve().parents[2]
EVALUATE = EvaluateParams(num_continuations=0, num_samples=0, prompt_tokens=8, continuation_tokens=8)


def judge_and_write(paths: Paths) -> None:
    """Run evaluate and write what the stages between it and register leave."""
    write_json(paths.metrics("evaluate"), dataclasses.asdict(evaluate(EVALUATE, RuntimeParams(), paths)))


@pytest.fixture
def project(project_copy: Paths) -> Paths:
    """A trained, evaluated project with one accepted and one refused format."""
    shutil.copyfile(ROOT / "params.yaml", project_copy.params)
    shutil.copyfile(ROOT / "dvc.yaml", project_copy.dvc_yaml)
    judge_and_write(project_copy)
    (project_copy.quantized / "int8").mkdir(parents=True)
    (project_copy.quantized / "int8" / "model.onnx").write_bytes(b"weights of the accepted format")
    formats = {
        "int8": {"bytes": 30, "perplexity_increase": 0.001, "verdict": "accepted"},
        "int4": {"bytes": 20, "perplexity_increase": 0.2, "verdict": "refused"},
    }
    write_json(project_copy.metrics("quantize"), {"formats": formats})
    write_json(project_copy.metrics("train"), {"steps": 150, "final_train_loss": 3.2})
    write_json(project_copy.metrics("validate"), {"success": True})
    write_json(project_copy.snapshot_manifest, {"source": "s3://corpus", "objects": [], "digest": "d" * 32})
    return project_copy


def run(paths: Paths, **changed: object) -> RegisterFigures:
    return register(RegisterParams(**changed), RuntimeParams(), paths)  # type: ignore[arg-type]


def test_the_first_model_becomes_champion_with_its_files_figures_and_lineage(
    project: Paths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DEMO_SECRET_KEY", "planted-secret")
    text = project.params.read_text().replace("s3://corpus/sample/", "s3://planted-secret/sample/")
    project.params.write_text(text)
    figures = run(project)
    assert (figures.version, figures.aliases, figures.new_version) == ("1", ["candidate", "champion"], True)
    assert figures.lineage["object_manifest_digest"] == "d" * 32
    assert figures.lineage["model_digest"] == folder_digest(project.model)
    with open_registry(project, "train-llm") as registry:
        champion = registry.by_alias("champion")
        assert champion is not None and champion.tags["gate_verdict"] == "promote"
        assert champion.tags["split_digest"] == figures.lineage["split_digest"]
        fetched = registry.fetch_model(champion, tmp_path)
        assert folder_digest(fetched) == folder_digest(project.model)
    with store(project) as (client, _):
        model = client.get_logged_model(Path(champion.source).parent.name)
        assert model.params["train.learning_rate"] == str(TrainParams().learning_rate)
        logged = client.get_run(figures.run_id).data
        assert logged.metrics["train.steps"] == 150
        assert "evaluate.baselines.bigram.perplexity" in logged.metrics
    files = sorted(path for path in (project.state / "mlflow" / "artifacts").rglob("*") if path.is_file())
    assert [path.read_bytes() for path in files if path.name == "model.onnx"] == [
        b"weights of the accepted format"
    ]
    assert b"planted-secret" not in (project.state / "mlflow" / "mlflow.db").read_bytes()


def test_the_same_model_again_is_no_new_version_and_a_tie_is_not_promoted(project: Paths) -> None:
    first, again = run(project), run(project)
    assert (again.version, again.new_version) == (first.version, False)
    assert again.gate.verdict == "same"
    with store(project) as (client, _):
        assert len(client.search_model_versions("name = 'train-llm'")) == 1


def test_a_worse_model_is_candidate_only_and_a_better_one_takes_over(
    project: Paths, retrain: Callable[..., None]
) -> None:
    good = shutil.copytree(project.model, project.root / "good")
    shutil.rmtree(project.model)
    shutil.copytree(good, project.model)
    retrain(project, steps=60)
    judge_and_write(project)
    weak = run(project)
    assert weak.aliases == ["candidate", "champion"]
    shutil.copytree(good, project.model, dirs_exist_ok=True)
    judge_and_write(project)
    better = run(project)
    assert better.gate.verdict == "promote" and better.champion_version == weak.version
    assert better.aliases == ["candidate", "champion"]
    assert better.gate.interval is not None and better.gate.interval[1] < 0
    expected = read_json(project.metrics("evaluate"))["bits_per_byte"]
    assert better.gate.candidate_bits_per_byte == pytest.approx(expected)
    retrain(project, steps=61)
    judge_and_write(project)
    worse = run(project)
    assert (worse.gate.verdict, worse.aliases) == ("refuse", ["candidate"])
    with open_registry(project, "train-llm") as registry:
        champion, refused = registry.by_alias("champion"), registry.by_alias("candidate")
        assert champion is not None and champion.number == better.version
        assert refused is not None and refused.tags["gate_verdict"] == "refuse"


def test_a_champion_with_another_tokenizer_is_compared_on_the_same_bytes(project: Paths) -> None:
    """The other tokenizer has the same ids under another digest, so the translated text must score the same."""
    first = run(project)
    with open_registry(project, "train-llm") as registry:
        champion = registry.by_alias("champion")
        assert champion is not None
        registry.set_tags(champion, {"tokenizer_digest": "other", "model_digest": "other"})
    again = run(project)
    assert again.version != first.version
    assert again.gate.champion_bits_per_byte == pytest.approx(again.gate.candidate_bits_per_byte, rel=0.02)
    assert again.gate.verdict != "same"


def test_a_model_no_better_than_untrained_is_not_registered(project: Paths) -> None:
    with pytest.raises(GateError, match=r"min_improvement_over_untrained"):
        run(project, min_improvement_over_untrained=0.9)
    assert not (project.state / "mlflow").exists()


def test_a_champion_whose_files_are_gone_is_named_and_nothing_is_promoted(
    project: Paths, retrain: Callable[..., None]
) -> None:
    run(project)
    shutil.rmtree(project.state / "mlflow" / "artifacts")
    retrain(project, steps=60)
    judge_and_write(project)
    with pytest.raises(EnvironmentProblem, match=r"version 1 of train-llm.*delete the alias"):
        run(project)


def test_eight_registrations_at_once_give_eight_versions_each_with_its_own_run(project: Paths) -> None:
    with store(project):
        pass

    def one(number: int) -> tuple[str, str]:
        with (
            open_registry(project, "crowd") as registry,
            open_run(project, "register", f"key-{number}") as opened,
        ):
            version = registry.create(opened, {}, {}, {"model_digest": str(number)})
            registry.set_alias(f"of-{number}", version)
            return version.number, opened.run_id

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(one, range(8)))
    assert sorted(int(number) for number, _ in made) == list(range(1, 9))
    with store(project) as (client, _):
        for index, (number, run_id) in enumerate(made):
            found = client.get_model_version_by_alias("crowd", f"of-{index}")
            assert (str(found.version), found.run_id) == (number, run_id)


def test_the_lock_s_digest_follows_the_stages_before_register_only(project: Paths) -> None:
    assert dvc_lock_digest(project) == "none"
    stages = {name: {"outs": [{"md5": name}]} for name in ("split", "train", "register", "report")}
    project.dvc_lock.write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))
    before = dvc_lock_digest(project)
    stages["register"] = stages["report"] = {"outs": [{"md5": "new"}]}
    project.dvc_lock.write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))
    assert dvc_lock_digest(project) == before
    stages["split"] = {"outs": [{"md5": "new"}]}
    project.dvc_lock.write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))
    assert dvc_lock_digest(project) != before


def test_the_commit_and_uncommitted_changes_are_recorded(project: Paths) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        command = ["git", "-C", str(project.root), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", "params.yaml")
    git("commit", "-q", "-m", "First")
    assert run(project).lineage["git_commit"] == git("rev-parse", "HEAD")
    assert run(project).lineage["git_dirty"] == "false"
    project.params.write_text(project.params.read_text() + "# edited\n")
    assert run(project).lineage["git_dirty"] == "true"
