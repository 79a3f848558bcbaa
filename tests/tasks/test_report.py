"""The report: what it tells, what it does to hostile texts, what it refuses."""

import csv
import dataclasses
import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from markdown_it import MarkdownIt

from tasks.__main__ import stage_function
from tasks.kit.errors import InputError
from tasks.kit.files import write_json
from tasks.kit.paths import Paths
from tasks.params.report import ReportParams
from tasks.report import report

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)> | pipe `tick` ```fence``` [link](http://evil.example) "
    "</pre></details>\n# heading\n| a | b |\n"
    "\x1b[31mred\x07 \u202eright to left @everyone &lt;b&gt; {{ 7*7 }} {% raw %}\u0000"
)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
DIGESTS = {
    name: f"{index:032x}" for index, name in enumerate(("objects", "tokenizer", "split", "model", "lock"), 1)
}


def figures_of_all_stages() -> dict[str, dict[str, Any]]:
    """Figures as the stages write them, of a run in which everything went well."""
    dropped = {"too_short": 310, "missing_text": 40, "few_letters": 25, "repeated_lines": 25}
    return {
        "snapshot": {
            "source": "s3://corpus/sample/",
            "objects": 61,
            "bytes": 48_123_456,
            "digest": DIGESTS["objects"],
        },
        "ingest": {
            "objects": 61,
            "documents": 8400,
            "refused_records": 12,
            "refused_objects": 1,
            "by_source": {
                "docstrings": {"documents": 6200, "refused_records": 2},
                "topics": {"documents": 1200, "refused_records": 0},
                "web|<b>x</b>`": {"documents": 1000, "refused_records": 10},
            },
            "quarantine_by_reason": {"not JSON": 9, "unknown encoding": 3},
        },
        "clean": {
            "documents_in": 8400,
            "documents_out": 8000,
            "characters_out": 6_300_000,
            "html_converted": 410,
            "mojibake_repaired": 37,
            "by_script": {"latin": 7900, "han": 100},
            "dropped_by_reason": dropped,
            "by_source": {
                "docstrings": {"documents_in": 6200, "documents_out": 6000},
                "topics": {"documents_in": 1200, "documents_out": 1150},
                "web|<b>x</b>`": {"documents_in": 1000, "documents_out": 850},
            },
            "dropped_samples": {
                reason: [
                    {
                        "id": f"{i:032x}",
                        "source": "web|<b>x</b>`",
                        "excerpt": HOSTILE if i == 0 else f"sample {i}: ",
                    }
                    for i in range(3)
                ]
                for reason in dropped
            },
        },
        "dedupe": {
            "documents_in": 8000,
            "documents_out": 6900,
            "exact_removed": 700,
            "near_removed": 400,
            "candidate_pairs": 5000,
            "verified_pairs": 600,
            "by_source": {
                "docstrings": {"documents_in": 6000, "documents_out": 5100},
                "topics": {"documents_in": 1150, "documents_out": 1100},
                "web|<b>x</b>`": {"documents_in": 850, "documents_out": 700},
            },
            "samples": [
                {
                    "id": "a" * 32,
                    "kept_id": "b" * 32,
                    "kind": "near",
                    "similarity": 0.91,
                    "source": "topics",
                    "excerpt": "x" * 10_000,
                    "kept_excerpt": "y" * 10_000,
                }
            ],
        },
        "tokenize": {
            "vocabulary_size": 2048,
            "tokens": 1_900_000,
            "documents": 6900,
            "characters_per_token": 3.31,
            "unknown_rate": 0.0,
            "train_documents_seen": 5865,
            "fast_path": "gigatoken",
            "round_trip": "exact",
            "tokenizer_digest": DIGESTS["tokenizer"],
            "max_id": 2047,
        },
        "split": {
            "block_size": 256,
            "sides": {
                side: {
                    "documents": documents,
                    "clusters": documents,
                    "blocks": blocks,
                    "tokens": blocks * 256,
                    "dropped_tail_tokens": 17,
                }
                for side, documents, blocks in (
                    ("train", 5865, 6309),
                    ("validation", 690, 742),
                    ("test", 345, 371),
                )
            },
        },
        "validate": {
            "success": True,
            "documents": 6900,
            "expectations": [
                expectation("enough_rows", 6900, {"min_value": 100}),
                expectation("clean_adds_up", 0, {"min_value": 0, "max_value": 0}),
                expectation("unknown_rate", 0.0, {"max_value": 0.001}),
                expectation("share_of_train", 0.85, {"min_value": 0.8, "max_value": 0.9}),
                expectation("ids_are_unique", "6900 values, all as expected", "values to be unique"),
                expectation("sides", ["test", "train"], {"value_set": ["train", "test"]}),
            ],
        },
        "train": {
            "parameters": 2_163_648,
            "steps": 394,
            "tokens": 1_613_824,
            "first_loss": 7.63,
            "final_train_loss": 3.71,
            "best_validation_loss": 3.82,
            "seconds": 83.4,
            "tokens_per_second": 19_350.2,
            "precision": "fp32",
            "device": "cpu",
            "num_processes": 2,
            "zero_stage": 1,
            "global_batch_size": 16,
            "resumed_from": None,
            "stopped_early": False,
            "model_step": 394,
            "final_validation_loss": 3.82,
            "peak_memory_bytes": 1_800_000_000,
            "fingerprint": "f" * 32,
            "model_digest": DIGESTS["model"],
            "mlflow_run_id": "d" * 32,
        },
        "evaluate": {
            "test_loss": 3.8,
            "perplexity": 44.7,
            "perplexity_interval": [43.1, 46.4],
            "next_token_accuracy": 0.342,
            "bits_per_byte": 1.66,
            "bits_per_byte_interval": [1.63, 1.69],
            "continuations": 24,
            "bleu": 4.2,
            "bleu_tokenizer": "13a",
            "rouge1": 0.31,
            "rougeL": 0.27,
            "tokens": 94_605,
            "baselines": {
                "untrained": {"perplexity": 2103.2, "next_token_accuracy": 0.0007},
                "bigram": {"perplexity": 131.4, "next_token_accuracy": 0.21},
                "unigram": {"perplexity": 540.1, "next_token_accuracy": None},
            },
        },
        "quantize": {
            "blocks": 200,
            "tokens": 51_000,
            "reference": {"bytes": 8_654_592, "perplexity": 44.7},
            "formats": {
                "int8": {
                    "engine": "onnxruntime-genai",
                    "bytes": 2_301_000,
                    "perplexity": 44.8,
                    "perplexity_increase": 0.0022,
                    "verdict": "accepted",
                    "reason": "grew by less than 5 %",
                },
                "int4": {
                    "engine": "onnxruntime-genai",
                    "bytes": 1_450_000,
                    "perplexity": 49.2,
                    "perplexity_increase": 0.1007,
                    "verdict": "refused",
                    "reason": "perplexity grew by 10.07 %, limit 5 %",
                },
            },
        },
        "register": {
            "name": "train-llm",
            "version": "3",
            "aliases": ["candidate", "champion"],
            "run_id": "c" * 32,
            "tracking_uri": "sqlite:///.state/mlflow/mlflow.db",
            "new_version": True,
            "improvement_over_untrained": 0.503,
            "champion_version": "2",
            "gate": {
                "verdict": "promote",
                "reason": "better than the champion",
                "candidate_bits_per_byte": 1.66,
                "champion_bits_per_byte": 1.70,
                "difference": -0.04,
                "interval": [-0.05, -0.03],
                "confidence": 0.95,
                "blocks": 371,
            },
            "lineage": {
                "object_manifest_digest": DIGESTS["objects"],
                "tokenizer_digest": DIGESTS["tokenizer"],
                "split_digest": DIGESTS["split"],
                "model_digest": DIGESTS["model"],
                "dvc_lock_digest": DIGESTS["lock"],
                "git_commit": COMMIT,
                "git_dirty": "false",
            },
        },
    }


