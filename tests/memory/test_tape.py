"""The tape by hand: what autograd keeps of a few operators, counted beside each test."""

from __future__ import annotations

from loadmaster.memory import ops
from loadmaster.memory.tape import Tape, Tensor

ROWS, WIDTH, OUT = 1024, 512, 256
X = ROWS * WIDTH * 2  # bytes of a bfloat16 input
Y = ROWS * OUT * 2
W = WIDTH * OUT * 2


def leaf(tape: Tape, elements: int, dtype: str = "bfloat16") -> Tensor:
    x = tape.new(elements, dtype, "x")
    x.needs_grad, x.leaf = True, "input"
    return x


def test_a_trained_linear_keeps_its_input_and_a_frozen_one_does_not() -> None:
    for trainable, kept in ((True, X), (False, 0)):
        tape = Tape()
        weight = tape.parameter("w", WIDTH * OUT, "bfloat16", trainable=trainable)
        x = leaf(tape, ROWS * WIDTH)
        y = ops.linear(tape, x, weight, ROWS * OUT, "linear")
        del x
        assert tape.live_bytes == kept + Y
        del y


def test_backward_of_a_linear_holds_both_gradients_and_the_input() -> None:
    tape = Tape()
    weight = tape.parameter("w", WIDTH * OUT, "bfloat16", trainable=True)
    x = leaf(tape, ROWS * WIDTH)
    y = ops.linear(tape, x, weight, ROWS * OUT, "linear")
    start = (y.node, y.slot)
    del x, y
    gradient = [tape.new(ROWS * OUT, "bfloat16", "g")]
    tape.mark()
    reached = tape.backward(start, gradient, "input")
    # saved input + incoming gradient + gradient of the input + gradient of the weight
    assert tape.peak_bytes == X + Y + X + W
    assert reached is not None
    del reached
    assert tape.live_bytes == W  # the parameter's gradient stays
    assert set(tape.gradients) == {"w"}


def test_silu_keeps_its_input_and_relu_its_result() -> None:
    for keeps, kept in (("input", X), ("output", 0)):
        tape = Tape()
        x = leaf(tape, ROWS * WIDTH)
        y = ops.elementwise(tape, x, "act", keeps=keeps)
        del x
        assert tape.live_bytes == kept + X  # the result itself is held by y
        del y
        assert tape.live_bytes == X  # either its input or its result, one of them


def test_nothing_is_kept_without_gradients() -> None:
    tape = Tape(grad=False)
    x = leaf(tape, ROWS * WIDTH)
    y = ops.elementwise(tape, x, "act")
    del x, y
    assert tape.live_bytes == 0


def test_rms_norm_of_a_bfloat16_stream_keeps_ten_bytes_a_value() -> None:
    # float32 copy (4) + normed (2) + output (2, held here as y): 8 bytes a value and one float32 a row (rsqrt).
    tape = Tape()
    weight = tape.parameter("w", WIDTH, "bfloat16", trainable=True)
    x = leaf(tape, ROWS * WIDTH)
    y = ops.rms_norm(tape, x, weight, ROWS, "norm")
    del x
    assert tape.live_bytes == (4 + 2 + 2) * ROWS * WIDTH + 4 * ROWS
    del y
    assert tape.live_bytes == (4 + 2) * ROWS * WIDTH + 4 * ROWS


def test_autocast_casts_a_weight_once_and_an_input_every_time() -> None:
    tape = Tape(autocast="bfloat16")
    weight = tape.parameter("w", WIDTH * OUT, "float32", trainable=True)
    x = leaf(tape, ROWS * WIDTH, "float32")
    first = ops.linear(tape, x, weight, ROWS * OUT, "a")
    before = tape.live_bytes
    second = ops.linear(tape, x, weight, ROWS * OUT, "a")
    # a second bfloat16 copy of the input and a second output; the weight's copy is the cached one
    assert tape.live_bytes - before == X + Y
    del first, second


def test_sizes_are_rounded_up_to_512_bytes() -> None:
    tape = Tape()
    x = tape.new(1, "float32")
    assert tape.live_bytes == 512
    del x
    assert tape.live_bytes == 0


def test_gradients_that_meet_are_added_in_place_unless_the_first_is_a_view() -> None:
    # y = silu(x) + exp(x): two fresh gradients, added in place: at most g (shared) + both.
    tape = Tape()
    x = leaf(tape, ROWS * WIDTH)
    doubled = ops.scale(tape, x, "2x")
    a = ops.elementwise(tape, doubled, "silu")
    b = ops.elementwise(tape, doubled, "exp", keeps="output")
    y = ops.add(tape, a, b)
    start = (y.node, y.slot)
    del x, doubled, a, b, y
    gradient = [tape.new(ROWS * WIDTH, "bfloat16", "g")]
    tape.mark()
    tape.backward(start, gradient, "input")
    # at the top: silu's input, g, exp's gradient, silu's gradient (exp's saved result went with its node)
    assert tape.peak_bytes == 4 * X
