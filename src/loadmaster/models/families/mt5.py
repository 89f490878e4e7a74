"""mT5 and mT0: T5 1.1 with a larger vocabulary."""

from loadmaster.models.families.t5 import encoder, read

__all__ = ["encoder", "read"]
