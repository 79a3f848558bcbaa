"""Where every stage reads and writes. dvc.yaml says the same; a test compares the two."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paths:
    """All paths of the project below `root`; `data/` holds declared outputs, `.state/` what DVC must not see."""

    root: Path = Path()

    @property
    def params(self) -> Path:
        return self.root / "params.yaml"

    @property
    def dvc_lock(self) -> Path:
        return self.root / "dvc.lock"

    @property
    def dvc_yaml(self) -> Path:
        return self.root / "dvc.yaml"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def state(self) -> Path:
        """Checkpoints, shard store, object store, logs, MLflow: survives a re-run, never an output."""
        return self.root / ".state"

    def metrics(self, stage: str) -> Path:
        """The figures of a stage: the JSON that validate, register and report read."""
        return self.data / "metrics" / f"{stage}.json"

    def timing(self, stage: str) -> Path:
        """Seconds and peak memory of the stage's last run here (no output: they always differ)."""
        return self.state / "timings" / f"{stage}.json"

    def shard_store(self, stage: str) -> Path:
        """Finished shards by key, for retries and added inputs."""
        return self.state / "shards" / stage

    @property
    def snapshot_manifest(self) -> Path:
        """Object manifest: {"source", "objects": [{"key", "size", "etag", "version_id"}], "digest"}."""
        return self.data / "snapshot" / "manifest.json"

    @property
    def pretrained_tokenizer(self) -> Path:
        """What `tokenize.tokenizer` is now: {"name", "digest" or "commit"}, or {}."""
        return self.data / "snapshot" / "tokenizer.json"

    @property
    def pretrained_model(self) -> Path:
        """What `train.base_model` is now: {"name", "digest" or "commit"}, or {}."""
        return self.data / "snapshot" / "base_model.json"

    @property
    def ingest_documents(self) -> Path:
        """Folder of Parquet shards of raw documents."""
        return self.data / "ingest" / "documents"

    @property
    def ingest_quarantine(self) -> Path:
        """JSON lines {"object", "line", "reason", "excerpt"}: what could not be read."""
        return self.data / "ingest" / "quarantine.jsonl"

    @property
    def clean_documents(self) -> Path:
        """Folder of Parquet shards of clean documents, named like ingest's."""
        return self.data / "clean" / "documents"

    @property
    def clean_dropped(self) -> Path:
        """Folder of Parquet shards (id, source, reason), named like ingest's."""
        return self.data / "clean" / "dropped"

    @property
    def dedupe_documents(self) -> Path:
        """Folder of Parquet shards of survivors, with their cluster, named like clean's."""
        return self.data / "dedupe" / "documents"

    @property
    def dedupe_removed(self) -> Path:
        """Parquet of (id, source, kept_id, kind, similarity)."""
        return self.data / "dedupe" / "removed.parquet"

    @property
    def tokenizer(self) -> Path:
        """Hugging Face tokenizer folder."""
        return self.data / "tokenize" / "tokenizer"

    @property
    def token_shards(self) -> Path:
        """Folder of NAME.bin (flat ids) and NAME.idx (Arrow file of the documents), with manifest.json."""
        return self.data / "tokenize" / "shards"

    @property
    def split(self) -> Path:
        """Folders train, validation and test of packed .bin and .idx, with manifest.json."""
        return self.data / "split"

    @property
    def expectations(self) -> Path:
        """Reviewed suites of the gate: source, not output."""
        return self.data / "expectations"

    @property
    def data_docs(self) -> Path:
        """Great Expectations' HTML."""
        return self.data / "validate" / "data_docs"

    @property
    def model(self) -> Path:
        """Hugging Face model folder with its tokenizer."""
        return self.data / "train" / "model"

    @property
    def history(self) -> Path:
        """CSV of the training: step, tokens, losses, learning rate, tokens per second, memory."""
        return self.data / "train" / "history.csv"

    @property
    def checkpoints(self) -> Path:
        """Folder of one folder a fingerprint: undeclared, so that DVC deletes nothing that a retry needs."""
        return self.state / "train"

    @property
    def evaluate_samples(self) -> Path:
        """JSON of prompts, references and generated texts."""
        return self.data / "evaluate" / "samples.json"

    @property
    def test_losses(self) -> Path:
        """Parquet of (block, nats, tokens, bytes): what the paired gate compares."""
        return self.data / "evaluate" / "test_losses.parquet"

    @property
    def quantized(self) -> Path:
        """One folder a format."""
        return self.data / "quantize"

    @property
    def report_html(self) -> Path:
        return self.data / "report" / "report.html"

    @property
    def report_markdown(self) -> Path:
        return self.data / "report" / "report.md"
