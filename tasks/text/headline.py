"""The top of the page: whether this model is any good, in one sentence and a few figures."""

from collections.abc import Mapping, Sequence

from tasks.text.figures import Figures
from tasks.text.numerals import NOT_MEASURED, count, interval, measure
from tasks.text.page import Cell, Code, Prose, Text, prose, word
from tasks.text.quoting import visible
from tasks.text.results import is_accepted

Fact = tuple[str, Cell, str]


def headline(stages: Mapping[str, Figures]) -> Prose:
    """One sentence for somebody who reads no other."""
    register = stages["register"]
    model, untrained, bigram = _perplexities(stages["evaluate"])
    return prose(
        Code(register.text("name", required=True) or ""),
        " version ",
        word(register.text("version")),
        ": on text that it has never seen, this model is as unsure of the next token as if it chose between "
        f"{measure(model)} equally likely ones (an untrained model: {measure(untrained)}; a table of which token "
        f"follows which: {measure(bigram)}). {_gate_sentence(stages['validate'])} {_standing_sentence(register)}",
    )


def facts(stages: Mapping[str, Figures]) -> tuple[Fact, ...]:
    """The figures that decide, each with a remark."""
    evaluate, train, register = stages["evaluate"], stages["train"], stages["register"]
    model, untrained, bigram = _perplexities(evaluate)
    train_side = stages["split"].inside("sides").inside("train")
    return (
        ("Standing", _standing(register), f"aliases: {', '.join(register.strings('aliases')) or 'none'}"),
        (
            "Test perplexity",
            Text(measure(model)),
            f"interval {interval(evaluate.bounds('perplexity_interval'))}",
        ),
        ("Untrained twin", Text(measure(untrained)), _times(untrained, model)),
        ("Bigram model", Text(measure(bigram)), _times(bigram, model)),
        ("Data gate", _gate(stages["validate"]), _met(stages["validate"])),
        ("Small formats", *_formats(stages["quantize"])),
        (
            "Trained on",
            Text(count(train.number("tokens"))),
            f"tokens, of a train side of {count(train_side.number('tokens'), 'tokens')}",
        ),
        ("Size", Text(count(train.number("parameters"))), "parameters"),
    )


def warnings(stages: Mapping[str, Figures], disagreements: Sequence[str]) -> tuple[Prose, ...]:
    """What a reader must know before trusting anything below."""
    found = [
        prose(f"the figures of two stages do not fit together: {sentence}.", mark="warn")
        for sentence in disagreements
    ]
    model, untrained, bigram = _perplexities(stages["evaluate"])
    for name, other in (("an untrained model", untrained), ("a bigram model", bigram)):
        if model is not None and other is not None and model >= other:
            found.append(prose(f"the model predicts the test side no better than {name} does.", mark="bad"))
    if stages["validate"].flag("success", required=True) is False:
        found.append(
            prose("the data did not pass the gate; see the expectations that were not met.", mark="bad")
        )
    return tuple(found)


def _perplexities(evaluate: Figures) -> tuple[int | float | None, ...]:
    baselines = evaluate.inside("baselines")
    return (
        evaluate.number("perplexity", required=True),
        *(baselines.inside(name).number("perplexity") for name in ("untrained", "bigram")),
    )


def _gate_sentence(validate: Figures) -> str:
    if validate.flag("success", required=True):
        return f"The data passed the gate ({_met(validate)})."
    return f"The data did not pass the gate ({_met(validate)})."


def _standing_sentence(register: Figures) -> str:
    if "champion" in register.strings("aliases"):
        return "It is the champion."
    reason = register.inside("gate").text("reason")
    return f"It is not the champion: {visible(reason) if reason else NOT_MEASURED}."


def _standing(register: Figures) -> Cell:
    aliases = register.strings("aliases")
    if "champion" in aliases:
        return Text("champion", "good")
    return Text("candidate", "warn") if "candidate" in aliases else Text("not registered as either", "warn")


def _gate(validate: Figures) -> Cell:
    return Text("passed", "good") if validate.flag("success", required=True) else Text("refused", "bad")


def _met(validate: Figures) -> str:
    expectations = validate.records("expectations")
    met = sum(expectation.flag("success") is True for expectation in expectations)
    return f"{met} of {len(expectations)} expectations met"


def _formats(quantize: Figures) -> tuple[Cell, str]:
    formats = dict(quantize.inside("formats").groups())
    if not formats:
        return Text(NOT_MEASURED), "no format was made"
    accepted = sum(is_accepted(figures.text("verdict")) for figures in formats.values())
    return Text(f"{accepted} of {len(formats)}", "good" if accepted == len(formats) else "warn"), "accepted"


def _times(other: int | float | None, model: int | float | None) -> str:
    if other is None or not model:
        return "perplexity on the same tokens"
    return f"perplexity, {measure(other / model)} times this model's"
