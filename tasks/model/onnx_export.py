"""Weight-only int8 and int4 ONNX folders of a Hugging Face model, and the saved files as a function of ids.

onnxruntime-genai's builder writes graphs with a key/value cache that its engine serves. Its attention kernel takes
head sizes of a multiple of 16 only, and it knows some twenty architectures; for the others the graph is traced by
PyTorch, without a cache, and quantized by ONNX Runtime.
"""

import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.kit.console import redact
from tasks.kit.errors import EnvironmentProblem, StageError
from tasks.kit.files import empty_folder
from tasks.kit.processes import run_child
from tasks.model.saved_model import load_model
from tasks.model.scoring import Logits, model_logits, score_ids

logger = logging.getLogger("train_llm")

GENAI = "onnxruntime-genai"
TRACED = "onnxruntime"

_BITS = {"int8": 8, "int4": 4}
_BLOCK_OF_WEIGHTS = 32  # weights that share a scale; both engines' default
_MAX_SECONDS = 3600
_TOKENIZER_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def export(model_folder: Path, output: Path, number_format: str, sample: npt.NDArray[np.int64]) -> str:
    """Write the model in `number_format` (int8 or int4) to the folder `output`. Returns the engine that it is for.

    `sample` (num_blocks, block_size) is what a graph must run on, and a traced one must agree on, to be taken.

    Raises:
        EnvironmentProblem: a package of the builder is missing.
        StageError: neither way works for this architecture.
    """
    _require("onnx", "onnx_ir")
    reason = _build(model_folder, output, number_format)
    if reason is None:
        reason = _why_not_running(output, sample)
    if reason is None:
        return GENAI
    logger.info("%s does not take this model (%s): tracing it instead", GENAI, reason)
    try:
        _trace(model_folder, output, _BITS[number_format], sample)
    except Exception as error:
        shutil.rmtree(output, ignore_errors=True)
        architecture = json.loads((model_folder / "config.json").read_text(encoding="utf-8")).get(
            "model_type"
        )
        raise StageError(
            f"a model of the architecture {architecture!r} cannot be written as {number_format}: {GENAI} says "
            f"{reason!r}, tracing says {_last_line(str(error))!r}. Choose another train.model.architecture, a head "
            f"size that is a multiple of 16, or take {number_format} out of quantize.formats"
        ) from None
    return TRACED


def session_logits(folder: Path) -> Logits:
    """The logits of the model.onnx in `folder`, whichever way it was made."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4  # a graph that a kernel refuses is reported by us
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    shapes = _cache_shape(folder)
    names = [value.name for value in session.get_inputs()]
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    cache_types = {value.name: types.get(value.type, np.float32) for value in session.get_inputs()}

    def logits(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        inputs: dict[str, Any] = {}
        for name in names:
            if name == "input_ids":
                inputs[name] = ids
            elif name == "attention_mask":
                inputs[name] = np.ones_like(ids)
            elif name == "position_ids":
                inputs[name] = np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy()
            else:  # an empty cache
                heads, head_size = shapes
                inputs[name] = np.zeros((len(ids), heads, 0, head_size), cache_types[name])
        values: npt.NDArray[np.float32] = session.run(["logits"], inputs)[0].astype(np.float32, copy=False)
        return values

    return logits


def decode_speed(folder: Path, prompt: Sequence[int], num_tokens: int) -> float:
    """Tokens a second that onnxruntime-genai decodes greedily from the folder's files, after the prompt."""
    import onnxruntime_genai

    model = onnxruntime_genai.Model(str(folder))
    params = onnxruntime_genai.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt) + num_tokens, min_length=len(prompt) + num_tokens)
    generator = onnxruntime_genai.Generator(model, params)
    generator.append_tokens(np.array(prompt, np.int32))
    generator.generate_next_token()
    began = time.perf_counter()
    count = 0
    while not generator.is_done():
        generator.generate_next_token()
        count += 1
    return count / max(time.perf_counter() - began, 1e-9)


def _require(*modules: str) -> None:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        packages = " and ".join(module.replace("_", "-") for module in missing)
        raise EnvironmentProblem(
            f"{packages} missing, which the quantizer needs: pip install -c constraints.txt -e ."
        )


def _build(model_folder: Path, output: Path, number_format: str) -> str | None:
    """Run the builder in a process of its own. Returns why it failed, or none."""
    empty_folder(output)
    # The builder stamps `git rev-parse HEAD` of wherever it stands into the graph: two commits, two files.
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "GIT_DIR": os.devnull}
    with tempfile.TemporaryDirectory() as scratch:
        source, target = str(model_folder.resolve()), str(output.resolve())
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", source, "-i", source]
        command += ["-o", target, "-p", number_format, "-e", "cpu", "-c", scratch]
        try:
            result = run_child(command, cwd=scratch, env=environment, max_seconds=_MAX_SECONDS)
        except subprocess.TimeoutExpired:
            return f"not finished after {_MAX_SECONDS} s"
    if result.returncode or not (output / "model.onnx").exists():
        return _last_line(result.stderr)
    return None


def _why_not_running(folder: Path, sample: npt.NDArray[np.int64]) -> str | None:
    """Why ONNX Runtime cannot run the graph, or none: the builder also writes graphs that no kernel takes."""
    try:
        nats, _ = score_ids(session_logits(folder), sample)
    except Exception as error:  # the runtime's own exceptions share no public base
        return _last_line(str(error))
    return None if np.isfinite(nats).all() else "its losses are not finite"


def _trace(model_folder: Path, output: Path, bits: int, sample: npt.NDArray[np.int64]) -> None:
    import onnx
    import torch
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    logging.getLogger("onnxruntime.quantization.matmul_nbits_quantizer").setLevel(logging.ERROR)
    model = load_model(model_folder).cpu()
    model.set_attn_implementation("eager")

    class LogitsOnly(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits

    names = ("input_ids", "attention_mask", "logits")
    example = torch.ones(2, 16, dtype=torch.long)
    empty_folder(output)
    traced = output / "model.onnx"
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # of tracing; what it got wrong shows in the comparison below
        torch.onnx.export(
            LogitsOnly().eval(),
            (example, example),
            str(traced),
            dynamo=False,
            input_names=list(names[:2]),
            output_names=[names[2]],
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in names},
            opset_version=21,
        )
    expected, _ = score_ids(model_logits(model), sample)
    found, _ = score_ids(session_logits(output), sample)
    if not np.allclose(found, expected, rtol=1e-3):
        raise StageError("the traced graph gives other losses than the model")
    quantizer = MatMulNBitsQuantizer(
        onnx.load(traced),
        bits=bits,
        block_size=_BLOCK_OF_WEIGHTS,
        is_symmetric=True,
        op_types_to_quantize=("MatMul",),
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(traced), use_external_data_format=False)
    for name in _TOKENIZER_FILES:
        if (model_folder / name).exists():
            shutil.copyfile(model_folder / name, output / name)


def _cache_shape(folder: Path) -> tuple[int, int]:
    """Key/value heads and head size, from the engine's configuration; a traced graph has no cache."""
    path = folder / "genai_config.json"
    if not path.exists():
        return 0, 0
    decoder = json.loads(path.read_text(encoding="utf-8"))["model"]["decoder"]
    return decoder["num_key_value_heads"], decoder["head_size"]


def _last_line(text: str) -> str:
    lines = text.strip().splitlines() or ["no message"]
    return redact(lines[-1].strip())[:300]
