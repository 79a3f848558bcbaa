"""Versions of the registered model: found by tag, created once, aliases moved one registration at a time."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.kit.console import redact
from tasks.kit.errors import EnvironmentProblem
from tasks.kit.paths import Paths
from tasks.kit.tracking import Run, download, reported, store, store_lock, tracking_uri

MODEL_FOLDER = "model"


@dataclass(frozen=True)
class Version:
    """One version of a registered model; `source` is the address of its artifacts."""

    number: str
    source: str
    tags: Mapping[str, str]


class ModelRegistry:
    """The versions of the model `name`."""

    def __init__(self, client: Any, experiment_id: str, name: str, paths: Paths) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._name = name
        self._paths = paths

    def by_alias(self, alias: str) -> Version | None:
        """The version that an alias points to, or none."""
        models = self._client.search_registered_models(f"name = '{self._name}'")
        number = models[0].aliases.get(alias) if models else None
        return None if number is None else _version(self._client.get_model_version(self._name, str(number)))

    def by_tag(self, key: str, value: str) -> Version | None:
        """The newest version whose tag `key` has that value, or none."""
        found = self._client.search_model_versions(f"name = '{self._name}' and tags.`{key}` = '{value}'")
        return _version(max(found, key=lambda version: int(version.version))) if found else None

    def create(
        self, run: Run, folders: Mapping[str, Path], params: Mapping[str, str], tags: Mapping[str, str]
    ) -> Version:
        """Log `folders` (place: folder) as one model of `run` and make it the next version."""
        clean = {key: redact(value) for key, value in tags.items()}
        model = self._client.create_logged_model(
            self._experiment_id, self._name, source_run_id=run.run_id, tags=clean, params=dict(params)
        )
        try:
            for place, folder in folders.items():
                self._client.log_model_artifacts(model.model_id, str(folder), place)
        except BaseException:
            self._client.finalize_logged_model(model.model_id, "FAILED")
            raise
        self._client.finalize_logged_model(model.model_id, "READY")
        if not self._client.search_registered_models(f"name = '{self._name}'"):
            self._client.create_registered_model(self._name)
        created = self._client.create_model_version(
            self._name, model.artifact_location, run_id=run.run_id, tags=clean, model_id=model.model_id
        )
        return _version(created)

    def set_alias(self, alias: str, version: Version) -> None:
        """Point an alias to a version."""
        self._client.set_registered_model_alias(self._name, alias, version.number)

    def aliases_of(self, version: Version) -> list[str]:
        """The aliases that point to a version, sorted."""
        return sorted(self._client.get_model_version(self._name, version.number).aliases)

    def set_tags(self, version: Version, tags: Mapping[str, str]) -> None:
        """Set tags of a version, redacted."""
        for key, value in tags.items():
            self._client.set_model_version_tag(self._name, version.number, key, redact(value))

    def fetch_model(self, version: Version, target: Path) -> Path:
        """Copy the model folder of a version below `target`. Returns it.

        Raises:
            EnvironmentProblem: its artifacts are gone; says how to go on.
        """
        uri = f"{version.source}/{MODEL_FOLDER}"
        try:
            folder = download(self._paths, uri, target)
        except EnvironmentProblem as error:
            problem = str(error)
        else:
            if (folder / "config.json").exists():
                return folder
            problem = "no config.json there"
        raise EnvironmentProblem(
            f"the artifacts of version {version.number} of {self._name} at {redact(uri)} cannot be fetched "
            f"({problem}): restore them, or delete the alias champion of that model, then run register again"
        )


@contextlib.contextmanager
def open_registry(paths: Paths, name: str) -> Iterator[ModelRegistry]:
    """The versions of `name`, for one registration at a time where the store is a local file.

    Raises:
        EnvironmentProblem: the store does not answer or refuses a call.
    """
    with (
        store_lock(tracking_uri(paths), "registry"),
        store(paths) as (client, experiment_id),
        reported(paths),
    ):
        yield ModelRegistry(client, experiment_id, name, paths)


def _version(found: Any) -> Version:
    return Version(str(found.version), found.source, dict(found.tags))
