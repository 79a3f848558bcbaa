"""One word, five places: stage, file, section, params class, test file; and dvc.yaml says what the code does."""

import inspect
import re
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from flows.code_deps import STARTED_BY_NAME, code_dependencies
from tasks.__main__ import MODULES, STAGES, keys_read, stage_function
from tasks.kit.errors import ParamsError
from tasks.kit.paths import Paths
from tasks.params.base import Section
from tasks.params.tree import SECTIONS, Params, default_params, load_params, override_params, parse_params

ROOT = Path(__file__).resolve().parents[1]
DECLARED: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


def test_dvc_yaml_declares_exactly_the_stages_in_order() -> None:
    assert tuple(DECLARED) == STAGES


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_its_file_section_class_and_test(stage: str) -> None:
    module = ROOT / "tasks" / f"{MODULES.get(stage, stage)}.py"
    assert module.is_file()
    assert callable(stage_function(stage))
    section = SECTIONS[stage]
    assert section.__name__ == f"{stage.capitalize()}Params"
    assert section.__module__ == f"tasks.params.{stage}"
    assert (ROOT / "tests" / "tasks" / f"test_{stage}.py").is_file()
    assert DECLARED[stage]["cmd"] == f"exec python -m tasks {stage}"


def test_every_stage_file_is_a_stage() -> None:
    files = {path.stem for path in (ROOT / "tasks").glob("*.py")} - {"__init__", "__main__"}
    assert files == {MODULES.get(stage, stage) for stage in STAGES}


def test_no_file_hides_a_module_of_the_standard_library() -> None:
    """A file of such a name breaks every script that is run by path from its folder.

    tasks/params/tokenize.py is the one exception: the section carries the stage's name, and no file of that folder
    is a script.
    """
    names = {
        path.relative_to(ROOT) for package in ("tasks", "flows") for path in (ROOT / package).rglob("*.py")
    }
    hiding = {path.as_posix() for path in names if path.stem in sys.stdlib_module_names}
    assert hiding <= {"tasks/params/tokenize.py"}


def test_what_a_stage_starts_by_name_is_in_its_code_dependencies() -> None:
    """The import graph shows no edge to a module that is started with `python -m`."""
    no_result = {
        "tasks.kit.object_store_server",  # a server; what it holds is in the listing's digests
        "tasks.text.sample_corpus",  # fills the sample bucket; what it makes is in the listing's digests
    }
    started = {root for roots in STARTED_BY_NAME.values() for root in roots}
    named = {
        name
        for path in (ROOT / "tasks").rglob("*.py")
        for name in re.findall(r'"(tasks\.[a-z_.]+)"', path.read_text())
        if (ROOT / name.replace(".", "/")).with_suffix(".py").exists()
    }
    assert named == started | no_result


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_reads_only_the_sections_that_it_declares(stage: str) -> None:
    assert keys_read(stage_function(stage)) == set(DECLARED[stage]["params"])


@pytest.mark.parametrize("stage", STAGES)
def test_every_argument_of_a_stage_is_a_section_or_the_paths(stage: str) -> None:
    function = stage_function(stage)
    hints = get_type_hints(function)
    for argument in inspect.signature(function).parameters:
        assert hints[argument] is Paths or issubclass(hints[argument], Section)


@pytest.mark.parametrize("stage", STAGES)
def test_code_dependencies_cover_the_import_closure(stage: str) -> None:
    declared = [dependency for dependency in DECLARED[stage]["deps"] if dependency.endswith(".py")]
    assert declared == code_dependencies(stage), "run `make deps`"


def test_what_a_stage_reads_is_an_output_of_one_before_it() -> None:
    made: set[str] = set()
    for stage, declared in DECLARED.items():
        read = {dependency for dependency in declared["deps"] if not _is_source(dependency)}
        assert read <= made, f"{stage} reads what no stage before it writes"
        made |= set(declared.get("outs", [])) | {f"data/metrics/{stage}.json"}


def _is_source(dependency: str) -> bool:
    return dependency.startswith(("tasks/", "data/expectations"))


