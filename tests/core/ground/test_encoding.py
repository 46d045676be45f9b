"""Text that anyone writes can never become structure, and what goes in comes out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_core.encoding import (
    END,
    ESCAPE,
    POLICY_MAY_WRITE,
    TAG,
    Role,
    Span,
    escape,
    opening,
    parse,
    render,
    show_mask,
    unescape,
)

STRUCTURAL = b"".join(TAG.values()) + END
telling = [*STRUCTURAL, ESCAPE[0], ESCAPE[0] ^ 0x40, 0x41, 0x45, 0xFF]
raw = st.binary(max_size=40) | st.lists(st.sampled_from(telling), max_size=20).map(bytes)
conversation = st.lists(st.builds(Span, st.sampled_from(Role), raw), max_size=6)


@given(raw)
def test_content_of_any_bytes_never_yields_a_structural_byte(content: bytes) -> None:
    assert not set(escape(content)) & set(STRUCTURAL)


@given(raw)
def test_escaping_is_undone_by_unescaping(content: bytes) -> None:
    assert unescape(escape(content)) == content


@given(raw, raw)
def test_different_contents_have_different_streams(one: bytes, other: bytes) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@given(raw)
def test_unescaping_is_total_whatever_a_policy_wrote(stream: bytes) -> None:
    assert isinstance(unescape(stream), bytes)


@given(conversation)
def test_parse_is_the_inverse_of_render(spans: list[Span]) -> None:
    assert parse(render(spans)[0]) == spans


@given(conversation)
def test_the_mask_marks_exactly_the_assistant_bytes_and_their_end(spans: list[Span]) -> None:
    stream, mask_L = render(spans)
    marked = bytes(np.frombuffer(stream, dtype=np.uint8)[mask_L])
    assert marked == b"".join(escape(s.content) + END for s in spans if s.role is Role.ASSISTANT)
    assert len(mask_L) == len(stream)


@given(conversation)
def test_mask_all_marks_everything_but_the_tags(spans: list[Span]) -> None:
    stream, mask_L = render(spans, every_span=True)
    unmarked = bytes(np.frombuffer(stream, dtype=np.uint8)[~mask_L])
    assert unmarked == b"".join(TAG[s.role] for s in spans)


@given(raw)
def test_a_prompt_that_holds_tags_is_still_one_span(content: bytes) -> None:
    assert parse(opening(Role.PROMPT, content)) == [Span(Role.PROMPT, content)]


@pytest.mark.parametrize("stream", [b"x", b"\x03never closed", b"\x02closed\x05", b"\x05", b"\x02a\x05\x03b\x05"])
def test_a_stream_that_is_not_well_formed_is_refused(stream: bytes) -> None:
    with pytest.raises(ValueError, match="byte"):
        parse(stream)


def test_the_policy_may_write_everything_but_the_four_role_tags() -> None:
    assert {i for i in range(256) if not POLICY_MAY_WRITE[i]} == {tag[0] for tag in TAG.values()}


def test_show_mask_lines_up_marks_and_bytes() -> None:
    text = show_mask(*render([Span(Role.PROMPT, b"2+2="), Span(Role.ASSISTANT, b"4")]))
    assert text == "\\x022+2=\\x034\\x05\n" + " " * 12 + "^^^^^"
