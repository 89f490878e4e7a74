"""Sizes and counts: what is read, what is printed, and that the two agree.

The factors are those of IEC 80000-13 (KiB = 2**10 bytes ...) and of the SI (kB = 10**3 bytes ...).
"""

import contextlib
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster import units

FACTORS = {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
sizes = st.integers(min_value=0, max_value=2**50)
unit_names = st.sampled_from(sorted(FACTORS))


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1000", 1000),
        ("512 B", 512),
        ("24GiB", 25_769_803_776),
        ("24 GB", 24_000_000_000),
        ("80gb", 80_000_000_000),
        ("24564MiB", 25_757_220_864),  # a 4090 as nvidia-smi prints it
        ("1.5 KiB", 1536),
        (".5MiB", 524_288),
        ("2.GB", 2_000_000_000),
        ("16Gi", 17_179_869_184),  # Kubernetes
        ("64G", 68_719_476_736),  # Slurm: K, M, G and T are powers of 1024
        ("2T", 2_199_023_255_552),
        ("  1 MiB ", 1_048_576),
    ],
)
def test_parse_bytes(text, size_bytes):
    assert units.parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "GiB",
        "24 apples",
        "-1GiB",
        "+1",
        "1e9",
        "nan",
        "inf",
        "1,5GiB",
        "1.2.3",
        "0x10",
        "1 Gi B",
        "٢GiB",
        "24GiB\0",
    ],
)
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=re.escape(repr(text)) + ".*expected for example 24GiB"):
        units.parse_bytes(text)


@given(sizes)
def test_a_bare_number_is_bytes(size_bytes):
    assert units.parse_bytes(str(size_bytes)) == size_bytes


@given(st.integers(0, 10**6), st.integers(0, 999), unit_names)
def test_a_fraction_of_a_unit_is_exact_and_rounded_down(whole, thousandths, unit):
    exact = (whole + Fraction(thousandths, 1000)) * FACTORS[unit]
    assert units.parse_bytes(f"{whole}.{thousandths:03d}{unit}") == int(exact)


@given(st.decimals(0, 10**6, places=3), st.decimals(0, 10**6, places=3), unit_names)
def test_more_is_never_read_as_less(a, b, unit):
    a, b = sorted((a, b))
    assert units.parse_bytes(f"{a}{unit}") <= units.parse_bytes(f"{b}{unit}")


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_a_value_error(text):
    with contextlib.suppress(ValueError):
        assert units.parse_bytes(text) >= 0


@given(sizes, st.integers(0, 3))
def test_what_is_printed_reads_back_within_half_its_last_digit(size_bytes, digits):
    text = units.format_bytes(size_bytes, digits)
    unit = FACTORS.get(text.split()[1], 1)
    assert abs(units.parse_bytes(text) - size_bytes) <= Fraction(unit, 2 * 10**digits) + 1


@given(sizes, sizes)
def test_a_larger_size_never_prints_smaller(a, b):
    a, b = sorted((a, b))
    assert units.parse_bytes(units.format_bytes(a)) <= units.parse_bytes(units.format_bytes(b))


@given(sizes.filter(bool))
def test_a_saving_prints_as_the_same_size_with_a_minus(size_bytes):
    assert units.format_bytes(-size_bytes) == "-" + units.format_bytes(size_bytes)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1536, "1.5 KiB"),
        (25_757_220_864, "24.0 GiB"),
        (2_199_023_255_552, "2048.0 GiB"),
        (21_990_232_555_520, "20.0 TiB"),
    ],
)
def test_format_bytes(size_bytes, text):
    assert units.format_bytes(size_bytes) == text


def test_format_gib_keeps_the_unit_for_a_column():
    assert [units.format_gib(size) for size in (0, 107_374_182, 25_757_220_864)] == [
        "0.0 GiB",
        "0.1 GiB",
        "24.0 GiB",
    ]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7B", 7_000_000_000),
        ("0.5b", 500_000_000),
        ("350M", 350_000_000),
        ("1.1 T", 1_100_000_000_000),
        ("124439808", 124_439_808),
    ],
)
def test_parse_count(text, count):
    assert units.parse_count(text) == count


@pytest.mark.parametrize("text", ["", "B", "7 GiB", "seven", "-7B", "7e9"])
def test_what_is_no_count_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="expected for example 7B"):
        units.parse_count(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (999_499, "999 K"),
        (999_500, "1 M"),
        (1_499_000_000_000_000, "1499 T"),
        (124_439_808, "124 M"),
        (8_030_261_248, "8.03 B"),
        (671_026_419_200, "671 B"),
    ],
)
def test_format_count(count, text):
    assert units.format_count(count) == text


@given(st.integers(0, 10**15))
def test_a_printed_count_reads_back_within_half_of_its_third_digit(count):
    assert abs(units.parse_count(units.format_count(count)) - count) * 200 <= count
