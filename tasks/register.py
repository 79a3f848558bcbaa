"""Register the trained model with its lineage, and make it champion only through the gate.

Reads:  data/train/model, data/quantize, data/split (test side), data/evaluate/test_losses.parquet, the figures of
        validate, train, evaluate and quantize, data/snapshot/manifest.json, dvc.lock, the champion's artifacts.
Writes: a model version in MLflow with the alias `candidate`, and `champion` when the gate says promote.
Drops:  a model that does not beat its untrained twin is not registered; one that is there already is not doubled.
"""

import json
import logging
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from tasks.kit.console import redact
from tasks.kit.errors import GateError, InputError
from tasks.kit.files import file_digest, folder_digest, json_digest, read_json
from tasks.kit.model_registry import MODEL_FOLDER, ModelRegistry, Version, open_registry
from tasks.kit.paths import Paths
from tasks.kit.tracking import Run, flatten, open_run, tracking_uri
from tasks.model.blocks import Blocks
from tasks.model.champion import score_same_ids, score_same_text
from tasks.model.gate import GateVerdict, first_champion, gate, same_model
from tasks.model.saved_model import load_tokenizer
from tasks.params.register import RegisterParams
from tasks.params.runtime import RuntimeParams
from tasks.params.tree import load_params

logger = logging.getLogger("train_llm")

CANDIDATE = "candidate"
CHAMPION = "champion"

_JUDGED_STAGES = ("validate", "train", "evaluate", "quantize")
_ATTEMPTS_AGAINST_A_MOVING_CHAMPION = 3


@dataclass(frozen=True)
class RegisterFigures:
    """Where the model went, what the gate said, and what the version descends from."""

    name: str
    version: str
    new_version: bool
    """False where the very same model had been registered before."""
    aliases: list[str]
    improvement_over_untrained: float
    """Share of the untrained twin's test loss that training took away."""
    gate: GateVerdict
    champion_version: str | None
    """The champion that the gate compared with; none: there was none."""
    run_id: str
    tracking_uri: str
    lineage: dict[str, str]


def register(params: RegisterParams, runtime: RuntimeParams, paths: Paths) -> RegisterFigures:
    """Register the model of data/train, unless it is no better than an untrained one.

    Raises:
        GateError: it does not beat its untrained twin by `params.min_improvement_over_untrained`.
        EnvironmentProblem: MLflow or the champion's artifacts are out of reach.
    """
    improvement = _check_improvement(params, paths)
    lineage = lineage_of(paths)
    everything = flatten(load_params(paths.params).as_dict())
    key = json_digest(["register", params.name, lineage["model_digest"]])
    with (
        open_registry(paths, params.name) as registry,
        open_run(paths, f"register {params.name}", key, {"stage": "register"}) as run,
    ):
        known = registry.by_tag("model_digest", lineage["model_digest"])
        version = known or _create(registry, run, paths, everything, lineage)
        champion, verdict = _judge(params, runtime, paths, registry, version, improvement)
        if verdict.verdict != "same":  # nothing was compared, so the verdict that made it champion stays
            registry.set_tags(version, _verdict_tags(verdict, champion, improvement))
        registry.set_alias(CANDIDATE, version)
        if verdict.verdict == "promote":
            registry.set_alias(CHAMPION, version)
        figures = RegisterFigures(
            name=params.name,
            version=version.number,
            new_version=known is None,
            aliases=registry.aliases_of(version),
            improvement_over_untrained=improvement,
            gate=verdict,
            champion_version=None if champion is None else champion.number,
            run_id=run.run_id,
            tracking_uri=redact(tracking_uri(paths)),
            lineage=lineage,
        )
    _log(figures)
    return figures


def lineage_of(paths: Paths) -> dict[str, str]:
    """What the model descends from: commit, dvc.lock, objects, tokenizer, split, weights, shipped formats."""
    quantized = read_json(paths.metrics("quantize"))["formats"]
    shipped = {
        name: {"bytes": entry["bytes"], "perplexity_increase": entry["perplexity_increase"]}
        for name, entry in quantized.items()
        if entry["verdict"] == "accepted"
    }
    return {
        **_git_state(paths.root),
        "dvc_lock_digest": dvc_lock_digest(paths),
        "object_manifest_digest": str(read_json(paths.snapshot_manifest)["digest"]),
        "tokenizer_digest": folder_digest(paths.tokenizer),
        "split_digest": file_digest(paths.split / "manifest.json"),
        "end_of_document_id": str(read_json(paths.split / "manifest.json")["end_of_document_id"]),
        "model_digest": folder_digest(paths.model),
        "quantized": json.dumps(shipped, sort_keys=True),
    }


def dvc_lock_digest(paths: Paths) -> str:
    """Digest of dvc.lock as far as it concerns the stages that register follows from.

    The entries of register itself and of what comes after it are left out: they are written later, and would make
    the digest of one state differ between two runs. `none` where there is no dvc.lock.
    """
    if not paths.dvc_lock.exists():
        return "none"
    stages = yaml.safe_load(paths.dvc_yaml.read_text(encoding="utf-8"))["stages"]
    makers = {
        out: name
        for name, stage in stages.items()
        for declared in [*stage.get("outs", []), *stage.get("metrics", [])]
        for out in (declared if isinstance(declared, dict) else [declared])  # a path, or {path: options}
    }
    before, waiting = set(), ["register"]
    while waiting:
        for dependency in stages[waiting.pop()].get("deps", []):
            maker = makers.get(dependency)
            if maker is not None and maker not in before:
                before.add(maker)
                waiting.append(maker)
    locked = yaml.safe_load(paths.dvc_lock.read_text(encoding="utf-8")).get("stages", {})
    return json_digest({name: locked[name] for name in sorted(before & locked.keys())})