def test_outputs_are_the_paths_of_the_code() -> None:
    paths = Paths()
    declared = {out for stage in DECLARED.values() for out in stage.get("outs", [])}
    in_code = {
        getattr(paths, name).as_posix()
        for name, member in inspect.getmembers(Paths)
        if isinstance(member, property) and getattr(paths, name).as_posix().startswith("data/")
    } - {paths.expectations.as_posix()}  # source, not output
    assert declared == in_code
    for stage in STAGES:
        (metrics,) = DECLARED[stage]["metrics"]
        name = paths.metrics(stage).as_posix()
        # Restored from no cache (`persist` keeps a stage out of the run cache): the registry may not have that version.
        assert metrics == ({name: {"cache": False, "persist": True}} if stage == "register" else name)


def test_params_yaml_lists_every_field_with_its_doc_at_its_default() -> None:
    assert load_params(ROOT / "params.yaml") == default_params()
    values = yaml.safe_load((ROOT / "params.yaml").read_text())
    assert values == default_params().as_dict()


def test_params_survive_a_round_trip() -> None:
    text = yaml.safe_dump(default_params().as_dict())
    assert parse_params(text, "params.yaml") == default_params()


def test_every_field_has_a_doc() -> None:
    def check(section: type[Section]) -> None:
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name} has no doc"
            if inspect.isclass(field.annotation) and issubclass(field.annotation, Section):
                check(field.annotation)

    for section in SECTIONS.values():
        check(section)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "train: {learning_rat: 1}",
            "params.yaml:1: train.learning_rat: no such key; did you mean 'learning_rate'?",
        ),
        ("spilt: {}", "params.yaml:1: spilt: no such section; did you mean 'split'?"),
        (
            "train:\n  model:\n    hidden_sze: 3",
            "params.yaml:3: train.model.hidden_sze: no such key; did you mean",
        ),
        ("train: {}\ntrain: {}", "params.yaml:2: train: given twice (first on line 1)"),
        ("train: {epochs: many}", "params.yaml:1: train.epochs: input should be a valid number"),
        (
            "dedupe: {threshold: 2}",
            "params.yaml:1: dedupe.threshold: input should be less than or equal to 1, found 2",
        ),
        ("split: {train: 0.9}", "train + validation + test must be 1, found 1.05"),
        ("[1, 2]", "must hold one section a stage"),
        ("train: {", "is not valid YAML"),
    ],
)
def test_a_wrong_params_file_is_refused_by_line_and_key(text: str, expected: str) -> None:
    with pytest.raises(ParamsError, match=re.escape(expected)):
        parse_params(text, "params.yaml")


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ParamsError, match="2 problems"):
        parse_params("train: {epoch: 1}\nclean: {min_character: 1}", "params.yaml")


def test_a_number_that_yaml_reads_as_text_becomes_a_number() -> None:
    assert parse_params("train: {learning_rate: 1e-5}", "params.yaml").train.learning_rate == 1e-5


def test_an_override_keeps_the_comments(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text((ROOT / "params.yaml").read_text())
    assert override_params(path, ["train.learning_rate=2e-3", "clean.min_characters=80"]) == [
        "train.learning_rate: 0.005 -> 2e-3"
    ]
    assert load_params(path).train.learning_rate == 2e-3
    assert "# Peak learning rate." in path.read_text()


@pytest.mark.parametrize(
    "override", ["train.learning_rat=1", "nothing=1", "train.epochs", "train.epochs=-1", "train.epochs.x=1"]
)
def test_a_wrong_override_changes_nothing(tmp_path: Path, override: str) -> None:
    path = tmp_path / "params.yaml"
    text = (ROOT / "params.yaml").read_text()
    path.write_text(text)
    with pytest.raises(ParamsError):
        override_params(path, [override])
    assert path.read_text() == text


def test_sections_stand_in_the_order_of_the_dag() -> None:
    assert tuple(SECTIONS) == (*STAGES, "runtime")
    assert list(Params.__dataclass_fields__) == list(SECTIONS)
