"""The page's account of the data: from objects to training tokens, with every loss and its reason."""

from collections.abc import Iterator, Mapping

from tasks.text.charts import Bars
from tasks.text.figures import Figures
from tasks.text.numerals import NOT_MEASURED, Number, count, decimal, share, share_of, size
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

MAX_SAMPLES = 10
SIDES = ("train", "validation", "test")


def funnel_section(stages: Mapping[str, Figures]) -> Section:
    """Objects, documents, clean, survivors and the three sides, each with what it lost and why."""
    blocks: list[Block] = [
        _origin(stages["snapshot"]),
        _bars(stages),
        _steps(stages),
        _reasons(stages),
        _repairs(stages["clean"]),
    ]
    blocks += [_sources(stages), _sides(stages)]
    blocks += _dropped_samples(stages["clean"])
    blocks += _duplicate_samples(stages["dedupe"])
    return Section("data", "Data: from objects to tokens", tuple(blocks))


def disagreements(stages: Mapping[str, Figures]) -> list[str]:
    """Where the counts of two stages, or the sums within one, do not fit: such a report is not to be trusted."""
    ingest, clean, dedupe, tokenize = (stages[name] for name in ("ingest", "clean", "dedupe", "tokenize"))
    dropped = sum(number for _, number in clean.inside("dropped_by_reason").counts())
    removed = _total(dedupe, "exact_removed", "near_removed")
    sides = [side.number("documents") for _, side in stages["split"].inside("sides").groups()]
    placed = None if None in sides else sum(number for number in sides if number is not None)
    pairs: list[tuple[str, Number, str, Number]] = [
        (
            "objects: snapshot listed",
            stages["snapshot"].number("objects"),
            "ingest was given",
            ingest.number("objects"),
        ),
        ("documents: ingest wrote", ingest.number("documents"), "clean read", clean.number("documents_in")),
        (
            "documents: clean kept",
            clean.number("documents_out"),
            "dedupe read",
            dedupe.number("documents_in"),
        ),
        (
            "documents: dedupe kept",
            dedupe.number("documents_out"),
            "tokenize read",
            tokenize.number("documents"),
        ),
        (
            "documents: tokenize wrote",
            tokenize.number("documents"),
            "the sides of the split add up to",
            placed,
        ),
        ("documents: clean lost", _difference(clean), "its reasons add up to", dropped),
        ("documents: dedupe lost", _difference(dedupe), "exact and near duplicates add up to", removed),
    ]
    return [
        f"{one} {count(left)}, but {other} {count(right)}"
        for one, left, other, right in pairs
        if left is not None and right is not None and left != right
    ]


def _origin(snapshot: Figures) -> Block:
    objects, stored = count(snapshot.number("objects"), "objects"), size(snapshot.number("bytes"))
    return prose("Read from ", word(snapshot.text("source")), f": {objects}, {stored}.")


def _bars(stages: Mapping[str, Figures]) -> Block:
    sides = stages["split"].inside("sides", required=True)
    numbers = [
        ("read", stages["ingest"].number("documents")),
        ("clean", stages["clean"].number("documents_out")),
        ("survivors", stages["dedupe"].number("documents_out")),
        *((side, sides.inside(side).number("documents")) for side in SIDES),
    ]
    bars = tuple((label, number, count(number)) for label, number in numbers if number is not None)
    return Figure(Bars("funnel", "Documents left after each step", bars, "documents"))


def _steps(stages: Mapping[str, Figures]) -> Block:
    ingest, clean, dedupe = stages["ingest"], stages["clean"], stages["dedupe"]
    read = ingest.number("documents", required=True)
    cleaned = clean.number("documents_out", required=True)
    kept = dedupe.number("documents_out", required=True)
    refused_records, dropped, removed = (
        ingest.number("refused_records"),
        _difference(clean),
        _difference(dedupe),
    )
    objects, refused_objects = ingest.number("objects"), ingest.number("refused_objects")
    readable = None if objects is None or refused_objects is None else objects - refused_objects
    rows = [
        (
            "Objects read",
            count(readable, "objects"),
            count(refused_objects),
            share_of(refused_objects, objects),
        ),
        (
            "Documents read",
            count(read, "documents"),
            count(refused_records),
            share_of(refused_records, _tried(ingest)),
        ),
        ("Clean", count(cleaned, "documents"), count(dropped), share_of(dropped, read)),
        ("Survivors of deduplication", count(kept, "documents"), count(removed), share_of(removed, cleaned)),
    ]
    headers = ("Step", "Kept", "Removed", "Share removed")
    return table("What was kept and what was removed at each step", headers, rows, headers[1:])


def _reasons(stages: Mapping[str, Figures]) -> Block:
    rows: list[tuple[str | Cell, ...]] = []
    refused = stages["ingest"].inside("quarantine_by_reason").counts()
    rows += [(Code(reason), "ingest", count(number), "–") for reason, number in refused]
    whole = stages["clean"].number("documents_in")
    dropped = stages["clean"].inside("dropped_by_reason").counts()
    rows += [(Code(reason), "clean", count(number), share_of(number, whole)) for reason, number in dropped]
    dedupe = stages["dedupe"]
    whole = dedupe.number("documents_in")
    for label, key in (("exact duplicate", "exact_removed"), ("near duplicate", "near_removed")):
        rows.append((label, "dedupe", count(dedupe.number(key)), share_of(dedupe.number(key), whole)))
    headers = ("Reason", "Stage", "Removed", "Share of the stage's input")
    return table("Why objects, records and documents were removed", headers, rows, headers[2:])


