"""Models from a local folder of the transformers library: its configuration and safetensors, never code that lies there."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from lagreach._util.disk import is_file
from lagreach.errors import InputError, UnsupportedError

PREFIX = "hf:"
LARGEST_CONFIG = 2**22  # bytes


def load_hugging_face(folder: Path) -> nn.Module:
    """Build the model that ``config.json`` names from the library's own classes, with the weights of the folder."""
    config_file = folder / "config.json"
    if not is_file(config_file) or config_file.stat().st_size > LARGEST_CONFIG:
        raise InputError(
            "this is not the folder of a Hugging Face model",
            got=str(folder),
            expected="a local folder with config.json and *.safetensors",
            fix="download the model first; nothing is fetched here",
        )
    if not any(folder.glob("*.safetensors")):
        raise InputError(
            "there are no weights in safetensors in this folder",
            got=", ".join(sorted(path.name for path in folder.iterdir())[:8]),
            expected="*.safetensors",
            fix="save it again with model.save_pretrained(folder); pickled weights may hold code and are not read",
        )
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            "config.json is damaged", got=f"{config_file}: {error}", expected="JSON, as save_pretrained writes it"
        ) from error
    named = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(config, dict) or "auto_map" in config:
        raise UnsupportedError(
            "this model runs code that lies in its folder, which is never done here",
            got=f"auto_map in {config_file}",
            expected="an architecture of the transformers library itself",
            fix="write a factory that builds it, and pass --model package.module:factory",
        )
    try:
        import transformers
    except ImportError as error:
        raise UnsupportedError(
            "hf: needs transformers", got=str(error), fix='pip install "lagreach[transformers]"'
        ) from error
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else "AutoModelForCausalLM"
    architecture = getattr(transformers, name, None)
    if not isinstance(architecture, type) or not hasattr(architecture, "from_pretrained"):
        raise UnsupportedError(
            "transformers has no such model",
            got=f"{name}, with transformers {transformers.__version__}",
            fix="install a version of transformers that has it",
        )
    options = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    try:
        model = architecture.from_pretrained(folder, dtype="auto", **options)
    except Exception as error:  # whatever the library raises about a folder
        raise InputError(
            "the model could not be built from this folder",
            got=f"{folder}: {type(error).__name__}: {error}",
            expected="config.json and safetensors, as save_pretrained writes them",
        ) from error
    assert isinstance(model, nn.Module)
    return model
