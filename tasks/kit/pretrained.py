"""What a pretrained model or tokenizer is, beyond its name: the digest of a folder, the commit of a hub id."""

from pathlib import Path
from typing import Any

from tasks.kit.errors import EnvironmentProblem, ParamsError
from tasks.kit.files import folder_digest


def identity_of(name: str | None, key: str) -> dict[str, Any]:
    """{"name", "digest" or "commit"} of a folder or of a hub id (`owner/name`, `owner/name@revision`); {} for none.

    A folder's content and a hub's branch can change under the same name, so the name alone would let a stage be
    taken for fresh. `key` is the parameter that holds the name, for the messages.

    Raises:
        ParamsError: it is neither a folder here nor of a hub id's form.
        EnvironmentProblem: the hub does not say, and no copy of it lies on this machine.
    """
    if name is None:
        return {}
    folder = Path(name).expanduser()
    if folder.is_dir():
        return {"name": name, "digest": folder_digest(folder)}
    return {"name": name, "commit": _hub_commit(name, key)}


def _hub_commit(name: str, key: str) -> str:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    try:
        return str(HfApi().model_info(repository, revision=revision or None, timeout=20).sha)
    except HFValidationError:
        raise ParamsError(f"{key}: {name!r} is neither a folder here nor a hub id (owner/name)") from None
    except Exception as error:
        reason = type(error).__name__
    try:  # without a network, what an earlier run brought here is what will be used
        local = snapshot_download(repository, revision=revision or None, local_files_only=True)
    except (LocalEntryNotFoundError, OSError, ValueError):
        raise EnvironmentProblem(
            f"{key}: {name!r} is no folder here, and the hub did not give it ({reason}): check the name, the network "
            "and HF_TOKEN, or name a local folder"
        ) from None
    return Path(local).name