def _repairs(clean: Figures) -> Block:
    whole = clean.number("documents_out")
    scripts = clean.inside("by_script").counts()
    rows: list[tuple[str | Cell, ...]] = [
        (
            "HTML turned into text",
            count(clean.number("html_converted")),
            share_of(clean.number("html_converted"), whole),
        ),
        (
            "Wrong encoding undone",
            count(clean.number("mojibake_repaired")),
            share_of(clean.number("mojibake_repaired"), whole),
        ),
        *(
            (Text(f"Mostly in {visible(script)} script"), count(n), share_of(n, whole))
            for script, n in scripts
        ),
    ]
    headers = ("Clean documents that were", "Documents", "Share of clean documents")
    return table(
        f"What was repaired, and how it is written ({count(clean.number('characters_out'), 'characters')})",
        headers,
        rows,
        headers[1:],
    )


def _sources(stages: Mapping[str, Figures]) -> Block:
    by_stage = {
        name: dict(stages[name].inside("by_source").groups()) for name in ("ingest", "clean", "dedupe")
    }
    nothing = Figures("", {}, set())
    rows = []
    for source in sorted(set().union(*by_stage.values())):
        ingest, clean, dedupe = (
            by_stage[name].get(source, nothing) for name in ("ingest", "clean", "dedupe")
        )
        read = ingest.number("documents")
        dropped, removed, kept = _difference(clean), _difference(dedupe), dedupe.number("documents_out")
        lost = [number for number in (dropped, removed) if number is not None]
        rows.append(
            (
                Code(source),
                count(read),
                count(ingest.number("refused_records")),
                count(dropped if clean.values else 0),
                count(removed if dedupe.values else 0),
                count(kept if dedupe.values else 0),
                share_of(read - sum(lost), read) if read is not None and lost else NOT_MEASURED,
            )
        )
    headers = ("Source", "Read", "Refused", "Dropped by clean", "Duplicates", "Survivors", "Share kept")
    return table("Documents by source", headers, rows, headers[1:])


def _sides(stages: Mapping[str, Figures]) -> Block:
    split = stages["split"]
    sides = split.inside("sides", required=True)
    figures = {side: sides.inside(side) for side in SIDES}
    numbers = [figures[side].number("documents") for side in SIDES]
    whole = None if None in numbers else sum(number for number in numbers if number is not None)
    rows = [
        (
            side,
            count(figures[side].number("documents")),
            share_of(figures[side].number("documents"), whole),
            count(figures[side].number("clusters")),
            count(figures[side].number("blocks")),
            count(figures[side].number("tokens")),
            count(figures[side].number("dropped_tail_tokens")),
        )
        for side in SIDES
    ]
    block_size = count(split.number("block_size"), "tokens")
    headers = ("Side", "Documents", "Share", "Clusters", "Blocks", "Tokens in blocks", "Tokens in no block")
    return table(f"Split by cluster, in blocks of {block_size}", headers, rows, headers[1:])


def tokenizer_section(tokenize: Figures) -> Section:
    """What the tokenizer is and how well it fits the corpus."""
    rows = [
        ("Vocabulary", count(tokenize.number("vocabulary_size"), "entries")),
        ("Tokens of the corpus", count(tokenize.number("tokens"), "tokens")),
        ("Compression", decimal(tokenize.number("characters_per_token"), 2, "characters/token")),
        ("Unknown tokens", share(tokenize.number("unknown_rate"), 4)),
        (
            "Train documents that it was trained on",
            count(tokenize.number("train_documents_seen"), "documents"),
        ),
        ("Decoded again", word(tokenize.text("round_trip"))),
        ("Largest id in use", count(tokenize.number("max_id"))),
        ("Encoded with", word(tokenize.text("fast_path"))),
    ]
    return Section(
        "tokenizer", "Tokenizer", (table("How the corpus was cut into tokens", ("Figure", "Value"), rows),)
    )


def _dropped_samples(clean: Figures) -> Iterator[Block]:
    samples = clean.inside("dropped_samples")
    for reason in sorted(samples.values):
        records = samples.records(reason)[:MAX_SAMPLES]
        entries = tuple(
            Excerpt(cells(word(r.text("source")), " · ", word(r.text("id"))), r.text("excerpt") or "")
            for r in records
        )
        if entries:
            yield Excerpts(
                cells("Dropped as ", Code(reason), f": {_plural(len(entries), 'sample')}"), entries
            )


def _duplicate_samples(dedupe: Figures) -> Iterator[Block]:
    entries: list[Excerpt] = []
    for record in dedupe.records("samples")[:MAX_SAMPLES]:
        about = f"{visible(record.text('kind') or '')} duplicate, similarity {decimal(record.number('similarity'), 3)}"
        removed = cells("removed ", word(record.text("id")), f" · {about} · ", word(record.text("source")))
        entries.append(Excerpt(removed, record.text("excerpt") or ""))
        entries.append(
            Excerpt(cells("kept ", word(record.text("kept_id"))), record.text("kept_excerpt") or "")
        )
    if entries:
        yield Excerpts(
            cells(f"Removed as duplicates: {_plural(len(entries) // 2, 'pair')}, the removed one first"),
            tuple(entries),
        )


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _tried(ingest: Figures) -> Number:
    read, refused = ingest.number("documents"), ingest.number("refused_records")
    return None if read is None or refused is None else read + refused


def _difference(figures: Figures) -> Number:
    before, after = figures.number("documents_in"), figures.number("documents_out")
    return None if before is None or after is None else before - after


def _total(figures: Figures, *keys: str) -> Number:
    numbers = [figures.number(key) for key in keys]
    return None if None in numbers else sum(number for number in numbers if number is not None)
