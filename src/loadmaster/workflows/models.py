"""``loadmaster models``: the catalogue, and one model with what follows from its shapes."""

from __future__ import annotations

import difflib

from loadmaster.errors import UnknownNameError
from loadmaster.models import families, read_model
from loadmaster.models.readers import catalogue
from loadmaster.models.report import Listed, Shown, listed, shown


def list_models(wanted: str | None = None, family: str | None = None) -> tuple[Listed, ...]:
    """The catalogue's models whose name holds ``wanted``, of one family; raises UnknownNameError when none is left."""
    found = [
        read_model(name) for name in catalogue.names() if wanted is None or wanted.lower() in name.lower()
    ]
    if not found:
        raise UnknownNameError("model", str(wanted), catalogue.near(str(wanted)))
    if family is not None:
        kinds = {spec.model_type.replace("-", "_").lower(): spec.model_type for spec in found}
        key = family.replace("-", "_").lower()
        if key not in kinds:
            near = difflib.get_close_matches(key, kinds, n=3) or difflib.get_close_matches(
                key, families.names(), n=3
            )
            raise UnknownNameError("family", family, near)
        found = [spec for spec in found if spec.model_type == kinds[key]]
    return tuple(listed(spec) for spec in found)


def show_model(source: str | None, params: str | None = None) -> Shown:
    """One model from any source that ``read_model`` takes; raises what it raises."""
    return shown(read_model(source, params=params))
