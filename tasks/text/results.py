"""The page's account of the model: how it was trained, how well it does, and what its small formats cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.text.charts import Chart, Line
from tasks.text.figures import Figures
from tasks.text.numerals import NOT_MEASURED, count, decimal, duration, interval, measure, share, size
from tasks.text.page import Block, Cell, Code, Excerpt, Excerpts, Figure, Section, Text, cells, prose, table

History = Mapping[str, list[float | None]]
MAX_ROWS = 12
PARTS = ("prompt", "text", "completion", "generated", "reference")
BASELINES = ("untrained", "unigram", "bigram")


def training_section(train: Figures, history: History) -> Section:
    """Loss, learning rate and speed against steps, and what the run was."""
    blocks: list[Block] = [_run_table(train, history)]
    charts = (
        _chart(
            history,
            "loss",
            "Loss against steps",
            "nats/token",
            {"train_loss": "train", "validation_loss": "validation"},
        ),
        _chart(
            history, "learning-rate", "Learning rate against steps", "", {"learning_rate": "learning rate"}
        ),
        _chart(
            history, "speed", "Speed against steps", "tokens/s", {"tokens_per_second": "tokens per second"}
        ),
    )
    blocks += [Figure(chart) if chart.svg else prose(f"{chart.title}: {NOT_MEASURED}.") for chart in charts]
    blocks.append(_history_table(history))
    return Section("training", "Training", tuple(blocks))


def evaluation_section(evaluate: Figures, samples: Any) -> Section:
    """Test figures with their intervals, beside baselines that any model must beat; texts to read."""
    rows = [
        (
            "Loss",
            decimal(evaluate.number("test_loss"), 3, "nats/token"),
            interval(evaluate.bounds("test_loss_interval")),
        ),
        (
            "Perplexity",
            measure(evaluate.number("perplexity", required=True)),
            interval(evaluate.bounds("perplexity_interval")),
        ),
        (
            "Next-token accuracy",
            share(evaluate.number("next_token_accuracy")),
            _shares(evaluate, "next_token_accuracy_interval"),
        ),
        ("Compression", decimal(evaluate.number("bits_per_byte"), 3, "bits/byte"), "–"),
        ("BLEU of continuations (0 to 100)", decimal(evaluate.number("bleu"), 2), "–"),
        ("ROUGE-1 of continuations (0 to 1)", decimal(evaluate.number("rouge1"), 3), "–"),
        ("ROUGE-L of continuations (0 to 1)", decimal(evaluate.number("rougeL"), 3), "–"),
    ]
    judged = count(evaluate.number("tokens"), "tokens")
    blocks: list[Block] = [
        table(
            f"On the test side, judged on {judged}",
            ("Figure", "Value", "Interval"),
            rows,
            ("Value", "Interval"),
        ),
        _baselines(evaluate),
        *_completions(samples),
    ]
    return Section("evaluation", "Evaluation", tuple(blocks))


def quantization_section(quantize: Figures) -> Section:
    """Size and perplexity of each small format, judged from the files that ship."""
    reference = quantize.inside("reference")
    whole = reference.number("bytes")
    rows: list[tuple[str | Cell, ...]] = [
        (
            "reference",
            size(whole),
            "1.00 ×",
            measure(reference.number("perplexity")),
            "–",
            Text("–"),
            Text("–"),
        )
    ]
    for name, figures in quantize.inside("formats").groups():
        small = figures.number("bytes")
        ratio = whole / small if whole is not None and small else None
        rows.append(
            (
                Code(name),
                size(small),
                decimal(ratio, 2, "×"),
                measure(figures.number("perplexity")),
                share(figures.number("perplexity_increase"), 2, signed=True),
                verdict(figures.text("verdict")),
                Code(figures.text("reason") or "", 200) if figures.has("reason") else Text("–"),
            )
        )
    headers = ("Format", "Size", "Smaller by", "Perplexity", "Change of perplexity", "Verdict", "Reason")
    return Section(
        "quantization", "Small formats", (table("Formats and what they cost", headers, rows, headers[1:5]),)
    )


def is_accepted(word: str | None) -> bool:
    """Whether a format's verdict lets it be used."""
    return word in ("accepted", "passed", "ok", "kept")


def verdict(word: str | None) -> Cell:
    """A stage's verdict in its own word, coloured where the word is known."""
    if word is None:
        return Text(NOT_MEASURED)
    if is_accepted(word):
        return Text(word, "good")
    return Text(word, "bad") if word in ("refused", "failed", "rejected") else Code(word)


