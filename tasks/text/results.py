"""The page's account of the model: how it was trained, how well it does, and what its small formats cost."""

from collections.abc import Mapping, Sequence

from tasks.text.charts import Chart, Line
from tasks.text.figures import Figures
from tasks.text.numerals import NOT_MEASURED, Number, count, decimal, duration, interval, measure, share, size
from tasks.text.page import (
    Block,
    Cell,
    Code,
    Excerpt,
    Excerpts,
    Figure,
    Section,
    Text,
    cells,
    prose,
    table,
    word,
)
from tasks.text.quoting import visible

History = Mapping[str, list[float | None]]
MAX_ROWS = 12
MAX_TEXTS = 6
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


def evaluation_section(evaluate: Figures, samples: Figures) -> Section:
    """Test figures with their intervals, beside baselines that any model must beat; texts to read."""
    number, ends = evaluate.number, evaluate.bounds
    bleu = f"BLEU of continuations (0 to 100; tokenizer {visible(evaluate.text('bleu_tokenizer') or NOT_MEASURED)})"
    rows = [
        ("Perplexity", measure(number("perplexity", required=True)), interval(ends("perplexity_interval"))),
        ("Loss", _loss(number("test_loss")), "–"),
        (
            "Compression",
            decimal(number("bits_per_byte"), 3, "bits/byte"),
            interval(ends("bits_per_byte_interval")),
        ),
        ("Next-token accuracy", share(number("next_token_accuracy")), "–"),
        (bleu, decimal(number("bleu"), 2), "–"),
        ("ROUGE-1 of continuations (0 to 1)", decimal(number("rouge1"), 3), "–"),
        ("ROUGE-L of continuations (0 to 1)", decimal(number("rougeL"), 3), "–"),
        ("Documents continued", count(number("continuations"), "documents"), "–"),
    ]
    judged = count(number("tokens"), "tokens")
    blocks: list[Block] = [
        table(
            f"On the test side, judged on {judged}",
            ("Figure", "Value", "95 % interval"),
            rows,
            ("Value", "95 % interval"),
        ),
        _baselines(evaluate),
        *_completions(samples),
    ]
    return Section("evaluation", "Evaluation", tuple(blocks))


def quantization_section(quantize: Figures) -> Section:
    """Size and perplexity of each small format, judged from the files that ship."""
    reference = quantize.inside("reference")
    whole = reference.number("bytes")
    perplexity = measure(reference.number("perplexity"))
    rows: list[tuple[str | Cell, ...]] = [
        ("trained model", "–", size(whole), "1.00 ×", perplexity, "–", "–", "–")
    ]
    for name, figures in quantize.inside("formats").groups():
        small = figures.number("bytes")
        rows.append(
            (
                Code(name),
                word(figures.text("engine")),
                size(small),
                decimal(whole / small if whole is not None and small else None, 2, "×"),
                measure(figures.number("perplexity")),
                share(figures.number("perplexity_increase"), 2, signed=True),
                _verdict(figures.text("verdict")),
                Code(figures.text("reason") or NOT_MEASURED, 200),
            )
        )
    headers = (
        "Format",
        "Engine",
        "Size",
        "Smaller by",
        "Perplexity",
        "Change of perplexity",
        "Verdict",
        "Reason",
    )
    judged = (
        f"{count(quantize.number('blocks'), 'test blocks')} ({count(quantize.number('tokens'), 'tokens')})"
    )
    blocks = (table(f"Judged from the saved files on {judged}", headers, rows, headers[2:6]),)
    return Section("quantization", "Small formats", blocks)


def is_accepted(verdict: str | None) -> bool:
    """Whether the verdict on a format lets it be used; quantize writes `accepted` or `refused`."""
    return verdict == "accepted"


def _verdict(verdict: str | None) -> Cell:
    if verdict in ("accepted", "refused"):
        return Text(verdict, "good" if is_accepted(verdict) else "bad")
    return word(verdict)


def _run_table(train: Figures, history: History) -> Block:
    losses = [loss for loss in history["train_loss"] if loss is not None]
    rows: list[tuple[str | Cell, ...]] = [
        ("Parameters", count(train.number("parameters"), "parameters")),
        ("Optimizer steps", count(train.number("steps", required=True), "steps")),
        ("Tokens read", count(train.number("tokens"), "tokens")),
        ("Batch of a step, over all ranks", count(train.number("global_batch_size"), "sequences")),
        ("First train loss", _loss(train.number("first_loss"))),
        ("Last train loss", _loss(train.number("final_train_loss"))),
        ("Lowest train loss logged", _loss(min(losses, default=None))),
        ("Best validation loss", _loss(train.number("best_validation_loss"))),
        ("Last validation loss", _loss(train.number("final_validation_loss"))),
        ("Stopped early", _yes(train.flag("stopped_early"))),
        ("Step of the weights kept", count(train.number("model_step"))),
        ("Speed", count(train.number("tokens_per_second"), "tokens/s")),
        ("Duration of the attempt that finished", duration(train.number("seconds"))),
        ("Most memory, all ranks together", size(train.number("peak_memory_bytes"))),
        ("Precision", word(train.text("precision"))),
        ("Device", word(train.text("device"))),
        ("Ranks", count(train.number("num_processes"))),
        ("ZeRO stage", count(train.number("zero_stage"))),
        ("Resumed from a checkpoint", _resumed(train)),
    ]
    return table("The run", ("Figure", "Value"), rows)


def _loss(value: Number) -> str:
    return decimal(value, 3, "nats/token")


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


def _completions(samples: Figures) -> list[Block]:
    """What the model wrote: after the opening of test documents, beside what they say, and from nothing."""
    continued = [
        entry for record in samples.records("continuations")[:MAX_TEXTS] for entry in _continuation(record)
    ]
    free = [
        Excerpt(cells(f"Sample {i}"), text)
        for i, text in enumerate(samples.strings("samples")[:MAX_TEXTS], 1)
    ]
    warmth = decimal(samples.number("temperature"), 2)
    blocks: list[Block] = []
    if continued:
        blocks.append(
            Excerpts(cells("Openings of test documents, continued greedily"), tuple(continued), open=True)
        )
    if free:
        blocks.append(Excerpts(cells(f"Written from nothing, at temperature {warmth}"), tuple(free)))
    return blocks or [prose("Sample completions: ", Text(NOT_MEASURED), ".")]


def _continuation(record: Figures) -> list[Excerpt]:
    labels = {
        "prompt": "The document begins",
        "greedy": "The model goes on",
        "reference": "The document goes on",
    }
    texts = [(label, record.text(key)) for key, label in labels.items()]
    return [Excerpt(cells(label), text) for label, text in texts if text is not None]


def _resumed(train: Figures) -> str:
    """`resumed_from` is null where the attempt began at the first step: not the same as absent."""
    if "resumed_from" in train.values and train.values["resumed_from"] is None:
        return "no"
    step = train.number("resumed_from")
    return NOT_MEASURED if step is None else f"yes, from step {count(step)}"


def _yes(flag: bool | None) -> str:
    return NOT_MEASURED if flag is None else "yes" if flag else "no"
