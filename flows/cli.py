"""The command `train-llm`. Nothing heavy is imported before a command needs it: `--help` answers at once."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tasks.kit.errors import EnvironmentProblem, TrainLLMError
from tasks.kit.processes import bypass_proxies_on_loopback, stop_on_sigterm

NOTHING_TO_DO, WORK_TO_DO = 0, 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code: 0, 1 a stage failed, 2 a parameter is wrong, 3 the environment is."""
    parser = _parser()
    options = parser.parse_args(arguments)
    command: Callable[[argparse.Namespace], int] | None = getattr(options, "command", None)
    if command is None:
        parser.print_help()
        return 2
    _put_interpreter_first_on_path()
    bypass_proxies_on_loopback()
    stop_on_sigterm()  # as Ctrl-C: what was started is stopped. Prefect sends itself the signal again at its end
    try:
        root = project_root(Path.cwd())
        os.chdir(root)
        return command(options)
    except TrainLLMError as error:
        return _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _complain("interrupted; `train-llm run` goes on where this stopped", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:
        return _complain_of_ourselves()


def project_root(start: Path) -> Path:
    """The nearest folder at or above `start` with a dvc.yaml.

    Raises:
        EnvironmentProblem: there is none.
    """
    for folder in (start, *start.parents):
        if (folder / "dvc.yaml").exists():
            return folder
    raise EnvironmentProblem(f"no dvc.yaml in {start} or above: run from inside the project")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="train-llm",
        description="From text in object storage to a language model: one DAG of versioned, gated stages.",
        epilog="Exit codes: 0 done, 1 a stage failed, 2 a parameter is wrong, 3 the environment is. "
        "`plan`: 10 when there is work.",
    )
    parser.add_argument("--version", action="version", version=f"train-llm {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=command)
        return added

    for name, command, text in (
        ("run", _run, "bring every stage (or STAGE and what it needs) up to date"),
        ("plan", _plan, "show what a run would do, and why; changes nothing"),
    ):
        added = add(name, command, text)
        added.add_argument("stage", nargs="?", metavar="STAGE", help="only this stage and what it needs")
        added.add_argument(
            "-S",
            "--set",
            dest="overrides",
            action="append",
            default=[],
            metavar="SECTION.KEY=VALUE",
            help="change a parameter (run: written into params.yaml; plan: only looked at)",
        )
        if name == "run":
            added.add_argument("--git-ref", metavar="REF", help="run this commit in a worktree of its own")
        else:
            added.add_argument("--json", action="store_true", help="machine-readable")
    doctor = add("doctor", _doctor, "check machine, packages, services and workspace; say how to repair")
    doctor.add_argument("--json", action="store_true", help="machine-readable")
    params = add("params", _params, "print the parameters as they take effect")
    params.add_argument("--schema", action="store_true", help="print the JSON schema for editors instead")
    add("demo", _demo, "run everything on the sample corpus and say what came out")
    add("ui", _ui, "serve the web pages of Prefect and MLflow until Ctrl-C")
    adopt = add("adopt", _adopt, "take over the dvc.lock of a run (runs/RUN)")
    adopt.add_argument("run", metavar="RUN")
    return parser


def _run(options: argparse.Namespace) -> int:
    from flows.run import run

    return run(Path(), options.stage, options.overrides, options.git_ref)


def _plan(options: argparse.Namespace) -> int:
    from flows.forecast import as_json, as_text, planned_with

    stages = planned_with(Path(), options.stage, options.overrides)
    print(json.dumps(as_json(stages), indent=2) if options.json else as_text(stages))
    return WORK_TO_DO if any(stage.has_work for stage in stages) else NOTHING_TO_DO


def _doctor(options: argparse.Namespace) -> int:
    from flows.doctor import examine

    findings = list(examine(Path()))
    if options.json:
        print(json.dumps([finding.as_dict() for finding in findings], indent=2))
    else:
        for finding in findings:
            print(finding.as_text())
    return EnvironmentProblem.exit_code if any(finding.verdict == "fail" for finding in findings) else 0


def _params(options: argparse.Namespace) -> int:
    from tasks.kit.paths import Paths
    from tasks.params.tree import SECTIONS, load_params

    if options.schema:
        sections = {name: section.model_json_schema() for name, section in SECTIONS.items()}
        print(json.dumps(_schema(sections), indent=2))
        return 0
    import yaml

    print(
        yaml.safe_dump(load_params(Paths(Path()).params).as_dict(), sort_keys=False, allow_unicode=True),
        end="",
    )
    return 0


def _schema(sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One schema of the whole file; the definitions of all sections move to its top."""
    definitions: dict[str, Any] = {}
    for section in sections.values():
        definitions |= section.pop("$defs", {})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "params.yaml of train-llm",
        "type": "object",
        "additionalProperties": False,
        "properties": sections,
        "$defs": definitions,
    }


def _demo(options: argparse.Namespace) -> int:
    from flows.demo import summary
    from flows.run import run

    code = run(Path(), None, [], None)
    if code == 0:
        print(summary(Path()))
    return code


def _ui(options: argparse.Namespace) -> int:
    from flows.ui import serve

    return serve(Path())


def _adopt(options: argparse.Namespace) -> int:
    from flows.records import adopt

    former = adopt(Path(), options.run)
    print(f"dvc.lock is now that of run {options.run}; the former one is kept in {former}.")
    print("Next: `dvc checkout` brings its outputs here, then commit dvc.lock.")
    return 0


def _put_interpreter_first_on_path() -> None:
    """dvc.yaml says `python`: make that this one, so that `.venv/bin/train-llm` works without activation."""
    folder = str(Path(sys.executable).parent)
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if entries[0] != folder:
        os.environ["PATH"] = os.pathsep.join([folder, *entries])


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("train-llm")
    except PackageNotFoundError:
        return "(not installed)"


def _complain_of_ourselves() -> int:
    """The traceback without secrets, and a line that says whose fault it is."""
    import traceback

    from tasks.kit.console import redact

    sys.stderr.write(redact(traceback.format_exc()))
    return _complain("this is a fault of train-llm, not of yours; please report it with the lines above", 1)


def _complain(message: str, code: int) -> int:
    from tasks.kit.console import redact

    sys.stdout.flush()
    print(f"train-llm: error: {redact(message)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
