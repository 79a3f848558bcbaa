"""What `train-llm demo` says at its end, read from the figures that the stages wrote."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.forecast import duration
from flows.graph import last_seconds, plan
from tasks.kit.files import read_json
from tasks.kit.paths import Paths

_FIGURES_SHOWN = 4
_COMPLETION_CHARACTERS = 240


def summary(root: Path) -> str:
    """Stages and what they took, the model against its baselines, a completion, version, report, next command."""
    paths = Paths(root)
    parts = [
        "\n".join(_stages(paths)),
        "\n".join(_quality(_read(paths.metrics("evaluate")))),
        _completion(_read(paths.evaluate_samples)),
        _version(_read(paths.metrics("register"))),
        f"Report: {paths.report_html.resolve()}" if paths.report_html.exists() else "",
        "Next, change one thing and see what follows from it: train-llm run -S train.learning_rate=0.002",
    ]
    return "\n\n".join(["", *(part for part in parts if part)])


def _stages(paths: Paths) -> Iterator[str]:
    stages = plan(paths.root)
    width = max(len(stage.name) for stage in stages)
    total = 0.0
    for stage in stages:
        seconds = last_seconds(paths.root, stage.name)
        total += seconds or 0.0
        took = "-" if seconds is None else duration(seconds)
        yield f"{stage.name:<{width}}  {took:>11}  {', '.join(_figures(_read(paths.metrics(stage.name))))}".rstrip()
    yield f"{'all stages':<{width}}  {duration(total):>11}"


def _figures(metrics: Mapping[str, Any]) -> Iterator[str]:
    """The first few numbers of a stage, in the order in which it wrote them."""
    shown = 0
    for name, value in metrics.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and shown < _FIGURES_SHOWN:
            shown += 1
            yield (
                f"{name.replace('_', ' ')} {value:,}"
                if isinstance(value, int)
                else f"{name.replace('_', ' ')} {value:,.4g}"
            )
        elif name == "success" and isinstance(value, bool):
            yield "all expectations met" if value else "an expectation failed"


def _quality(figures: Mapping[str, Any]) -> Iterator[str]:
    perplexity = _number(figures.get("perplexity"))
    if perplexity is None:
        return
    interval = figures.get("perplexity_interval")
    within = ""
    if isinstance(interval, list) and len(interval) == 2:
        within = f" (95 % between {interval[0]:,.1f} and {interval[1]:,.1f})"
    yield f"Test perplexity {perplexity:,.1f}{within}, lower is better:"
    baselines = figures.get("baselines")
    for name, baseline in baselines.items() if isinstance(baselines, Mapping) else ():
        other = _number(baseline.get("perplexity")) if isinstance(baseline, Mapping) else None
        if other is not None:
            yield f"  {name:<10} {other:>12,.1f}  ({other / perplexity:,.1f} times the model's)"


def _completion(samples: Mapping[str, Any]) -> str:
    continuations = samples.get("continuations")
    if not (isinstance(continuations, list) and continuations and isinstance(continuations[0], Mapping)):
        return ""
    first = continuations[0]
    prompt, text = str(first.get("prompt", "")), str(first.get("greedy", ""))
    return (
        f"A completion: {_one_line(prompt)[-_COMPLETION_CHARACTERS:]}\n"
        f"          ->  {_one_line(text)[:_COMPLETION_CHARACTERS]}"
    )


def _version(figures: Mapping[str, Any]) -> str:
    if "name" not in figures or "version" not in figures:
        return ""
    aliases = figures.get("aliases")
    named = f", alias {', '.join(map(str, aliases))}" if isinstance(aliases, list | tuple) and aliases else ""
    return f"Registered: {figures['name']} version {figures['version']}{named}"


def _read(path: Path) -> dict[str, Any]:
    """A JSON object, empty when it is not there or is something else."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _one_line(text: str) -> str:
    return " ".join(text.split())