def _run_table(train: Figures, history: History) -> Block:
    losses = [loss for loss in history["train_loss"] if loss is not None]
    memory = [used for used in history.get("memory_bytes", ()) if used is not None]
    rows: list[tuple[str | Cell, ...]] = [
        ("Parameters", count(train.number("parameters"), "parameters")),
        ("Optimizer steps", count(train.number("steps", required=True), "steps")),
        ("Tokens seen", count(train.number("tokens"), "tokens")),
        ("First train loss", decimal(train.number("first_loss"), 3, "nats/token")),
        ("Last train loss", decimal(train.number("final_train_loss"), 3, "nats/token")),
        ("Lowest train loss logged", decimal(min(losses), 3, "nats/token") if losses else NOT_MEASURED),
        ("Best validation loss", decimal(train.number("best_validation_loss"), 3, "nats/token")),
        ("Speed", count(train.number("tokens_per_second"), "tokens/s")),
        ("Duration", duration(train.number("seconds"))),
        ("Most memory used by a rank", size(max(memory)) if memory else NOT_MEASURED),
        ("Precision", _word(train.text("precision"))),
        ("Ranks", count(train.number("ranks"))),
        ("Resumed from a checkpoint", _yes(train.flag("resumed"))),
        ("Fingerprint of the run", _word(train.text("fingerprint"))),
    ]
    return table("The run", ("Figure", "Value"), rows, ("Value",))


def _chart(history: History, name: str, title: str, unit: str, columns: Mapping[str, str]) -> Chart:
    steps = history["step"]
    lines = []
    for (column, label), style in zip(columns.items(), ("one", "two"), strict=False):
        values = history.get(column, [])
        points = tuple((x, y) for x, y in zip(steps, values, strict=False) if x is not None and y is not None)
        if points:
            lines.append(Line(label, points, style))
    described = "; ".join(
        f"{line.label} from {measure(line.points[0][1], unit)} at step {count(line.points[0][0])} "
        f"to {measure(line.points[-1][1], unit)} at step {count(line.points[-1][0])}"
        for line in lines
    )
    return Chart(name, title, described, "step", unit, tuple(lines))


def _history_table(history: History) -> Block:
    """Some rows of the history, evenly spread: first and last among them, and where validation was looked at."""
    validation = history.get("validation_loss", [])
    looked = [index for index, loss in enumerate(validation) if loss is not None]
    indices = sorted({*_spread(list(range(len(history["step"])))), *_spread(looked)})
    columns = [
        ("Step", "step", lambda v: count(v)),
        ("Train loss (nats/token)", "train_loss", lambda v: decimal(v, 3)),
        ("Validation loss (nats/token)", "validation_loss", lambda v: "–" if v is None else decimal(v, 3)),
        ("Learning rate", "learning_rate", lambda v: measure(v)),
        ("Gradient norm", "gradient_norm", lambda v: measure(v)),
        ("Tokens/s", "tokens_per_second", lambda v: count(v)),
    ]
    rows = [
        [show(history[key][i]) if key in history else NOT_MEASURED for _, key, show in columns]
        for i in indices
    ]
    headers = [header for header, _, _ in columns]
    return table("The curves in numbers", headers, rows, headers)


def _spread(indices: Sequence[int]) -> list[int]:
    if len(indices) <= MAX_ROWS // 2:
        return list(indices)
    last, gaps = len(indices) - 1, MAX_ROWS // 2 - 1
    return [indices[last * i // gaps] for i in range(gaps + 1)]


def _baselines(evaluate: Figures) -> Block:
    baselines = evaluate.inside("baselines")
    model = evaluate.number("perplexity")
    rows: list[tuple[str | Cell, ...]] = [
        ("this model", measure(model), share(evaluate.number("next_token_accuracy")), "1.00 ×"),
    ]
    for name in [*BASELINES, *sorted(set(baselines.values) - set(BASELINES))]:
        figures = baselines.inside(name)
        perplexity = figures.number("perplexity")
        ratio = perplexity / model if perplexity is not None and model else None
        accuracy = share(figures.number("next_token_accuracy"))
        rows.append(
            (
                Text(name) if name in BASELINES else Code(name),
                measure(perplexity),
                accuracy,
                decimal(ratio, 2, "×"),
            )
        )
    headers = ("Predictor", "Perplexity", "Next-token accuracy", "Perplexity against this model")
    return table("The same test tokens predicted by others", headers, rows, headers[1:])


def _completions(samples: Any) -> list[Block]:
    """Prompts and what the model wrote; continuations also show what the document really said."""
    named = samples.items() if isinstance(samples, dict) else [("samples", samples)]
    blocks: list[Block] = []
    for name, records in named:
        if not isinstance(records, list):
            continue
        entries = [
            entry for record in records[:6] if isinstance(record, dict) for entry in _completion(record)
        ]
        if entries:
            blocks.append(
                Excerpts(cells("Texts of the model: ", Code(str(name))), tuple(entries), open=not blocks)
            )
    return blocks or [prose("Sample completions: ", Text(NOT_MEASURED), ".")]


def _completion(record: Mapping[str, Any]) -> list[Excerpt]:
    order = {key: place for place, key in enumerate(PARTS)}
    named = sorted(record, key=lambda key: (order.get(key, len(order)), key))
    return [
        Excerpt(cells(Code(key)), record[key])
        for key in named
        if isinstance(record[key], str) and record[key]
    ]


def _shares(figures: Figures, key: str) -> str:
    bounds = figures.bounds(key)
    return NOT_MEASURED if bounds is None else f"{share(bounds[0])} to {share(bounds[1])}"


def _yes(flag: bool | None) -> str:
    return NOT_MEASURED if flag is None else "yes" if flag else "no"


def _word(text: str | None) -> Cell:
    return Text(NOT_MEASURED) if text is None else Code(text)
