"""A model from the fields of its config.json, on the meta device: transformers' own class, weights that take no memory."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from loadmaster.dryrun.programs.honoured import FLASH_PACKAGE
from loadmaster.dryrun.programs.sources import plain
from loadmaster.errors import MissingExtraError, UnknownNameError, UsageError

AUTOS = (
    "AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", "AutoModelForImageTextToText",
    "AutoModelForMaskedLM", "AutoModelForImageClassification", "AutoModelForZeroShotImageClassification",
    "AutoModelForPreTraining", "AutoModel",
)  # fmt: skip
"""Classes that are tried in this order where the config names no architecture."""

HEADLESS = ("bert", "roberta", "xlm-roberta", "distilbert", "deberta-v2")
"""Encoders that are published as masked language models and trained with other heads: like a plan, and like the counts that
are published of them, a dry run builds the network without that head."""


def config_of(fields: dict[str, Any], name: str) -> Any:
    """transformers' config of these fields; raises UsageError where it has no such model, or needs code from the hub."""
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("building a model in a dry run", "dryrun") from None
    fields = plain(fields)
    kind = fields.pop("model_type", None)
    if kind is None:
        raise UsageError(f"{name}: the config has no model_type, so transformers can't build the network")
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if kind not in known:
        if "auto_map" in fields:
            raise UsageError(
                f"{name}: model_type {kind!r} runs code from the hub, which a dry run does not",
                hint="write a function that builds it, and name that: file.py:build",
            )
        raise UnknownNameError("model_type", str(kind), _near(kind, list(known)))
    fields.pop("quantization_config", None)
    with quiet():
        try:
            config = transformers.AutoConfig.for_model(kind, **fields)
        except Exception as error:
            raise UsageError(f"{name}: transformers can't read this config ({_line(error)})") from None
    if getattr(config, "is_encoder_decoder", False):
        # Published configs name the token that a decoder begins with; shapes don't depend on which it is.
        for field in ("pad_token_id", "decoder_start_token_id"):
            if getattr(config, field, None) is None:
                setattr(config, field, 0)
    return config


def build(config: Any, dtype: str, attention: str, name: str) -> Any:
    """The model of a config on the meta device with weights of ``dtype``; ``attention`` is transformers' name of an
    implementation, left to the class where it has no such one. Raises UsageError in one sentence."""
    import transformers

    if attention == FLASH_PACKAGE:
        from loadmaster.dryrun.programs.quirks import register_flash

        register_flash()
    cls = model_class(config)
    if cls is None:
        raise UsageError(f"{name}: transformers has no class for model_type {config.model_type!r}")
    kind = getattr(torch, dtype)
    before = torch.get_default_dtype()
    with quiet(), torch.device("meta"):
        try:
            return cls._from_config(config, dtype=kind, attn_implementation=attention)
        except ValueError as error:
            if "attention" not in str(error).lower() or attention != "sdpa":
                raise UsageError(f"{name}: transformers can't build this model ({_line(error)})") from None
            return cls._from_config(config, dtype=kind, attn_implementation="eager")
        except (ImportError, OSError, TypeError, AttributeError, KeyError, RuntimeError) as error:
            raise UsageError(
                f"{name}: transformers {transformers.__version__} can't build this model ({_line(error)})"
            ) from None
        finally:
            torch.set_default_dtype(before)


def model_class(config: Any) -> Any:
    """The class that the config's architecture names, or the first Auto class that knows the config; of encoders that are
    published as masked language models the network alone."""
    import transformers

    if masked_head(config) is not None:
        return transformers.AutoModel._model_mapping[type(config)]
    for architecture in getattr(config, "architectures", None) or ():
        found = getattr(transformers, architecture, None)
        if found is not None and getattr(found, "config_class", None) is type(config):
            return found
    for auto in AUTOS:
        mapping = getattr(transformers, auto)._model_mapping
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, (list, tuple)) else found
    return None


def masked_head(config: Any) -> str | None:
    """The masked language model that a config of HEADLESS names, in whose place its network alone is built."""
    if config.model_type not in HEADLESS:
        return None
    named = getattr(config, "architectures", None) or ["ForMaskedLM"]
    return next((str(each) for each in named if str(each).endswith("ForMaskedLM")), None)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' warnings: they are about weights and generation settings that a dry run doesn't have."""
    loggers = [logging.getLogger(name) for name in ("transformers", "peft", "bitsandbytes")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _near(kind: str, known: list[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(kind, known, n=1)


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
