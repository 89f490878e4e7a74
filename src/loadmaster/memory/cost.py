"""What one layer, or the head with its loss, costs: bytes kept, peaks, and its blocks in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadmaster.arrays import Size
from loadmaster.memory.parts import Part

Census = dict[tuple[str, str], int]
Events = list[tuple[object, int]]
"""Blocks taken (key, bytes) and given back (key, -1). Keys that a neighbour shares are words: ``x`` the layer's input,
``out`` its output, ``gout`` and ``gx`` their gradients."""

CHECKPOINT = ("activations", "layer input (checkpoint)")


@dataclass(slots=True, eq=False)
class Cost:
    """Bytes of one layer (or of the head). ``retained``: alive from its forward to its backward; ``casts``: autocast's
    cached weight copies that outlive a checkpointed forward; peaks count everything of this layer, its input included;
    ``gradients``: of its parameters. The censuses (plain ints only) split them by (component, tensor)."""

    retained: Size = 0
    keeps_input: bool = False
    casts: Size = 0
    forward: Size = 0
    backward: Size = 0
    gradients: Size = 0
    retained_census: Census = field(default_factory=dict)
    forward_census: Census = field(default_factory=dict)
    backward_census: Census = field(default_factory=dict)
    gradient_census: Census = field(default_factory=dict)
    checkpoint: Size = 0
    """Of ``retained``, the input of a checkpointed layer: what can be offloaded."""
    projection: Size = 0
    """Of ``gradients``, the output projection's."""
    projection_viewed: bool = False
    """It is a view of what made it (a product, transposed), so that nothing is added to it in place."""
    lasting: Size = 0
    """Of ``retained``, what stays after this layer's backward, until the step's graph is gone."""
    held: Part | None = None
    """What of the head's logits outlives its backward, in the loop's own variable."""
    forward_events: Events = field(default_factory=list)
    backward_events: Events = field(default_factory=list)
