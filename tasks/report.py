"""Tell a reader, on one page, what was made of which data, how well it does, and whether to trust it.

Reads:  data/metrics/*.json, data/train/history.csv, data/evaluate/samples.json; data/validate/data_docs to link to
        it; .state/timings/*.json where they lie (how long each stage took here: never the same twice)
Writes: data/report/report.html (needs no network and no file beside it), data/report/report.md (the same blocks)
Drops:  nothing; figures that no stage wrote are shown as "not measured" and returned
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.kit.files import write_atomically
from tasks.kit.paths import Paths
from tasks.params.report import ReportParams
from tasks.text.figures import Figures, read_figures, read_history
from tasks.text.funnel import disagreements, funnel_section, tokenizer_section
from tasks.text.headline import facts, headline, warnings
from tasks.text.lineage import (
    effort_section,
    identities,
    lineage_section,
    reproduction_section,
)
from tasks.text.page import Page, render_html, render_markdown
from tasks.text.results import evaluation_section, quantization_section, training_section
from tasks.text.verdicts import gate_section, registry_section

STAGES = (
    "snapshot",
    "ingest",
    "clean",
    "dedupe",
    "tokenize",
    "split",
    "validate",
    "train",
    "evaluate",
    "quantize",
    "register",
)


@dataclass(frozen=True)
class ReportFigures:
    """What the page could not tell, and where the stages contradict each other."""

    not_measured: tuple[str, ...]
    """`stage: key` of every figure that the page has a place for and no stage wrote."""
    disagreements: tuple[str, ...]
    """Counts of different stages that ought to be equal and are not."""


def report(params: ReportParams, paths: Paths) -> ReportFigures:
    """Render the page from the figures of all stages.

    Raises:
        InputError: a stage's figures are missing, are no JSON, or hold something of another type than the page needs.
    """
    notes: set[str] = set()
    stages = {stage: read_figures(paths.metrics(stage), notes) for stage in STAGES}
    found = disagreements(stages)
    page = build_page(params, paths, stages, found)
    write_atomically(paths.report_html, render_html(page).encode())
    write_atomically(paths.report_markdown, render_markdown(page).encode())
    return ReportFigures(tuple(sorted(notes)), tuple(found))


def build_page(params: ReportParams, paths: Paths, stages: Mapping[str, Figures], found: list[str]) -> Page:
    """The page in the order in which a reader asks: is it good, on what, how, where from, how again."""
    history = read_history(paths.history)
    samples = read_figures(paths.evaluate_samples, set())
    known = identities(stages)
    return Page(
        title=params.title,
        headline=headline(stages),
        facts=facts(stages),
        warnings=warnings(stages, found),
        sections=(
            funnel_section(stages),
            tokenizer_section(stages["tokenize"]),
            gate_section(stages["validate"], data_docs(paths)),
            training_section(stages["train"], history),
            evaluation_section(stages["evaluate"], samples),
            quantization_section(stages["quantize"]),
            registry_section(stages["register"]),
            lineage_section(stages["register"], known),
            effort_section(timings(paths)),
            reproduction_section(known["Git commit"], stages["register"].inside("lineage").text("git_dirty")),
        ),
    )


def data_docs(paths: Paths) -> str | None:
    """Path of the first page of the Data Docs, relative to the report; None where there is none."""
    pages = sorted(paths.data_docs.rglob("index.html"), key=lambda page: (len(page.parts), page))
    if not pages:
        return None
    return (Path("..") / pages[0].relative_to(paths.data)).as_posix()


def timings(paths: Paths) -> dict[str, Figures]:
    """What each stage took when it last ran here. Absent ones are no gap in the figures: nothing notes them."""
    return {stage: read_figures(paths.timing(stage), set(), optional=True) for stage in STAGES}