def expectation(name: str, observed: Any, expected: Any, success: bool = True) -> dict[str, Any]:
    """One line of the data gate."""
    return {"name": name, "suite": "figures", "success": success, "observed": observed, "expected": expected}


def write_history(path: Path, steps: int = 394) -> None:
    """A training's curves: a falling loss with some noise, validation every 50 steps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = (
        "step,tokens,train_loss,validation_loss,learning_rate,gradient_norm,tokens_per_second,memory_bytes"
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns.split(","))
        for step in range(1, steps + 1):
            loss = 3.7 + 3.9 * math.exp(-step / 70) + 0.08 * math.sin(step * 2.1)
            looked = f"{loss + 0.1:.4f}" if step % 50 == 0 else ""
            rate = 1.5e-3 * min(1, step / 20) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
            writer.writerow(
                [step, step * 4096, f"{loss:.4f}", looked, f"{rate:.8f}", 0.9, 19_000 + step % 7 * 90, 9e8]
            )


def make_project(
    root: Path, change: Callable[[dict[str, dict[str, Any]]], None] = lambda stages: None
) -> Paths:
    """Everything that the report reads, after `change` was made to the figures."""
    paths = Paths(root)
    stages = figures_of_all_stages()
    change(stages)
    for stage, values in stages.items():
        write_json(paths.metrics(stage), values)
    write_history(paths.history)
    samples = {
        "samples": [HOSTILE, "The function returns"],
        "continuations": [
            {"id": "e" * 32, "prompt": "def", "greedy": " f(x):", "reference": " g(x):\n    pass"}
        ],
        "temperature": 0.8,
    }
    write_json(paths.evaluate_samples, samples)
    paths.data_docs.mkdir(parents=True)
    (paths.data_docs / "index.html").write_text("<p>docs")
    return paths


class Structure(HTMLParser):
    """What a browser would build: tags in order, attributes, and whether every tag is closed."""

    VOID = ("meta", "br", "img", "link", "hr", "input")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def rendered(paths: Paths) -> tuple[str, str]:
    report(ReportParams(), paths)
    return paths.report_html.read_text(), paths.report_markdown.read_text()


def outside_fences(markdown: str) -> list[str]:
    """The lines of a Markdown text that are not inside a fenced block."""
    lines, fence = [], ""
    for line in markdown.splitlines():
        mark = re.match(r"`{3,}", line)
        if not fence and mark:
            fence = mark.group()
        elif fence and line == fence:
            fence = ""
        elif not fence:
            lines.append(line)
    assert not fence
    return lines


def test_the_page_tells_the_figures_that_decide(tmp_path: Path) -> None:
    html, markdown = rendered(make_project(tmp_path))
    text = "".join(Structure(html).text)
    for shown in ("44.70", "43.10 to 46.40", "2,103", "131.4", "2,163,648", "10.07 %", "champion", COMMIT):
        assert shown in text
        assert shown in markdown
    for digest in DIGESTS.values():
        assert digest in text
        assert digest in markdown


def test_every_loss_has_its_reason_and_number(tmp_path: Path) -> None:
    _, markdown = rendered(make_project(tmp_path))
    for row in (
        "| `too_short` | clean | 310 | 3.7 % |",
        "| `not JSON` | ingest | 9 | – |",
        "| near duplicate | dedupe | 400 | 5.0 % |",
        "| Survivors of deduplication | 6,900 documents | 1,100 | 13.8 % |",
    ):
        assert row in markdown


def test_html_of_strangers_is_shown_and_never_run(tmp_path: Path) -> None:
    html, _ = rendered(make_project(tmp_path))
    page = Structure(html)
    assert not page.open
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img", "iframe", "object", "link", "b"})
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "<script>alert(1)</script>" in "".join(page.text)
    assert "{{ 7*7 }}" in "".join(page.text)


def test_nothing_is_fetched_from_anywhere(tmp_path: Path) -> None:
    html, _ = rendered(make_project(tmp_path))
    page = Structure(html)
    addresses = [
        value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")
    ]
    assert addresses
    assert all(
        value and (value.startswith("#") or value == "../validate/data_docs/index.html")
        for value in addresses
    )
    assert "url(" not in html
    assert "@import" not in html


def test_control_and_bidirectional_characters_are_spelt_out(tmp_path: Path) -> None:
    for text in rendered(make_project(tmp_path)):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
        assert "⟨U+202E⟩" in text
        assert "⟨U+001B⟩" in text


def test_markdown_tables_keep_their_columns_whatever_a_source_is_called(tmp_path: Path) -> None:
    _, markdown = rendered(make_project(tmp_path))
    width = 0
    for line in outside_fences(markdown):
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        assert width in (0, cells), line
        width = cells
    assert "# heading" not in outside_fences(markdown)
    assert "`` web\\|<b>x</b>` ``" in markdown


def test_a_markdown_parser_finds_no_markup_of_strangers(tmp_path: Path) -> None:
    _, markdown = rendered(make_project(tmp_path))
    blocks = MarkdownIt("commonmark").enable("table").parse(markdown)
    inside = [token for block in blocks for token in (block, *(block.children or []))]
    assert [token.attrGet("href") for token in inside if token.type == "link_open"] == [
        "../validate/data_docs/index.html"
    ]
    html = {
        token.content.split(">")[0].strip() for token in inside if token.type in ("html_block", "html_inline")
    }
    assert html == {"<details", "<details open", "</details"}
    assert not any(token.type == "image" for token in inside)
    assert sum(token.type == "heading_open" for token in inside) == markdown.count("\n## ") + 1


def test_a_line_of_ten_thousand_characters_is_cut_and_its_length_told(tmp_path: Path) -> None:
    html, markdown = rendered(make_project(tmp_path))
    for text in (html, markdown):
        assert "x" * 400 in text
        assert "x" * 401 not in text
        assert "(10,000 characters in all)" in text


def test_lone_surrogates_do_not_stop_the_page(tmp_path: Path) -> None:
    def add(stages: dict[str, dict[str, Any]]) -> None:
        stages["ingest"]["quarantine_by_reason"]["plain"] = 1

    paths = make_project(tmp_path, add)
    file = paths.metrics("ingest")
    file.write_text(file.read_text().replace('"plain"', '"\\ud800 broken"'))
    html, _ = rendered(paths)
    assert "⟨U+D800⟩ broken" in html


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    assert rendered(make_project(tmp_path / "one")) == rendered(make_project(tmp_path / "two"))


def test_expectations_are_told_in_words_with_the_unmet_ones_first(tmp_path: Path) -> None:
    def fail(stages: dict[str, dict[str, Any]]) -> None:
        stages["validate"]["success"] = False
        stages["validate"]["expectations"].append(expectation("no_leak", 3, {"max_value": 0}, success=False))

    html, markdown = rendered(make_project(tmp_path, fail))
    rows = [line for line in markdown.splitlines() if "`figures`" in line]
    assert rows == [
        "| `no_leak` | `figures` | **not met** | 3 | at most 0 |",
        "| `enough_rows` | `figures` | **met** | 6,900 | at least 100 |",
        "| `clean_adds_up` | `figures` | **met** | 0 | 0 |",
        "| `unknown_rate` | `figures` | **met** | 0 | at most 0.001 |",
        "| `share_of_train` | `figures` | **met** | 0.85 | 0.8 to 0.9 |",
        "| `ids_are_unique` | `figures` | **met** | `6900 values, all as expected` | `values to be unique` |",
        '| `sides` | `figures` | **met** | `[\'test\', \'train\']` | `{"value_set": ["train", "test"]}` |',
    ]
    assert "The data did not pass the gate (6 of 7 expectations met)." in html


def test_an_absent_figure_is_not_measured_and_named(tmp_path: Path) -> None:
    def remove(stages: dict[str, dict[str, Any]]) -> None:
        del stages["evaluate"]["bleu"], stages["evaluate"]["baselines"]["bigram"]
        del stages["train"]["resumed_from"]

    paths = make_project(tmp_path, remove)
    figures = report(ReportParams(), paths)
    assert {"evaluate: bleu", "evaluate: baselines.bigram", "train: resumed_from"} <= set(
        figures.not_measured
    )
    assert (
        "| BLEU of continuations (0 to 100; tokenizer 13a) | *not measured* |"
        in paths.report_markdown.read_text()
    )


def test_a_complete_run_leaves_nothing_unmeasured(tmp_path: Path) -> None:
    assert report(ReportParams(), make_project(tmp_path)).disagreements == ()


@pytest.mark.parametrize(
    ("stage", "key", "sentence"),
    [
        ("clean", "documents_in", "documents: ingest wrote 8,400, but clean read 8,399"),
        ("tokenize", "documents", "documents: dedupe kept 6,900, but tokenize read 6,899"),
        ("clean", "documents_out", "documents: clean lost 401, but its reasons add up to 400"),
        (
            "dedupe",
            "near_removed",
            "documents: dedupe lost 1,100, but exact and near duplicates add up to 1,099",
        ),
    ],
)
def test_stages_that_contradict_each_other_are_pointed_out(
    tmp_path: Path, stage: str, key: str, sentence: str
) -> None:
    def lose_one(stages: dict[str, dict[str, Any]]) -> None:
        stages[stage][key] -= 1

    paths = make_project(tmp_path, lose_one)
    assert sentence in report(ReportParams(), paths).disagreements
    assert sentence in paths.report_html.read_text()


def test_a_model_no_better_than_bigrams_is_said_to_be_so(tmp_path: Path) -> None:
    def worsen(stages: dict[str, dict[str, Any]]) -> None:
        stages["evaluate"]["perplexity"] = 200.0

    html, markdown = rendered(make_project(tmp_path, worsen))
    for text in (html, markdown):
        assert "no better than a bigram model" in text


def test_a_model_that_is_not_champion_does_not_claim_it(tmp_path: Path) -> None:
    def keep_back(stages: dict[str, dict[str, Any]]) -> None:
        stages["register"].update(aliases=["candidate"])
        stages["register"]["gate"].update(verdict="refuse", reason="worse than version 2", difference=0.04)

    html, markdown = rendered(make_project(tmp_path, keep_back))
    for text in (html, markdown):
        assert "It is not the champion: worse than version 2." in text
        assert "worse than version 2" in text


def test_the_first_model_is_not_blamed_for_having_no_champion_to_meet(tmp_path: Path) -> None:
    def first(stages: dict[str, dict[str, Any]]) -> None:
        stages["register"]["champion_version"] = None
        for key in ("candidate_bits_per_byte", "champion_bits_per_byte", "difference", "interval"):
            stages["register"]["gate"][key] = None

    paths = make_project(tmp_path, first)
    assert not [note for note in report(ReportParams(), paths).not_measured if note.startswith("register")]
    assert "| Champion compared with | none |" in paths.report_markdown.read_text()
    assert "| Champion | not compared |" in paths.report_markdown.read_text()


def test_the_commit_is_no_promise_where_files_had_changed(tmp_path: Path) -> None:
    def change(stages: dict[str, dict[str, Any]]) -> None:
        stages["register"]["lineage"]["git_dirty"] = "true"

    _, markdown = rendered(make_project(tmp_path, change))
    assert "it alone need not give the same model" in markdown


def test_the_page_asks_only_for_figures_that_the_stages_write(tmp_path: Path) -> None:
    """A renamed figure would be shown as not measured for ever; its stage's own class tells it here."""
    asked = report(ReportParams(), make_project(tmp_path)).not_measured
    assert asked == ("evaluate: baselines.unigram.next_token_accuracy",)
    for stage, values in figures_of_all_stages().items():
        fields = {field.name for field in dataclasses.fields(get_type_hints(stage_function(stage))["return"])}
        assert set(values) <= fields, stage


