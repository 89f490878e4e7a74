"""Where a model is read from: ``read_model`` tells the kinds of source apart and asks the reader for that kind."""

from __future__ import annotations

from pathlib import Path

from loadmaster.errors import BadFileError, UnknownNameError, UsageError
from loadmaster.models.spec import ModelSpec

_FILES = (".json", ".safetensors", ".gguf")


def read_model(source: str | None = None, *, params: str | None = None) -> ModelSpec:
    """Read a model from a folder, a config.json, a .safetensors or .gguf file (headers only), a catalogue name or a
    Hugging Face id; or, with ``params`` alone (``7B``), assume a Llama-like network of that size.

    Raises a UsageError in one sentence for anything that is not a model, OfflineError or MissingExtraError when the
    hub is needed and can't be reached.
    """
    if source is None or not str(source).strip():
        if params is None:
            raise UsageError(
                "no model given", hint="give a name, a path, or --params with a number of parameters"
            )
        from loadmaster.models.readers import guess

        return guess.read(params)
    if params is not None:
        raise UsageError("give a model or --params, not both")
    source = str(source)
    path = _path(source)
    if path is None:
        return _read_name(source)
    try:
        return _read_path(path)
    except BadFileError:
        # A folder of notes that happens to be called gpt2 doesn't hide the catalogue's model.
        from loadmaster.models.readers import catalogue

        if path.is_dir() and not source.startswith((".", "/", "~")) and catalogue.find(source):
            return catalogue.read(source)
        raise


def _path(source: str) -> Path | None:
    from loadmaster.models.readers.pickles import PICKLES

    if "\0" in source or len(source) > 4096:
        raise BadFileError(repr(source[:60]), "is not a path or a name")
    try:
        path = Path(source).expanduser()
        # lexists: a link that leads nowhere, or in a circle, is still a path and deserves that error.
        exists = path.exists() or path.is_symlink()
    except (OSError, RuntimeError) as error:
        raise BadFileError(source[:120], f"cannot be read ({error})") from None
    looks = source.startswith((".", "/", "~")) or path.suffix.lower() in (*_FILES, *PICKLES)
    return path if exists or looks else None


def _read_path(path: Path) -> ModelSpec:
    from loadmaster.models.readers import config_json, pickles

    suffix = path.suffix.lower()
    try:
        if path.is_dir():
            from loadmaster.models.readers import folder

            return folder.read(path)
        if suffix in pickles.PICKLES:
            raise pickles.refuse_pickle(path)
        if path.name.endswith(".safetensors.index.json"):
            return _tensors(path)
        if path.name == "model_index.json":
            return config_json.pipeline(path)
        if suffix == ".json":
            return config_json.read(path)
        if suffix == ".safetensors":
            return _tensors(path)
        return _by_magic(path)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadFileError(path, f"cannot be read ({reason})") from None


def _tensors(path: Path) -> ModelSpec:
    from loadmaster.models.readers import config_json, folder, generic, safetensors

    sharded = path.name.endswith(".json")
    files = safetensors.read_index(path) if sharded else (safetensors.read_file(path),)
    config = path.with_name("config.json")
    # The config beside a tensor file describes it, unless the file is one shard of several.
    if config.is_file() and (sharded or not list(path.parent.glob("*.safetensors.index.json"))):
        return folder.with_files(config_json.read(config), files)
    return generic.read(files, str(path))


def _by_magic(path: Path) -> ModelSpec:
    from loadmaster.models.readers import gguf, headers, pickles

    headers.file_size(path)
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"GGUF" or path.suffix.lower() == ".gguf":
        return gguf.read(path)
    if pickles.is_pickle(magic):
        raise pickles.refuse_pickle(path)
    raise BadFileError(path, "is no config.json, safetensors or GGUF file")


def _read_name(source: str) -> ModelSpec:
    from loadmaster.models.readers import catalogue

    try:
        return catalogue.read(source)
    except UnknownNameError as error:
        from loadmaster.models.readers import hub

        if error.kind != "model" or not hub.is_id(source):
            raise
    return hub.read(source)
