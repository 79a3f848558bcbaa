"""What every section refuses."""

import pytest

from tasks.kit.errors import ParamsError
from tasks.params.train import TrainParams
from tasks.params.tree import parse_params


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("max_steps: yes", r"p:2: train\.max_steps: input should be a number, not a yes or no, found True"),
        ("patience: on", r"p:2: train\.patience: input should be a number"),
        ("learning_rate: no", r"p:2: train\.learning_rate: input should be a number, .*found False"),
        ("model: {dropout: false}", r"p:2: train\.model\.dropout: input should be a number"),
        ("epochs: .inf", r"p:2: train\.epochs: input should be a finite number, found inf"),
        ("weight_decay: .nan", r"p:2: train\.weight_decay: input should be a finite number, found nan"),
        ("learning_rate: inf", r"p:2: train\.learning_rate: input should be a finite number"),
    ],
)
def test_what_is_no_finite_number_is_refused_with_its_key(line: str, words: str) -> None:
    with pytest.raises(ParamsError, match=words):
        parse_params(f"train:\n  {line}\n", "p")


def test_yes_and_no_stay_good_for_switches_and_whole_numbers_for_floats() -> None:
    params = parse_params(
        "train: {learning_rate: 1, max_steps: null, model: {tie_embeddings: no}}", "p"
    ).train
    assert params == TrainParams.model_validate(
        {"learning_rate": 1.0, "max_steps": None, "model": {"tie_embeddings": False}}
    )
