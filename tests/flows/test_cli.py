"""The command line: quick to answer, strict about its input, exit codes that scripts can rely on."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
HEAVY = ("prefect", "dvc", "mlflow", "torch", "pydantic", "yaml", "great_expectations", "boto3")


def test_help_imports_nothing_heavy() -> None:
    """What keeps it under half a second; the time itself is measured in benchmarks, not asserted."""
    code = (
        "import sys, flows.cli\n"
        "try: flows.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "[]"
    for command in ("run", "plan", "doctor", "params", "demo", "ui", "adopt"):
        assert f"\n    {command} " in result.stdout


def test_plan_exits_0_with_nothing_to_do_and_10_with_work(done: Path, train_llm: Run) -> None:
    assert train_llm(done, "plan").returncode == 0
    result = train_llm(done, "plan", "-S", "evaluate.seed=8", "--json")
    assert result.returncode == 10
    assert json.loads(result.stdout)["work_to_do"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "lefft"), "dvc.yaml has no stage 'lefft'; did you mean 'left'?"),
        (("run", "lefft"), "dvc.yaml has no stage 'lefft'; did you mean 'left'?"),
        (("plan", "-S", "evaluate.sed=8"), "evaluate has no 'sed'; did you mean 'seed'?"),
        (("run", "-S", "evaluate.sed=8"), "evaluate has no 'sed'; did you mean 'seed'?"),
        (("run", "-S", "evaluate.seed=x"), "evaluate.seed"),
        (("run", "-S", "evaluate.seed"), "is not of the form section.key=value"),
        (("adopt", "nothing"), "there is no run 'nothing'; the last are: none"),
        (("adopt", "../x"), "there is no run '../x'"),
    ],
)
def test_a_wrong_argument_is_one_message_and_exit_code_2(
    toy: Path, train_llm: Run, arguments: tuple[str, ...], message: str
) -> None:
    before = (toy / "params.yaml").read_bytes()
    result = train_llm(toy, *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert (toy / "params.yaml").read_bytes() == before


def test_outside_of_a_project_it_says_so_with_exit_code_3(tmp_path: Path, train_llm: Run) -> None:
    result = train_llm(tmp_path, "plan")
    assert result.returncode == 3
    assert "no dvc.yaml in" in result.stderr


def test_it_works_from_a_folder_inside_the_project(done: Path, train_llm: Run) -> None:
    assert train_llm(done / "data", "plan").returncode == 0


def test_params_prints_every_section_and_a_schema_that_params_yaml_fits(
    toy: Path, train_llm: Run, tmp_path: Path
) -> None:
    assert "bootstrap_resamples: 1000" in train_llm(toy, "params").stdout
    schema = tmp_path / "schema.json"
    schema.write_text(train_llm(toy, "params", "--schema").stdout)
    check = Path(sys.executable).parent / "check-jsonschema"
    command = [str(check), "--schemafile", str(schema)]
    fits = subprocess.run([*command, str(ROOT / "params.yaml")], capture_output=True, text=True)
    assert fits.returncode == 0, fits.stdout
    broken = tmp_path / "broken.yaml"
    broken.write_text("evaluate: {sed: 8}\n")
    assert subprocess.run([*command, str(broken)], capture_output=True).returncode == 1


def test_doctor_finds_a_wrong_parameter_and_an_unreachable_server(toy: Path, train_llm: Run) -> None:
    variables = {"PREFECT_API_URL": "http://127.0.0.1:9/api"}
    text = (toy / "params.yaml").read_text()
    (toy / "params.yaml").write_text(text.replace("object_store: aws", "object_store: http://127.0.0.1:9"))
    result = train_llm(toy, "doctor", "--json", variables=variables)
    assert result.returncode == 3
    findings = {finding["subject"]: finding for finding in json.loads(result.stdout)}
    assert findings["prefect"]["verdict"] == "fail"
    assert findings["object store"]["verdict"] == "fail"
    assert findings["params.yaml"]["verdict"] == "ok"
    assert "unset it" in findings["prefect"]["repair"]
    assert not (toy / ".state" / "host").exists(), "it only looks"


def test_a_fault_of_ours_is_said_to_be_one_with_its_traceback(toy: Path, train_llm: Run) -> None:
    (toy / "params.yaml").unlink()
    (toy / "params.yaml").mkdir()
    result = train_llm(toy, "params")
    assert result.returncode == 1
    assert "IsADirectoryError" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("train-llm: error: this is a fault of train-llm")
