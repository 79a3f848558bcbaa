"""Texts that a model writes: greedy continuations of real documents, free samples, and how close they come."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.model.blocks import Blocks
from tasks.model.token_files import map_index

# Fixed, and no runtime parameter: a greedy choice between near-equal tokens may fall otherwise in another batch.
_GENERATED_AT_ONCE = 8

# Scripts written without spaces: Thai to Khmer, kana, Han with its extensions.
_HAN_RANGES = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff" + _HAN_RANGES
_HAN = re.compile(f"[{_HAN_RANGES}]")
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


@dataclass(frozen=True)
class Opening:
    """The beginning of a test document: the prompt's ids and the ids that really follow."""

    id: str
    prompt: npt.NDArray[np.int64]
    reference: npt.NDArray[np.int64]


def document_openings(
    blocks: Blocks, num_openings: int, prompt_tokens: int, reference_tokens: int
) -> list[Opening]:
    """Openings of up to `num_openings` documents of the side, evenly spaced over those that are long enough."""
    length = prompt_tokens + reference_tokens
    seen: set[str] = set()
    long_enough: list[tuple[str, npt.NDArray[np.integer[Any]]]] = []
    entries = blocks.manifest["sides"][blocks.folder.name]["shards"]
    for entry, shard in zip(entries, blocks.shards, strict=True):
        index = map_index(blocks.folder / f"{entry['name']}.idx")
        names, ends, counts = (index[column].to_pylist() for column in ("id", "end", "tokens"))
        for name, end, count in zip(names, ends, counts, strict=True):
            # More than `length`, since the end-of-document id counts. A document that goes on in the next shard
            # has a row there too, which is no opening.
            if count > length and name not in seen:
                long_enough.append((name, shard.reshape(-1)[end - count : end - count + length]))
            seen.add(name)
    places = np.unique(
        np.linspace(0, len(long_enough) - 1, min(num_openings, len(long_enough))).round().astype(int)
    )
    chosen = [long_enough[place] for place in places] if long_enough else []
    return [
        Opening(name, ids[:prompt_tokens].astype(np.int64), ids[prompt_tokens:].astype(np.int64))
        for name, ids in chosen
    ]


def generate(
    model: Any,
    prompts: npt.NDArray[np.int64],
    num_tokens: int,
    end_of_document_id: int,
    *,
    temperature: float | None = None,
    seed: int = 0,
) -> list[list[int]]:
    """Continue each of the equally long `prompts` by up to `num_tokens` ids, cut before the end of document.

    Greedy without a temperature; with one, sampled from the whole distribution with `seed`.
    """
    import torch

    device = next(model.parameters()).device
    choice: dict[str, Any] = {"do_sample": False}
    if temperature is not None:
        choice = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    texts: list[list[int]] = []
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(seed)
        for start in range(0, len(prompts), _GENERATED_AT_ONCE):
            batch = torch.from_numpy(prompts[start : start + _GENERATED_AT_ONCE]).to(device)
            output = model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=num_tokens,
                eos_token_id=end_of_document_id,
                pad_token_id=end_of_document_id,
                **choice,
            )
            texts += [_until(row, end_of_document_id) for row in output[:, batch.shape[1] :].tolist()]
    return texts


def bleu_tokenizer(texts: list[str]) -> str:
    """Name of sacrebleu's tokenizer for texts like these: 13a needs spaces and gives 0 on equal Chinese texts.

    `zh` where Han characters are most of the unspaced ones, `char` for the other scripts without spaces.
    """
    joined = "".join(texts)
    letters = sum(character.isalpha() for character in joined)
    unspaced = len(_UNSPACED_CHARACTER.findall(joined))
    if unspaced <= 0.2 * letters:
        return "13a"
    return "zh" if len(_HAN.findall(joined)) > 0.7 * unspaced else "char"


def bleu(hypotheses: list[str], references: list[str], tokenizer: str) -> float:
    """Corpus BLEU, 0 to 100, by sacrebleu with the tokenizer of that name."""
    import sacrebleu

    return float(sacrebleu.corpus_bleu(hypotheses, [references], tokenize=tokenizer).score)


class WordsAndCharacters:
    """Tokens of ROUGE: lower-cased words, single characters in scripts without spaces.

    rouge_score's own keeps nothing but a-z and 0-9, so that every other script would score 0.
    """

    def tokenize(self, text: str) -> list[str]:
        return _WORD.findall(text.lower())


def rouge(hypotheses: list[str], references: list[str]) -> dict[str, float]:
    """Mean F1 of ROUGE-1 and ROUGE-L, 0 to 1."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rougeL"], tokenizer=WordsAndCharacters())
    scores = [scorer.score(reference, text) for reference, text in zip(references, hypotheses, strict=True)]
    return {name: float(np.mean([score[name].fmeasure for score in scores])) for name in ("rouge1", "rougeL")}


def _until(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end)] if end in ids else ids
