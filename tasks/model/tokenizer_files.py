"""A tokenizer made elsewhere, brought into the project as the files that `AutoTokenizer` and encoding both read."""

import shutil
from pathlib import Path

from tasks.kit.errors import EnvironmentProblem, InputError, ParamsError
from tasks.kit.files import read_json, write_json

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
)
_PROBE = " Hello, world!\n\n\tdef f(x):  # 漢字 naïve 😀 12345"


def copy_tokenizer(name: str, folder: Path) -> None:
    """Copy the tokenizer of a local folder or of a hub id (`owner/name` or `owner/name@revision`) into `folder`.

    Its files stay as they are, but for a padding token where it has none and can spare one.

    Raises:
        ParamsError: there is no such folder, or it holds no tokenizer.json.
        EnvironmentProblem: the hub does not answer and the cache lacks it.
        InputError: transformers reads the same files to other ids.
    """
    source = Path(name) if Path(name).exists() else _download(name)
    if not (source / "tokenizer.json").is_file():
        raise ParamsError(
            f"tokenize.tokenizer {name!r}: {source} holds no tokenizer.json. Other forms (a SentencePiece .model, "
            "vocab.txt) are brought into this one by loading them with transformers and save_pretrained"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        if (source / file).is_file():
            shutil.copyfile(source / file, folder / file)
    _give_padding(folder)
    _check_transformers(folder, name)


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=list(FILES)))
    except HFValidationError:
        raise ParamsError(
            f"tokenize.tokenizer {name!r} is no folder here, and no hub id (owner/name)"
        ) from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise EnvironmentProblem(
            f"tokenize.tokenizer {name!r} is no folder here, and the hub did not give it "
            f"({' '.join(str(error).split())[:200]}): check the name, the network and HF_TOKEN"
        ) from None


def _give_padding(folder: Path) -> None:
    """Pad with the unknown token where no padding is named: a new token would lie beyond the model's embedding."""
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.exists() else {"tokenizer_class": "PreTrainedTokenizerFast"}
    if not config.get("pad_token") and config.get("unk_token"):
        config["pad_token"] = config["unk_token"]
    write_json(path, config)


def _check_transformers(folder: Path, name: str) -> None:
    """transformers 5 builds some tokenizers anew from their parts: prompts would get other ids than the shards."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    try:
        theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(f"tokenize.tokenizer {name!r}: transformers cannot load it ({error})") from None
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(_PROBE, add_special_tokens=False).ids
    if theirs(_PROBE, add_special_tokens=False)["input_ids"] != ids:
        raise InputError(
            f"tokenize.tokenizer {name!r}: transformers' {type(theirs).__name__} and tokenizer.json encode the same "
            'text to different ids; in a copy of it, set "tokenizer_class": "PreTrainedTokenizerFast" in '
            "tokenizer_config.json"
        )