def test_figures_of_another_type_are_refused_by_file_and_key(tmp_path: Path) -> None:
    def spoil(stages: dict[str, dict[str, Any]]) -> None:
        stages["evaluate"]["baselines"]["bigram"]["perplexity"] = "many"

    with pytest.raises(
        InputError, match=r"evaluate\.json: key baselines\.bigram\.perplexity is 'many'.* a number"
    ):
        report(ReportParams(), make_project(tmp_path, spoil))


def test_the_figure_that_the_page_cannot_do_without_is_asked_for_by_name(tmp_path: Path) -> None:
    def remove(stages: dict[str, dict[str, Any]]) -> None:
        del stages["evaluate"]["perplexity"]

    with pytest.raises(InputError, match=r"evaluate\.json: key perplexity is missing.*dvc repro evaluate"):
        report(ReportParams(), make_project(tmp_path, remove))


def test_missing_and_broken_files_are_named_with_what_to_do(tmp_path: Path) -> None:
    paths = make_project(tmp_path)
    paths.metrics("clean").write_text("{")
    with pytest.raises(InputError, match=r"clean\.json is not JSON.*dvc repro"):
        report(ReportParams(), paths)
    paths.metrics("clean").unlink()
    with pytest.raises(InputError, match=r"clean\.json is missing.*dvc repro"):
        report(ReportParams(), paths)


