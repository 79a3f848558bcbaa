"""What the plan says of each stage, on the small project."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.forecast import as_json, as_text, planned_with
from flows.graph import PlannedStage, plan
from tasks.kit.errors import EnvironmentProblem, ParamsError
from tasks.params.tree import override_params

CHANGE = "evaluate.seed=8"


def verdicts(stages: tuple[PlannedStage, ...]) -> dict[str, str]:
    return {stage.name: stage.verdict for stage in stages}


def test_nothing_to_do_after_a_whole_run(done: Path) -> None:
    assert verdicts(plan(done)) == {
        "list": "always",
        "words": "fresh",
        "left": "fresh",
        "right": "fresh",
        "end": "fresh",
    }


def test_everything_has_work_in_a_fresh_clone(toy: Path) -> None:
    stages = plan(toy)
    assert set(verdicts(stages).values()) == {"run"}
    assert stages[1].reasons == ("never ran here: dvc.lock has no entry",)


def test_a_changed_parameter_names_both_values_and_what_follows(done: Path) -> None:
    override_params(done / "params.yaml", [CHANGE])
    stages = {stage.name: stage for stage in plan(done)}
    assert stages["left"].verdict == "run"
    assert stages["left"].reasons == ("evaluate.seed: 7 -> 8",)
    assert stages["end"].verdict == "follows"
    assert stages["end"].reasons == ("follows left",)
    assert stages["right"].verdict == "fresh"


def test_an_override_is_planned_without_being_written(done: Path) -> None:
    before = (done / "params.yaml").read_bytes()
    assert verdicts(planned_with(done, None, [CHANGE]))["left"] == "run"
    assert (done / "params.yaml").read_bytes() == before
    assert verdicts(plan(done))["left"] == "fresh"


def test_going_back_to_an_earlier_value_is_restored_from_the_run_cache(
    done: Path, repro: Callable[..., None]
) -> None:
    override_params(done / "params.yaml", [CHANGE])
    repro(done)
    override_params(done / "params.yaml", ["evaluate.seed=7"])
    assert verdicts(plan(done))["left"] == "restore"


def test_a_parameter_that_was_taken_away_counts_as_a_change(done: Path) -> None:
    path = done / "params.yaml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "bootstrap_resamples:" not in line))
    left = next(stage for stage in plan(done) if stage.name == "left")
    assert left.reasons == ("evaluate.bootstrap_resamples: 1000 -> absent",)


def test_a_changed_file_a_missing_output_and_a_changed_command_are_named(done: Path) -> None:
    (done / "work.py").write_text((done / "work.py").read_text() + "# changed\n")
    (done / "data" / "right.txt").unlink()
    text = (done / "dvc.yaml").read_text()
    (done / "dvc.yaml").write_text(text.replace("python work.py end", "python -u work.py end"))
    reasons = {stage.name: stage.reasons for stage in plan(done)}
    assert "work.py: modified" in reasons["words"]
    assert "output data/right.txt: missing" in reasons["right"]
    assert "its command in dvc.yaml changed" in reasons["end"]


def test_a_target_brings_what_it_needs_and_nothing_else(done: Path) -> None:
    assert [stage.name for stage in plan(done, ["left"])] == ["list", "words", "left"]


def test_an_unknown_target_is_refused_with_the_near_name(done: Path) -> None:
    with pytest.raises(ParamsError, match="no stage 'rihgt'; did you mean 'right'"):
        plan(done, ["rihgt"])


def test_an_unknown_meta_key_is_refused(done: Path) -> None:
    text = (done / "dvc.yaml").read_text()
    (done / "dvc.yaml").write_text(text.replace("retries: 1", "retry: 1"))
    with pytest.raises(ParamsError, match=r"stage list: meta\.retry is unknown; valid are retries"):
        plan(done)


def test_a_broken_dvc_yaml_is_a_message_with_its_cause(done: Path) -> None:
    (done / "dvc.yaml").write_text("stages:\n  a:\n    cmd: true\n    deps: 1\n")
    with pytest.raises(ParamsError, match=r"dvc\.yaml"):
        plan(done)


def test_a_folder_without_dvc_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no DVC project"):
        plan(tmp_path)


def test_the_table_and_the_json_say_the_same(done: Path) -> None:
    stages = planned_with(done, None, [CHANGE])
    told = as_json(stages)
    assert told["work_to_do"] is True
    assert [stage["stage"] for stage in told["stages"]] == [stage.name for stage in stages]
    assert "evaluate.seed: 7 -> 8" in as_text(stages)
    assert "2 of 5 stages have work" in as_text(stages)
    assert as_text(plan(done)).endswith("Nothing to do: every stage is up to date.")
