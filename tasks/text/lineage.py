"""The page's account of where the model comes from: gate, digests, what each stage took, how to make it again."""

import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from tasks.text.figures import Figures
from tasks.text.numerals import NOT_MEASURED, duration, size
from tasks.text.page import Block, Cell, Code, Commands, Section, Text, prose, table, word

PACKAGES = (
    "train-llm", "torch", "deepspeed", "transformers", "tokenizers", "datasets", "pyarrow", "onnxruntime",
    "onnxruntime-genai", "great-expectations", "mlflow", "dvc", "prefect",
)  # fmt: skip
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


def identities(stages: Mapping[str, Figures]) -> dict[str, str | None]:
    """Digest of every part of the model: what register recorded, else what the stage itself wrote."""
    register = stages["register"].inside("lineage")
    return {
        "Object manifest": register.text("object_manifest_digest") or stages["snapshot"].text("digest"),
        "Tokenizer": register.text("tokenizer_digest") or stages["tokenize"].text("tokenizer_digest"),
        "Split": register.text("split_digest") or stages["split"].text("digest"),
        "Model": register.text("model_digest") or stages["train"].text("model_digest"),
        "Training (fingerprint)": stages["train"].text("fingerprint"),
        "dvc.lock": _recorded(register.text("dvc_lock_digest")),
        "Git commit": _recorded(register.text("git_commit")),
    }


def _recorded(value: str | None) -> str | None:
    """`none` is what register writes where there is no git or no dvc.lock."""
    return None if value == "none" else value


def lineage_section(register: Figures, digests: Mapping[str, str | None]) -> Section:
    """What the model was made of, by digest."""
    rows: list[tuple[str | Cell, ...]] = [(label, word(digest)) for label, digest in digests.items()]
    rows += [
        ("Files changed since that commit", word(register.inside("lineage").text("git_dirty"))),
        ("MLflow run", word(register.text("run_id"))),
        (
            "MLflow address",
            Code(address, 160) if (address := register.text("tracking_uri")) else Text(NOT_MEASURED),
        ),
    ]
    return Section("lineage", "Lineage", (table("What made this model", ("Part", "Identity"), rows),))


def effort_section(timings: Mapping[str, Figures]) -> Section:
    """What each stage took when it last ran on this machine; a result restored from a cache took nothing here."""
    rows: list[tuple[str | Cell, ...]] = [
        (
            stage,
            duration(timing.number("seconds")),
            size(timing.number("peak_memory_bytes")),
            word(timing.text("started_at")),
        )
        for stage, timing in timings.items()
    ]
    headers = ("Stage", "Took", "Most memory of a process", "Started")
    blocks: tuple[Block, ...] = (
        prose(
            "The last run of each stage on the machine that wrote this page; a restored result was not measured here."
        ),
        table("What each stage took", headers, rows, headers[1:3]),
    )
    return Section("effort", "What it took", blocks)


def reproduction_section(commit: str | None, dirty: str | None) -> Section:
    """The commands that make the same model again, and the packages it was made with."""
    known = commit is not None and _COMMIT.fullmatch(commit) is not None
    remark = "" if known else " The commit was not recorded: the first line must be yours."
    if known and dirty != "false":
        remark = " Files may have been changed since that commit: it alone need not give the same model."
    blocks: tuple[Block, ...] = (
        prose(f"From a clone of the project.{remark}"),
        Commands(
            (
                f"git checkout {commit if known else 'COMMIT'}",
                "python -m pip install -c constraints.txt -e .",
                "# every stage, with nothing but DVC:",
                "dvc repro",
                "# or the same stages as a Prefect flow:",
                "train-llm run",
            )
        ),
        table(
            "Software that wrote this page",
            ("Package", "Version"),
            [("python", platform.python_version()), *_packages()],
        ),
    )
    return Section("reproduction", "How to make it again", blocks)


def _packages() -> list[tuple[str, str]]:
    found = []
    for name in PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            found.append((name, "not installed"))
    return found
