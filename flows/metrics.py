"""The figures that a reader of a run wants first, beside those of the last commit, as Markdown."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_MAX_ROWS = 40
# Figures worth a line in a comment; a project whose metrics have none of these names gets all of them.
_KEY_FIGURES = (
    "documents",
    "documents_out",
    "tokens",
    "characters_per_token",
    "best_validation_loss",
    "test_loss",
    "perplexity",
    "next_token_accuracy",
    "bits_per_byte",
    "perplexity_increase",
    "tokens_per_second",
    "version",
)


def metrics_table(root: Path) -> str:
    """Markdown table of key figures: at HEAD, here, and the difference. Empty when there are none."""
    rows = list(_rows(root))
    chosen = [row for row in rows if row[1].rsplit(".", 1)[-1] in _KEY_FIGURES] or rows
    if not chosen:
        return ""
    lines = ["| stage | figure | last commit | this run | change |", "|---|---|--:|--:|--:|"]
    lines += [
        f"| {file} | {key} | {_text(old)} | {_text(new)} | {_change(old, new)} |"
        for file, key, old, new in chosen[:_MAX_ROWS]
    ]
    if len(chosen) > _MAX_ROWS:
        lines.append(f"\n{len(chosen) - _MAX_ROWS} further figures are left out.")
    return "\n".join(lines) + "\n"


def _rows(root: Path) -> Iterator[tuple[str, str, Any, Any]]:
    os.environ["DVC_NO_ANALYTICS"] = "1"
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from scmrepo.exceptions import SCMError

    try:
        with Repo(str(root)) as repo:
            found = repo.metrics.diff(a_rev="HEAD", b_rev="workspace", all=True)
    except (DvcException, SCMError):
        return
    for path, figures in sorted(found.get("diff", {}).items()):
        for key, values in figures.items():
            if isinstance(values, Mapping) and _is_figure(values.get("new")):
                yield Path(path).stem, key, values.get("old"), values.get("new")


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if not _is_figure(value):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.5g}"


def _change(old: Any, new: Any) -> str:
    if not (_is_figure(old) and _is_figure(new)):
        return "-"
    return "0" if new == old else f"{new - old:+,.4g}"
