"""What is written is read back as it was, to the microsecond."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.demand.arrays import Arrivals
from forebay.demand.columns import Reader
from forebay.demand.writing import Writer

TIERS = ("interactive", "batch")
ROWS = st.lists(
    st.tuples(
        st.integers(0, 10**12),
        st.integers(1, 10**7),
        st.integers(1, 10**7),
        st.integers(-1, 1),
        st.one_of(st.just(-1), st.integers(0, 99_999)),
    ),
    min_size=1,
    max_size=30,
)


def arrivals(rows) -> Arrivals:
    at_us, prompt, output, tier, group = (np.array(column) for column in zip(*sorted(rows, key=lambda row: row[0]), strict=True))
    shared = np.where(group < 0, 0, prompt // 2)
    return Arrivals(at_us / 1e6, prompt.astype(np.int32), output.astype(np.int32), tier.astype(np.int16), group, shared.astype(np.int32))


@settings(max_examples=30, deadline=None)
@given(ROWS, st.sampled_from(["csv", "jsonl"]), st.booleans(), st.booleans())
def test_rows_come_back(rows, text_format, with_tiers, prefixes):
    given_rows = arrivals(rows)
    writer = Writer(text_format, TIERS if with_tiers else (), prefixes=prefixes)
    (found,) = Reader(text_format, "t", TIERS).read([writer.head() + writer.rows(given_rows)])
    assert found.at_s.tolist() == given_rows.at_s.tolist()
    assert found.prompt_tokens.tolist() == given_rows.prompt_tokens.tolist()
    assert found.output_tokens.tolist() == given_rows.output_tokens.tolist()
    assert found.tier.tolist() == (given_rows.tier.tolist() if with_tiers else [-1] * len(rows))
    assert found.group.tolist() == (given_rows.group.tolist() if prefixes else [-1] * len(rows))
    assert found.shared_tokens.tolist() == (given_rows.shared_tokens.tolist() if prefixes else [0] * len(rows))


def test_a_known_beginning_is_written_as_unix_time():
    rows = arrivals([(0, 1, 2, 0, -1), (1_500_000, 30, 4, -1, -1)])
    csv = Writer("csv", TIERS, 1_700_000_000.25)
    assert csv.head() + csv.rows(rows) == (
        b"wall_s,prompt_tokens,output_tokens,tier\n1700000000.250000,1,2,interactive\n1700000001.750000,30,4,\n"
    )
    lines = Writer("jsonl", TIERS, 1_700_000_000.25).rows(rows).decode().splitlines()
    assert json.loads(lines[0]) == {"wall_s": 1700000000.25, "prompt_tokens": 1, "output_tokens": 2, "tier": "interactive"}
    reader = Reader("ledger", "t", TIERS)
    (found,) = reader.read([("\n".join(lines) + "\n").encode()])
    assert (found.at_s.tolist(), reader.start_wall_s) == ([0.0, 1.5], 1_700_000_000.25)


@pytest.mark.parametrize(("text_format", "tiers"), [("xml", ()), ("csv", ("a,b",)), ("csv", ("",)), ("jsonl", ('"',))])
def test_what_could_not_be_read_back_is_not_written(text_format, tiers):
    with pytest.raises(ValueError, match="with plain names of tiers"):
        Writer(text_format, tiers)
