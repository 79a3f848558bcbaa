"""The DAG as dvc.yaml states it, and what each stage would do now: read in process, nothing is run or written."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tasks.kit.errors import EnvironmentProblem, ParamsError, TrainLLMError

Verdict = Literal["always", "run", "restore", "follows", "fresh"]

_MISSING = ("deleted", "not in cache")


@dataclass(frozen=True)
class Schedule:
    """How the flow treats a stage: the `meta` of dvc.yaml."""

    retries: int = 0
    retry_delay_seconds: float = 0.0
    timeout_seconds: float | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedStage:
    """One stage and what a run would do with it.

    always   declared `always_changed`: a cheap listing that runs first; the rest assumes that it finds no change
    run      something it depends on differs from dvc.lock
    restore  differs too, but the run cache holds the result of exactly these inputs
    follows  a stage above it will run; whether this one must is known after that
    fresh    dvc.lock describes exactly what is here
    """

    name: str
    verdict: Verdict
    reasons: tuple[str, ...]
    after: tuple[str, ...]
    last_seconds: float | None = None
    schedule: Schedule = field(default_factory=Schedule)
    always_changed: bool = False

    @property
    def has_work(self) -> bool:
        return self.verdict in ("run", "restore", "follows")

    @property
    def is_source(self) -> bool:
        """Whether it lists what is outside, at each run, and needs no other stage."""
        return self.always_changed and not self.after


def plan(
    root: Path, targets: Iterable[str] = (), params: Mapping[str, Any] | None = None
) -> tuple[PlannedStage, ...]:
    """Every stage that `targets` need (all without any), in an order in which they can run.

    `params` replaces the content of params.yaml, so that a change can be planned without being written.

    Raises:
        ParamsError: an unknown target (lists the valid ones), or a dvc.yaml that DVC refuses.
        EnvironmentProblem: `root` is no DVC project.
    """
    os.environ["DVC_NO_ANALYTICS"] = "1"
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.repo import Repo

    try:
        with Repo(str(root), _wait_for_lock=True) as repo, repo.lock:
            return tuple(_walk(repo, root, tuple(targets), params))
    except NotDvcRepoError:
        raise EnvironmentProblem(
            f"{root.resolve()} is no DVC project (no .dvc folder): run from the project's root"
        ) from None
    except DvcException as error:
        raise ParamsError(_explain(error)) from None


def has_remote(root: Path) -> bool:
    """Whether a default DVC remote is configured: results are then pulled before and pushed after."""
    from dvc.config import Config

    return bool(Config(str(root / ".dvc")).get("core", {}).get("remote"))


def _walk(
    repo: Any, root: Path, targets: tuple[str, ...], params: Mapping[str, Any] | None
) -> Iterator[PlannedStage]:
    import networkx

    graph = repo.index.graph  # an edge u -> v says that u needs v
    names = {stage: _name(stage) for stage in graph}
    _check_targets(targets, names.values())
    wanted = {stage for stage in graph if not targets or names[stage] in targets}
    wanted |= {above for stage in list(wanted) for above in networkx.descendants(graph, stage)}
    allow_missing = has_remote(root)
    planned: dict[str, PlannedStage] = {}
    # The order in which people wrote the stages breaks ties. (Asking each stage's file for it parses dvc.yaml and
    # dvc.lock once a stage: 7 s a plan.)
    places = {stage: place for place, stage in enumerate(repo.index.stages)}
    order = networkx.lexicographical_topological_sort(graph.reverse(copy=True), key=places.__getitem__)
    for stage in order:
        if stage not in wanted:
            continue
        after = tuple(sorted(names[above] for above in graph.successors(stage)))
        verdict, reasons = _judge(repo, stage, [planned[name] for name in after], params, allow_missing)
        name = names[stage]
        schedule = _schedule(name, stage.meta)
        seconds = last_seconds(root, name)
        planned[name] = PlannedStage(
            name, verdict, reasons, after, seconds, schedule, bool(stage.always_changed)
        )
        yield planned[name]


def _name(stage: Any) -> str:
    """What `dvc repro` in the root calls a stage; DVC's own `addressing` is relative to this process's folder."""
    path = stage.path_in_repo
    return (
        str(stage.name)
        if path == "dvc.yaml"
        else ":".join(filter(None, (path, getattr(stage, "name", None))))
    )


def _check_targets(targets: Iterable[str], valid: Iterable[str]) -> None:
    from difflib import get_close_matches

    valid = list(valid)
    for target in targets:
        if target not in valid:
            near = get_close_matches(target, valid, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the stages are {', '.join(valid)}"
            raise ParamsError(f"dvc.yaml has no stage {target!r}; {hint}")


def _schedule(name: str, meta: Any) -> Schedule:
    known = Schedule.__dataclass_fields__
    values = dict(meta or {})
    if unknown := sorted(set(values) - set(known)):
        raise ParamsError(
            f"dvc.yaml: stage {name}: meta.{unknown[0]} is unknown; valid are {', '.join(known)}"
        )
    return Schedule(**{**values, "tags": tuple(values.get("tags", ()))})


def _judge(
    repo: Any,
    stage: Any,
    above: list[PlannedStage],
    params: Mapping[str, Any] | None,
    allow_missing: bool,
) -> tuple[Verdict, tuple[str, ...]]:
    reasons = list(_changes(stage, params, allow_missing))
    moving = [parent.name for parent in above if parent.has_work]
    if stage.always_changed and not moving and not reasons:
        return "always", ("lists anew at each run; what follows is judged by its last list",)
    if not reasons:
        return ("follows", tuple(f"follows {name}" for name in moving)) if moving else ("fresh", ())
    if not moving and _in_run_cache(repo, stage, params):
        return "restore", (*reasons, "the run cache has this result")
    return "run", tuple(reasons)


def _changes(stage: Any, params: Mapping[str, Any] | None, allow_missing: bool) -> Iterator[str]:
    """Every difference between dvc.lock and what is here, one line each."""
    from dvc.dependency import ParamsDependency

    recorded = any(out.hash_info for out in stage.outs) or any(dep.hash_info for dep in stage.deps)
    if not recorded:
        yield "never ran here: dvc.lock has no entry"
        return
    if stage.changed_stage():
        yield "its command in dvc.yaml changed"
    for dependency in stage.deps:
        if isinstance(dependency, ParamsDependency):
            yield from _changed_params(dependency, params)
        else:
            yield from _changed_file(dependency, "", allow_missing)
    for out in stage.outs:
        yield from _changed_file(out, "output ", allow_missing)


def _changed_file(entry: Any, prefix: str, allow_missing: bool) -> Iterator[str]:
    for status in entry.status().values():
        if not (allow_missing and status in _MISSING):
            yield f"{prefix}{entry.def_path}: {_words(status)}"


def _words(status: str) -> str:
    return {"deleted": "missing", "not in cache": "not in the cache"}.get(status, status)


def _changed_params(dependency: Any, params: Mapping[str, Any] | None) -> Iterator[str]:
    """`key: old -> new` for every value that differs, also for keys that were added or taken away (dvc#9913)."""
    old = dependency.hash_info.value or {}
    new = _current_params(dependency, params)
    for key in dependency.params:
        yield from _differences(key, old.get(key, _ABSENT), new.get(key, _ABSENT))


_ABSENT = object()


def _differences(key: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            yield from _differences(f"{key}.{name}", old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif old != new:
        left, right = ("absent" if value is _ABSENT else repr(value) for value in (old, new))
        yield f"{key}: {left} -> {right}"


def _current_params(dependency: Any, params: Mapping[str, Any] | None) -> dict[str, Any]:
    if params is None:
        return dict(dependency.read_params())
    found: dict[str, Any] = {}
    for key in dependency.params:
        value: Any = params
        for part in key.split("."):
            value = value.get(part, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if value is not _ABSENT:
            found[key] = value
    return found


def _in_run_cache(repo: Any, stage: Any, params: Mapping[str, Any] | None) -> bool:
    """Whether the run cache holds the outputs for the inputs as they are now. Alters the stage object only."""
    from dvc.dependency import ParamsDependency
    from dvc.exceptions import DvcException
    from dvc.stage.cache import RunCacheNotFoundError
    from dvc_data.hashfile.hash_info import HashInfo

    if not stage.deps or stage.always_changed or any(out.persist for out in stage.outs):
        return False  # DVC keeps no run of these
    before = [dependency.hash_info for dependency in stage.deps]
    try:
        for dependency in stage.deps:
            if isinstance(dependency, ParamsDependency):
                dependency.hash_info = HashInfo("params", _current_params(dependency, params))  # type: ignore[arg-type]
            else:
                dependency.save()
        entry = repo.stage_cache._load(stage)
        # By the names of the objects: `_create_stage` would look for dvc.yaml in this process's folder.
        return bool(entry) and all(
            repo.cache.local.exists(out["md5"]) for out in entry["outs"] if "md5" in out
        )
    except (DvcException, RunCacheNotFoundError, OSError):
        return False
    finally:
        for dependency, hash_info in zip(stage.deps, before, strict=True):
            dependency.hash_info = hash_info


def last_seconds(root: Path, stage: str) -> float | None:
    """Seconds of the stage's last run here, None when it never ran or the record cannot be read."""
    from tasks.kit.files import read_json
    from tasks.kit.paths import Paths

    try:
        return float(read_json(Paths(root).timing(stage))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _explain(error: Exception) -> str:
    """DVC's message with its causes: the outer one alone often says nothing."""
    if isinstance(error, TrainLLMError):
        return str(error)
    lines: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        text = " ".join(str(cause).split())
        if text and text not in lines:
            lines.append(text)
        cause = cause.__cause__
    return ": ".join(lines)
