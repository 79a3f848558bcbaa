"""The one way in which a stage starts: `python -m tasks STAGE`, from the project's root.

Loads and checks params.yaml, holds the stage's lock, hands the stage the sections that its signature asks
for, writes the figures that it returns to data/metrics/STAGE.json, and turns errors into messages and exit codes.
"""

import dataclasses
import importlib
import inspect
import json
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from tasks.kit.console import redact, set_up_logging
from tasks.kit.errors import InputError, ParamsError, StageError, TrainLLMError, machine_fault
from tasks.kit.files import write_json
from tasks.kit.paths import Paths
from tasks.kit.processes import (
    bypass_proxies_on_loopback,
    die_with_parent,
    hold_stage_lock,
    let_idle_threads_sleep,
    stop_on_sigterm,
    switch_telemetry_off,
)
from tasks.params.base import Section
from tasks.params.tree import SECTIONS, Params, load_params

# `tokenize` is a module of the standard library, which breaks when a file of that name lies beside a script.
MODULES = {"tokenize": "tokenization"}
STAGES = tuple(name for name in SECTIONS if name != "runtime")


def stage_function(stage: str) -> Callable[..., Any]:
    """The public function of a stage's module."""
    function: Callable[..., Any] = getattr(
        importlib.import_module(f"tasks.{MODULES.get(stage, stage)}"), stage
    )
    return function


def sections_of(function: Callable[..., Any]) -> dict[str, tuple[str, type[Section]]]:
    """Which section of params.yaml each argument of a stage takes, told by its annotation, and its class.

    An argument annotated with the base class of a section takes that part of it only.
    """
    hints = get_type_hints(function)
    return {
        argument: (name, hints[argument])
        for argument in inspect.signature(function).parameters
        for name, section in SECTIONS.items()
        if hints[argument] in section.__mro__ and hints[argument] is not Section
    }


def keys_read(function: Callable[..., Any]) -> set[str]:
    """What dvc.yaml must list as the parameters of a stage: whole sections, or keys of those it takes a part of."""
    keys: set[str] = set()
    for name, part in sections_of(function).values():
        whole = part is SECTIONS[name]
        keys |= {name} if whole else {f"{name}.{field}" for field in part.model_fields}
    return keys - {"runtime"}


def _section(params: Params, name: str, part: type[Section]) -> Section:
    section: Section = getattr(params, name)
    return section if type(section) is part else part(**{f: getattr(section, f) for f in part.model_fields})


def run_stage(stage: str, params: Params, paths: Paths) -> Any:
    """Call a stage with its sections and paths, and write the figures that it returns. Returns them."""
    function = stage_function(stage)
    arguments: dict[str, Any] = {a: _section(params, *s) for a, s in sections_of(function).items()}
    figures = function(**arguments, paths=paths)
    write_json(paths.metrics(stage), dataclasses.asdict(figures))
    return figures


def input_fingerprint(stage: str, paths: Paths) -> dict[str, Any]:
    """Size, time and inode of every dependency, and the values of the stage's parameters.

    DVC hashes dependencies after the command (dvc#11058): an edit while a stage runs would be recorded as the
    cause of the old result. Comparing this before and after finds it.
    """
    declared = yaml.safe_load(paths.dvc_yaml.read_text(encoding="utf-8"))["stages"][stage]
    values = yaml.safe_load(paths.params.read_text(encoding="utf-8"))
    fingerprint: dict[str, Any] = {
        f"params.yaml: {name}": json.dumps(_value_at(values, name)) for name in declared.get("params", [])
    }
    for dependency in declared.get("deps", []):
        path = paths.root / dependency
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            status = file.stat()
            fingerprint[str(file)] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return fingerprint


def _value_at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def main(arguments: list[str]) -> int:
    """Run one stage. Returns the exit code: 0, or that of the error (see tasks.kit.errors)."""
    switch_telemetry_off()
    let_idle_threads_sleep()
    bypass_proxies_on_loopback()
    if len(arguments) != 1 or arguments[0] not in STAGES:
        sys.stderr.write(f"usage: python -m tasks STAGE, with STAGE one of {', '.join(STAGES)}\n")
        return ParamsError.exit_code
    stage = arguments[0]
    logger = set_up_logging(stage)
    paths = Paths(Path())
    try:
        params = load_params(paths.params)
        die_with_parent()
        stop_on_sigterm()
        with hold_stage_lock(stage, paths.state / "locks"):
            before = _inputs(stage, paths)
            began = time.time()
            run_stage(stage, params, paths)
            after = _inputs(stage, paths)
            changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
            if changed:
                raise StageError(
                    "inputs changed while the stage ran, so its result belongs to neither state: "
                    f"{', '.join(changed)}. Nothing was recorded; run it again"
                )
            _write_timing(stage, paths, began)
    except TrainLLMError as error:
        logger.error("error: %s", error)
        return error.exit_code
    except KeyboardInterrupt:
        logger.error("interrupted")
        return 130
    except Exception as error:
        if (problem := machine_fault(error)) is not None:
            logger.error("error: %s", problem)
            return problem.exit_code
        sys.stderr.write(redact(traceback.format_exc()))
        logger.error(
            "error: this is a fault of train-llm, not of yours; please report it with the lines above"
        )
        return 1
    return 0


def _inputs(stage: str, paths: Paths) -> dict[str, Any]:
    try:
        return input_fingerprint(stage, paths)
    except FileNotFoundError as error:
        raise InputError(
            f"{error.filename} is missing: run the stages before {stage} first (`dvc repro {stage}` does)"
        ) from None


def _write_timing(stage: str, paths: Paths, began: float) -> None:
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    write_json(
        paths.timing(stage),
        {
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
            "seconds": round(time.time() - began, 2),
            "peak_memory_bytes": max(peaks) * 1024,
        },
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
