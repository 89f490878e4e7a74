"""Reads a config from the Hugging Face hub: from its cache on disk first, then over the network."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

from loadmaster.errors import BadFileError, LoadmasterError, MissingExtraError, OfflineError, UnknownNameError
from loadmaster.models.readers import catalogue, config_json, folder
from loadmaster.models.spec import ModelSpec
from loadmaster.records import replace

_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
TIMEOUT_SECONDS = 10


def is_id(name: str) -> bool:
    """Whether a name has the form ``org/name``."""
    return _ID.fullmatch(name) is not None and ".." not in name


def read(name: str) -> ModelSpec:
    """The ModelSpec of a hub model; raises OfflineError, MissingExtraError or UnknownNameError."""
    cached = _cached(name)
    if cached is not None:
        return replace(folder.read(cached), name=name)
    path = _download(name)
    spec = config_json.read(path)
    return replace(spec, name=name, origin=f"Hugging Face hub: {name}")


def _cache() -> Path:
    # The order that huggingface_hub documents for its environment variables.
    for variable, tail in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser() / tail
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "huggingface" / "hub"


def _cached(name: str) -> Path | None:
    root = _cache() / f"models--{name.replace('/', '--')}"
    try:
        revision = (root / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    snapshot = root / "snapshots" / revision
    if not re.fullmatch(r"[0-9a-f]{7,64}", revision) or not (snapshot / "config.json").is_file():
        return None
    return snapshot


def _hint(name: str) -> str:
    near = catalogue.near(name)
    known = f"known without a network: {', '.join(near)}" if near else ""
    if same := catalogue.hint(name, near):
        known += f" ({same})"
    return f"{known}{'; or ' if known else ''}give a config.json, a folder with tensor headers, or --params with its size"


def _hinted(error: LoadmasterError, name: str) -> LoadmasterError:
    error.hint = _hint(name)
    return error


def _reach(name: str) -> None:
    # The hub's client tries for half a minute before it gives up; a plain connection fails at once. Behind a proxy
    # only the client knows the way.
    if any(os.environ.get(variable) for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return
    url = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        port = url.port or (80 if url.scheme == "http" else 443)
        socket.create_connection((url.hostname or "", port), TIMEOUT_SECONDS).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OfflineError(
            f"{name} is not in the catalogue, and {url.hostname} can't be reached ({reason})",
            hint=_hint(name),
        ) from None


def _download(name: str) -> Path:
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise OfflineError(
            f"{name} is not in the catalogue or the cache, and HF_HUB_OFFLINE forbids the network",
            hint=_hint(name),
        )
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError:
        raise _hinted(MissingExtraError(f"reading {name} from the Hugging Face hub", "hub"), name) from None
    _reach(name)
    try:
        return Path(huggingface_hub.hf_hub_download(name, "config.json", etag_timeout=TIMEOUT_SECONDS))
    except errors.GatedRepoError:
        raise OfflineError(
            f"{name} is gated on the hub; accept its terms there and log in with: hf auth login",
            hint=_hint(name),
        ) from None
    except errors.RepositoryNotFoundError:
        raise UnknownNameError("model", name, catalogue.near(name), hint=_hint(name)) from None
    except errors.LocalEntryNotFoundError:
        raise OfflineError(
            f"{name} could not be fetched from the hub: it did not answer", hint=_hint(name)
        ) from None
    except errors.EntryNotFoundError:
        raise BadFileError(name, "has no config.json on the hub", hint=_hint(name)) from None
    except Exception as error:
        # The hub's client lets any of its network library's errors through.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        raise OfflineError(f"{name} could not be fetched from the hub ({reason})", hint=_hint(name)) from None