def test_a_history_that_holds_no_numbers_is_refused_by_line(tmp_path: Path) -> None:
    paths = make_project(tmp_path)
    paths.history.write_text("step,train_loss\n1,7.1\n2,seven\n")
    with pytest.raises(InputError, match=r"history\.csv:3: column train_loss is 'seven'"):
        report(ReportParams(), paths)


def test_secrets_of_the_environment_appear_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "s3cr&t<value>|`x`" * 30  # longer than an excerpt: cutting first would leave a part of it
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)

    def leak(stages: dict[str, dict[str, Any]]) -> None:
        stages["clean"]["dropped_samples"]["too_short"][0]["excerpt"] = f"key = {secret}"
        stages["register"]["tracking_uri"] = "https://user:hunter2@mlflow.example"
        stages["ingest"]["by_source"][secret] = {"documents": 0, "refused_records": 0}

    for text in rendered(make_project(tmp_path, leak)):
        assert "s3cr" not in text
        assert "hunter2" not in text


def test_a_title_is_text_too(tmp_path: Path) -> None:
    paths = make_project(tmp_path)
    report(ReportParams(title="<i>our</i> | model"), paths)
    assert "<h1>&lt;i&gt;our&lt;/i&gt; | model</h1>" in paths.report_html.read_text()
    assert "# \\<i\\>our\\</i\\> \\| model" in paths.report_markdown.read_text()


