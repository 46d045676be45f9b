"""Completions: the same bytes whatever runs beside them, and nothing told that is taken back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_core.config.resolve import resolve
from dormouse_core.encoding import END, ESCAPE, Role, Span, opening, render, unescape
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.policy.model import Policy, build_policy
from dormouse_core.rollouts.streams import Finish, Stream, Streams, complete


@pytest.fixture(scope="module")
def policy() -> Policy:
    return build_policy(resolve("tiny").policy, 3)


def fed(stream: Stream, written: bytes) -> Stream:
    for byte in written:
        if stream.finish is None:
            stream.take(byte, -0.5)
    return stream


@given(st.lists(st.sampled_from([ESCAPE[0], ESCAPE[0] ^ 0x40, 1, 0x41, 97, 98, 99]), min_size=1, max_size=40).map(bytes),
       st.lists(st.sampled_from([b"ab", b"aab", b"c", b"abca", bytes([1]), ESCAPE]), max_size=3))
def test_what_is_told_is_the_content_up_to_the_first_stop_and_is_never_taken_back(written: bytes, stops: list[bytes]) -> None:
    told: list[bytes] = []
    stream = fed(Stream(b"", len(written), 1.0, 0, tuple(stops), tell=lambda _, content: told.append(content)), written)
    whole = unescape(bytes(stream.raw))
    cut = min((whole.find(s) for s in stops if s in whole), default=len(whole))
    assert stream.content == whole[:cut] == b"".join(told)
    assert not any(s in stream.content for s in stops)
    assert stream.finish is (Finish.STOP if cut < len(whole) else Finish.LENGTH)
    assert told[-1] == b"" and b"" not in told[:-1]


def test_the_closing_byte_ends_a_completion_and_is_not_part_of_it() -> None:
    stream = fed(Stream(b"", 99, 1.0, 0), b"hi" + END + b"more")
    assert (stream.content, stream.finish, bytes(stream.raw)) == (b"hi", Finish.STOP, b"hi" + END)


def asked(seed: int, max_bytes: int = 12, prompt: bytes = b"1+2=") -> Stream:
    return Stream(prompt, max_bytes, 1.0, seed)


@pytest.mark.parametrize("rows", [5, 16, 40])
def test_a_completion_is_the_same_alone_and_in_any_crowd(policy: Policy, rows: int) -> None:
    (alone,) = complete(policy, [asked(7)])
    crowd = [asked(s, 3 + s % 9, b"x" * (1 + 5 * (s % 4))) for s in range(20)]
    complete(policy, [*crowd[:9], beside := asked(7), *crowd[9:]], rows=rows)
    assert beside.raw == alone.raw and beside.log_prob == alone.log_prob
    assert asked(8).seed != 7 and complete(policy, [asked(8)])[0].raw != alone.raw


def test_the_log_prob_of_a_completion_is_what_the_policy_gives_those_bytes(policy: Policy) -> None:
    (stream,) = complete(policy, [asked(1)])
    before = render([Span(Role.PROMPT, stream.prompt)])[0] + opening(Role.ASSISTANT)
    ids = torch.tensor([list(before + bytes(stream.raw))])
    with torch.no_grad():
        log_probs = action_log_probs(policy(ids).logits_BLV)[0, len(before) - 1 : -1]
    expected = float(log_probs.gather(1, ids[0, len(before) :, None]).sum())
    assert stream.log_prob == pytest.approx(expected, abs=1e-4)


def test_greedy_takes_the_likeliest_byte_whatever_the_seed(policy: Policy) -> None:
    one, other = complete(policy, [Stream(b"a", 10, 0.0, 1), Stream(b"a", 10, 0.0, 2)])
    assert one.raw == other.raw


def test_a_prompt_longer_than_a_prefill_window_is_read_to_its_end(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = complete(policy, [asked(1, prompt=b"abcdefghij" * 5)])[0].raw
    monkeypatch.setattr("dormouse_core.rollouts.streams.PREFILL", 16)
    assert complete(policy, [asked(1, prompt=b"abcdefghij" * 5)])[0].raw == whole


def test_a_cancelled_completion_frees_its_row_for_the_next(policy: Policy) -> None:
    streams = Streams(policy, rows=1)
    first, second, third = asked(1, 50), asked(2, 2), asked(3, 2)
    for stream in (first, second, third):
        streams.submit(stream)
    streams.step()
    first.cancelled = third.cancelled = True
    streams.finish()
    assert (first.finish, second.finish, third.finish) == (Finish.CANCELLED, Finish.LENGTH, Finish.CANCELLED)
    assert len(first.raw) == 1 and not third.raw and not streams.running
