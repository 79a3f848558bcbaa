"""The plan as people and programs read it: stage, verdict, reason, last duration, and the sum."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flows.graph import PlannedStage, plan
from tasks.kit.paths import Paths


def planned_with(root: Path, stage: str | None, overrides: Sequence[str]) -> tuple[PlannedStage, ...]:
    """The plan as it would be with `overrides`, which are checked but not written.

    Raises:
        ParamsError: params.yaml or an override is wrong, or the stage is unknown.
    """
    import yaml

    from tasks.params.tree import load_params, override_params

    path = Paths(root).params
    load_params(path)
    params: Any = None
    if overrides:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / path.name
            copy.write_bytes(path.read_bytes())
            override_params(copy, overrides)
            params = yaml.safe_load(copy.read_text(encoding="utf-8"))
    return plan(root, [stage] if stage else (), params)


def as_json(stages: Iterable[PlannedStage]) -> dict[str, Any]:
    """The plan for programs."""
    stages = list(stages)
    return {
        "work_to_do": any(stage.has_work for stage in stages),
        "forecast_seconds": forecast_seconds(stages),
        "stages": [
            {
                "stage": stage.name,
                "verdict": stage.verdict,
                "reasons": list(stage.reasons),
                "after": list(stage.after),
                "last_seconds": stage.last_seconds,
            }
            for stage in stages
        ],
    }


def as_text(stages: Iterable[PlannedStage]) -> str:
    """The plan as a table; further reasons of a stage stand below the first."""
    stages = list(stages)
    width = max((len(stage.name) for stage in stages), default=5)
    lines = [f"{'stage':<{width}}  {'verdict':<7}  {'last':>8}  reason"]
    for stage in stages:
        shown = _shorten(stage.reasons) or ["-"]
        seconds = "-" if stage.last_seconds is None else duration(stage.last_seconds)
        lines.append(f"{stage.name:<{width}}  {stage.verdict:<7}  {seconds:>8}  {shown[0]}".rstrip())
        lines += [f"{'':<{width + 21}}{reason}" for reason in shown[1:]]
    return "\n".join([*lines, "", summary(stages)])


def summary(stages: Iterable[PlannedStage]) -> str:
    """One line: nothing to do, or how many stages have work and how long they took last time."""
    stages = list(stages)
    busy = [stage for stage in stages if stage.has_work]
    if not busy:
        return "Nothing to do: every stage is up to date."
    unknown = [stage.name for stage in busy if stage.last_seconds is None]
    line = f"{len(busy)} of {len(stages)} stages have work; forecast at most {duration(forecast_seconds(stages))}"
    return line + (f", and those that never ran here: {', '.join(unknown)}." if unknown else ".")


def forecast_seconds(stages: Iterable[PlannedStage]) -> float:
    """Sum of the last durations of the stages that have work; what comes from the run cache takes none."""
    return round(sum(stage.last_seconds or 0.0 for stage in stages if stage.verdict in ("run", "follows")), 1)


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _shorten(reasons: Sequence[str], shown: int = 6) -> list[str]:
    more = len(reasons) - shown
    return [*reasons[:shown], f"and {more} more"] if more > 0 else list(reasons)
