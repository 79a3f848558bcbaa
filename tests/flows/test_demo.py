"""What the demo says at its end, from figures of the documented form, and from none."""

from pathlib import Path

from flows.demo import summary
from tasks.kit.files import write_json
from tasks.kit.paths import Paths


def test_the_summary_names_perplexity_baselines_completion_version_and_timings(done: Path) -> None:
    paths = Paths(done)
    write_json(paths.timing("words"), {"seconds": 61.5})
    write_json(
        paths.metrics("evaluate"),
        {
            "perplexity": 50.0,
            "perplexity_interval": [45.0, 55.0],
            "baselines": {"untrained": {"perplexity": 2000.0}, "bigram": {"perplexity": 100.0}},
        },
    )
    write_json(
        paths.evaluate_samples, {"continuations": [{"prompt": "Return the", "greedy": " name\nof it"}]}
    )
    write_json(paths.metrics("register"), {"name": "train-llm", "version": 3, "aliases": ["candidate"]})
    text = summary(done)
    assert "words       61.5 s  documents" in text
    assert "Test perplexity 50.0 (95 % between 45.0 and 55.0)" in text
    assert "40.0 times the model's" in text
    assert "Return the\n          ->  name of it" in text
    assert "Registered: train-llm version 3, alias candidate" in text


def test_figures_that_are_absent_or_of_another_form_leave_their_line_out(done: Path) -> None:
    paths = Paths(done)
    write_json(paths.metrics("evaluate"), {"perplexity": None, "baselines": []})
    write_json(paths.evaluate_samples, [])
    text = summary(done)
    assert "perplexity" not in text
    assert "Next, change one thing" in text
