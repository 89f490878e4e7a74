"""From a family's towers to the whole spec: name, stored format, published count, warnings, and a check of the size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadmaster.dtypes import canonical
from loadmaster.errors import BadFileError, UnknownNameError
from loadmaster.models.config import Config
from loadmaster.models.parameters import parameter_count
from loadmaster.models.spec import Head, ModelSpec, Tower
from loadmaster.records import replace

_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")
PARAMETER_LIMIT = 10**16
"""A network above ten quadrillion parameters is a mistake: the largest published ones have 10^12."""


def one_text(config: Config, part: tuple[Tower, Head], *, positions: int | None = None) -> ModelSpec:
    """The spec of a model that is one decoder and nothing else; ``positions`` is the library's default where the config
    leaves the longest context out."""
    spec = assemble(config, [part[0]], part[1])
    return spec if spec.max_positions is not None else replace(spec, max_positions=positions)


def assemble(config: Config, towers: Sequence[Tower], head: Head | None) -> ModelSpec:
    """The whole spec, with name, stored format, published count, warnings and assumptions taken from the config."""
    name = config.value("_repo", "_name_or_path", default=None)
    published = config.maybe("_total_params", most=PARAMETER_LIMIT)
    config.ignore("architectures", "_class_name", "model_type")
    spec = ModelSpec(
        name=name if isinstance(name, str) and name else config.path,
        model_type=config.text("model_type", "_class_name"),
        towers=tuple(towers),
        head=head,
        stored_dtype=_stored_dtype(config),
        quantization=_quantization(config),
        max_positions=_positions(config),
        published_parameters=published,
        published_note=config.text("_difference_is", default=None) if config.has("_difference_is") else None,
        origin=config.path,
        warnings=tuple(dict.fromkeys(config.warnings)),
        assumed=tuple(config.assumed),
    )
    _check_size(spec, config)
    return spec


def _positions(config: Config) -> int | None:
    found = config.maybe(*_POSITIONS)
    inner = config.fields.get("text_config")
    if found is None and isinstance(inner, Mapping):
        value = next((inner[name] for name in _POSITIONS if type(inner.get(name)) is int), None)
        found = value if value and value > 0 else None
    return found


def _check_size(spec: ModelSpec, config: Config) -> None:
    total = parameter_count(spec)
    if total > PARAMETER_LIMIT:
        raise BadFileError(
            config.path, f"the config describes {total:.1e} parameters, more than any network has"
        )


def _stored_dtype(config: Config) -> str | None:
    text = config.value("dtype", "torch_dtype", default=None)
    if text is None and isinstance(config.fields.get("text_config"), Mapping):
        text = config.fields["text_config"].get("dtype", config.fields["text_config"].get("torch_dtype"))
    if not isinstance(text, str) or text == "auto":
        return None
    try:
        return canonical(text)
    except UnknownNameError:
        config.warnings.append(f"number format {text[:40]!r} of the config is not known")
        return None


def _quantization(config: Config) -> str | None:
    found = config.value("quantization_config", "compression_config", default=None)
    if not isinstance(found, Mapping):
        return None
    method = found.get("quant_method")
    if method == "bitsandbytes" or "load_in_4bit" in found:
        return "bitsandbytes-8bit" if found.get("load_in_8bit") else "bitsandbytes-4bit"
    if not method:
        return "unknown"
    words = [str(method)[:40]]
    bits, group = found.get("bits"), found.get("group_size")
    if type(bits) is int and bits != 4 and 0 < bits < 64:
        words.append(f"{bits}bit")
    if type(group) is int and group != 128 and 0 < group < 65536:
        words.append(f"g{group}")
    if method == "fp8" and not found.get("weight_block_size"):
        words.append("tensor")
    return "-".join(words)