def test_what_a_stage_took_is_shown_where_it_was_timed_here(tmp_path: Path) -> None:
    paths = make_project(tmp_path)
    timing = {
        "started_at": "2026-01-02T03:04:05Z",
        "seconds": 83.4,
        "peak_memory_bytes": 900_000_000,
    }
    write_json(paths.timing("train"), timing)
    _, markdown = rendered(paths)
    assert "| train | 1 min 23 s | 900.00 MB | `2026-01-02T03:04:05Z` |" in markdown
    assert "| clean | *not measured* |" in markdown


def test_the_commands_name_the_recorded_commit_and_nothing_else(tmp_path: Path) -> None:
    _, markdown = rendered(make_project(tmp_path / "one"))
    assert f"git checkout {COMMIT}\n" in markdown

    def spoil(stages: dict[str, dict[str, Any]]) -> None:
        stages["register"]["lineage"]["git_commit"] = "HEAD; rm -rf ~"

    _, markdown = rendered(make_project(tmp_path / "two", spoil))
    assert "git checkout COMMIT\n" in markdown


def test_tables_have_headers_and_charts_have_titles(tmp_path: Path) -> None:
    html, _ = rendered(make_project(tmp_path))
    page = Structure(html)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("caption") == tags.count("table") > 8
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in page.tags if tag == "th")
    named = {attributes["id"] for _, attributes in page.tags if attributes.get("id")}
    charts = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(charts) == 4
    for chart in charts:
        assert chart["role"] == "img"
        assert set(str(chart["aria-labelledby"]).split()) <= named


def test_a_long_training_does_not_make_a_long_page(tmp_path: Path) -> None:
    paths = make_project(tmp_path)
    write_history(paths.history, steps=50_000)
    html, _ = rendered(paths)
    assert len(html) < 200_000


def test_without_data_docs_there_is_no_dead_link(tmp_path: Path) -> None:
    paths = make_project(tmp_path)
    (paths.data_docs / "index.html").unlink()
    html, _ = rendered(paths)
    assert "Data Docs were not written" in html
    assert "data_docs" not in html


def test_the_figures_are_json(tmp_path: Path) -> None:
    figures = report(ReportParams(), make_project(tmp_path))
    assert json.loads(json.dumps(dataclasses.asdict(figures))) == {
        "not_measured": list(figures.not_measured),
        "disagreements": [],
    }
