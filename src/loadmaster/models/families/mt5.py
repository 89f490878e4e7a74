"""mT5 and mT0: T5 1.1 with a larger vocabulary."""

from loadmaster.models.families.t5 import encoder as encoder
from loadmaster.models.families.t5 import read as read
