"""Sizes, durations and shares as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccltune import quantities
from nccltune.errors import UsageError


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("32M", 32 << 20), ("8k", 8192), ("1G", 1 << 30), ("1048576", 1 << 20), ("1.5M", 1572864), ("4MiB", 4 << 20)],
)
def test_sizes_count_in_powers_of_1024(text, n_bytes):
    assert quantities.parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "M", "-1M", "0", "32X", "1e6", "0.3K", "nan"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match="no message size"):
        quantities.parse_bytes(text)


@given(st.integers(1, 1 << 40))
def test_a_written_size_reads_back(n_bytes):
    assert quantities.parse_bytes(quantities.format_bytes(n_bytes)) == n_bytes


def test_a_mix_keeps_order_and_calls():
    assert quantities.parse_sizes("1M:20,32M:4") == ((1 << 20, 20), (32 << 20, 4))
    assert quantities.parse_sizes("32M") == ((32 << 20, 1),)


@pytest.mark.parametrize("text", ["1M:0", "1M:x", "1M:-3", "1M,1024K", "1M,"])
def test_a_bad_mix_is_refused(text):
    with pytest.raises(UsageError):
        quantities.parse_sizes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("2h", 7200), ("1.5", 1.5)]
)
def test_durations(text, seconds):
    assert quantities.parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "-5m", "soon", "1d", "0m"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageError, match="no duration"):
        quantities.parse_seconds(text)


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.01", 0.01), ("0%", 0.0), ("2.5 %", 0.025)])
def test_shares(text, share):
    assert quantities.parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "-1%", "100%", "2", "much", "nan"])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(UsageError, match="no share"):
        quantities.parse_share(text)


@pytest.mark.parametrize(("share", "text"), [(0.1234, "+12.3 %"), (-0.5, "-50 %"), (12.345, "+1230 %"), (0.0, "+0 %")])
def test_a_share_with_its_sign_has_no_exponent(share, text):
    assert quantities.format_share(share) == text
