"""Unigram and bigram models counted on the train side: what a network must beat."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tasks.model.scoring import BlockSource

_BLOCKS_TOKENS_AT_ONCE = 1 << 20
# Enough that more counts change nothing; at about 10 million tokens a second this takes 20 s.
MAX_COUNTED_TOKENS = 200_000_000
_CONCENTRATIONS = tuple(float(2**exponent) for exponent in range(0, 17))


class NgramModel:
    """Token counts of `train`, and pair counts of only those pairs that the judged sides hold.

    So memory grows with the judged sides and the vocabulary, not with the train side or its pairs. Of a large
    train side evenly spaced blocks are counted, `MAX_COUNTED_TOKENS` in all.
    """

    def __init__(self, train: BlockSource, judged: list[BlockSource], vocabulary_size: int) -> None:
        self.vocabulary_size = vocabulary_size
        self.pairs = _distinct_pairs(judged, vocabulary_size)
        self.pair_counts = np.zeros(len(self.pairs), np.int64)
        self.token_counts = np.zeros(vocabulary_size, np.int64)
        self.context_counts = np.zeros(vocabulary_size, np.int64)
        self.counted_tokens = 0
        step = max(1, -(-len(train) * train.block_size // MAX_COUNTED_TOKENS))
        for ids in _pieces(train, step):
            self._count(ids)

    def unigram_nats(self, blocks: BlockSource) -> npt.NDArray[np.float64]:
        """Loss of each block's targets under add-one token frequencies."""
        logs = np.log(self._unigram())
        return np.concatenate([-logs[ids[:, 1:]].sum(axis=1) for ids in _pieces(blocks, 1)])

    def bigram_nats(self, blocks: BlockSource, concentration: float) -> npt.NDArray[np.float64]:
        """Loss of each block's targets given the token before.

        p(b | a) = (count(a, b) + m p(b)) / (count(a) + m): interpolation with the unigram whose weight falls
        with the count of the context, m being the concentration (MacKay and Peto 1995, equation 25).
        """
        unigram = self._unigram()
        parts = []
        for ids in _pieces(blocks, 1):
            context, target = ids[:, :-1], ids[:, 1:]
            where = np.searchsorted(self.pairs, context * self.vocabulary_size + target)
            top = self.pair_counts[where] + concentration * unigram[target]
            parts.append(-np.log(top / (self.context_counts[context] + concentration)).sum(axis=1))
        return np.concatenate(parts)

    def fit_concentration(self, blocks: BlockSource) -> float:
        """The power of two that loses least on `blocks`: take the validation side, never the test side."""
        losses = {m: float(self.bigram_nats(blocks, m).sum()) for m in _CONCENTRATIONS}
        return min(losses, key=lambda m: (losses[m], m))

    def _unigram(self) -> npt.NDArray[np.float64]:
        return (self.token_counts + 1) / (self.token_counts.sum() + self.vocabulary_size)

    def _count(self, ids: npt.NDArray[np.int64]) -> None:
        self.counted_tokens += ids.size
        self.token_counts += np.bincount(ids.ravel(), minlength=self.vocabulary_size)
        context = ids[:, :-1].ravel()
        self.context_counts += np.bincount(context, minlength=self.vocabulary_size)
        keys = context * self.vocabulary_size + ids[:, 1:].ravel()
        where = np.minimum(np.searchsorted(self.pairs, keys), len(self.pairs) - 1)
        found = where[self.pairs[where] == keys]
        self.pair_counts += np.bincount(found, minlength=len(self.pairs))


def _distinct_pairs(sides: list[BlockSource], vocabulary_size: int) -> npt.NDArray[np.int64]:
    distinct = [
        np.unique(ids[:, :-1] * vocabulary_size + ids[:, 1:]) for side in sides for ids in _pieces(side, 1)
    ]
    return np.unique(np.concatenate(distinct))


def _pieces(blocks: BlockSource, step: int) -> Iterator[npt.NDArray[np.int64]]:
    indices = np.arange(0, len(blocks), step, dtype=np.int64)
    rows = max(1, _BLOCKS_TOKENS_AT_ONCE // blocks.block_size)
    for start in range(0, len(indices), rows):
        yield blocks.gather(indices[start : start + rows])