def _check_improvement(params: RegisterParams, paths: Paths) -> float:
    figures = read_json(paths.metrics("evaluate"))
    loss, untrained = figures["test_loss"], figures["baselines"]["untrained"]["test_loss"]
    improvement = float(f"{1 - loss / untrained:.8g}")
    if improvement < params.min_improvement_over_untrained:
        raise GateError(
            f"min_improvement_over_untrained: the test loss of {loss:.4f} is {improvement:.1%} below the untrained "
            f"twin's {untrained:.4f}, register.min_improvement_over_untrained asks for "
            f"{params.min_improvement_over_untrained:.1%}. Nothing was registered: train longer or on more text"
        )
    return improvement


def _create(
    registry: ModelRegistry, run: Run, paths: Paths, everything: Mapping[str, str], lineage: Mapping[str, str]
) -> Version:
    folders = {MODEL_FOLDER: paths.model}
    for name in sorted(json.loads(lineage["quantized"])):
        folders[f"quantize/{name}"] = paths.quantized / name
    metrics = {stage: read_json(paths.metrics(stage)) for stage in _JUDGED_STAGES}
    run.log_metrics([(0, _numbers(metrics))])
    run.set_tags(lineage)
    return registry.create(run, folders, everything, lineage)


def _judge(
    params: RegisterParams,
    runtime: RuntimeParams,
    paths: Paths,
    registry: ModelRegistry,
    version: Version,
    improvement: float,
) -> tuple[Version | None, GateVerdict]:
    """The champion and what the gate says; asked again where another machine moved the alias meanwhile."""
    for _ in range(_ATTEMPTS_AGAINST_A_MOVING_CHAMPION):
        champion = registry.by_alias(CHAMPION)
        if champion is None:
            verdict = first_champion(params.confidence, improvement)
        elif champion.tags.get("model_digest") == version.tags["model_digest"]:
            verdict = same_model(params.confidence, champion.number)
        else:
            verdict = _compare(params, runtime, paths, registry, champion)
        now = registry.by_alias(CHAMPION)
        if (now and now.number) == (champion and champion.number):
            return champion, verdict
    raise GateError(
        f"the alias {CHAMPION} of {params.name} moved {_ATTEMPTS_AGAINST_A_MOVING_CHAMPION} times while it was "
        "compared with: wait until the other registrations have finished, then run register again"
    )


def _compare(
    params: RegisterParams, runtime: RuntimeParams, paths: Paths, registry: ModelRegistry, champion: Version
) -> GateVerdict:
    losses = pq.read_table(paths.test_losses)
    blocks = Blocks.open(paths.split, "test")
    if len(blocks) != losses.num_rows:
        raise InputError(
            f"{paths.test_losses} judges {losses.num_rows} blocks, {paths.split / 'test'} holds {len(blocks)}: "
            "run the stage evaluate again"
        )
    with tempfile.TemporaryDirectory() as scratch:
        folder = registry.fetch_model(champion, Path(scratch))
        if champion.tags.get("tokenizer_digest") == folder_digest(paths.tokenizer):
            nats = score_same_ids(folder, blocks, runtime.evaluation_batch_size)
        else:
            end = blocks.manifest["end_of_document_id"]
            own_end = int(champion.tags["end_of_document_id"])
            nats = score_same_text(folder, blocks, load_tokenizer(paths.model), end, own_end)
    return gate(
        losses["nats"].to_numpy(),
        nats,
        losses["bytes"].to_numpy(),
        confidence=params.confidence,
        num_resamples=params.resamples,
        seed=params.seed,
    )


def _verdict_tags(verdict: GateVerdict, champion: Version | None, improvement: float) -> dict[str, str]:
    return {
        "gate_verdict": verdict.verdict,
        "gate_reason": verdict.reason,
        "gate": json.dumps(asdict(verdict)),
        "gate_champion": "none" if champion is None else champion.number,
        "improvement_over_untrained": f"{improvement:.8g}",
    }


def _numbers(values: Any, prefix: str = "") -> dict[str, float]:
    """All numbers of nested figures, by their dotted name."""
    if isinstance(values, bool) or values is None or isinstance(values, str | list):
        return {}
    if isinstance(values, int | float):
        return {prefix: float(values)}
    found: dict[str, float] = {}
    for name, value in values.items():
        found |= _numbers(value, f"{prefix}.{name}" if prefix else str(name))
    return found


def _git_state(root: Path) -> dict[str, str]:
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return {"git_commit": "none", "git_dirty": "unknown"}
    # dvc.lock is not looked at: it changes with every stage of the run that this one belongs to.
    status = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)dvc.lock")
    return {"git_commit": commit, "git_dirty": "unknown" if status is None else str(bool(status)).lower()}


def _git(root: Path, *arguments: str) -> str | None:
    """Output of a git command, or none where there is no git or no repository."""
    try:
        result = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _log(figures: RegisterFigures) -> None:
    logger.info(
        "%s version %s of %s (%s): %s: %s",
        "registered" if figures.new_version else "already registered, reused",
        figures.version,
        figures.name,
        ", ".join(figures.aliases),
        figures.gate.verdict,
        figures.gate.reason,
    )
