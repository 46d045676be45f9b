"""The native draw: the definition's uniforms bit for bit, its log-probs within rounding, and the definition wherever it cannot run."""

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_core import seeding
from dormouse_core.config.run import RunConfig
from dormouse_core.encoding import POLICY_MAY_WRITE
from dormouse_core.kernels import dispatch
from dormouse_core.kernels.native.build import Unavailable, library
from dormouse_core.ledger import Ledger
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.policy.model import Policy, build_policy
from dormouse_core.rollouts import native_draw
from dormouse_core.rollouts.deviation import NOTHING
from dormouse_core.rollouts.engine import Engine
from dormouse_core.rollouts.native_draw import NativeDraw, sampler
from dormouse_core.rollouts.request import Origin
from dormouse_core.rollouts.sampling import log_probs, sample
from dormouse_core.rollouts.streams import Stream, complete
from dormouse_core.tasks.task import Task
from tests.core.rollouts.made import requests

pytestmark = pytest.mark.usefixtures("unproven")
Names = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
INT64 = st.integers(-(2**63), 2**63 - 1)
ROUNDING = 2e-6


def arms() -> str:
    return dispatch.SEEN.arms()["kernel.native_draw"]


def asked() -> int:
    """How many draws were asked for natively; all of them ran."""
    ran, asked = map(int, arms().split("/"))
    assert ran == asked
    return asked


def logits(rows: int, seed: int, scale: float = 3.0) -> torch.Tensor:
    return torch.from_numpy(seeding.generator("native-logits", seed).normal(size=(rows, 256)).astype(np.float32)) * scale


def names(rows: int, seed: int) -> Names:
    """temperature, seed, step, byte, avoid."""
    rng = seeding.generator("native-names", seed)
    return (rng.choice([0.0, 0.3, 0.7, 1.0, 1.7], rows), rng.integers(0, 2**63 - 1, rows), rng.integers(0, 2**34, rows),
            rng.integers(0, 4096, rows), rng.choice(np.array([NOTHING, 5, 65, 200]), rows))


def proven() -> NativeDraw:
    """A native sampler whose first call is behind it: what it returns from now on is its own."""
    taken = NativeDraw()
    taken(logits(16, 1), *names(16, 1))
    assert asked() > 0
    return taken


def parted(log_prob_V: np.ndarray, temperature: float, uniform: float, avoid: int, mine: int, other: int) -> float:
    """How far, in probability, the definition is from choosing `mine` in place of `other`."""
    prob_V = np.exp(log_prob_V.astype(np.float64))
    if avoid != NOTHING:
        prob_V[avoid] = 0.0
    if temperature == 0.0:
        return float(abs(log_prob_V[mine] - log_prob_V[other]))
    share_V = prob_V.cumsum() / prob_V.sum()
    return float(abs(share_V[min(mine, other) : max(mine, other)] - uniform).max())


@given(st.lists(st.tuples(INT64, INT64, INT64), min_size=1, max_size=20))
@pytest.mark.usefixtures("compiler")
def test_native_uniforms_are_the_definitions_bit_for_bit(keys: list[tuple[int, int, int]]) -> None:
    key_3N = np.ascontiguousarray(np.array(keys, dtype=np.int64).T)
    out = np.empty(len(keys))
    library("draw").uniforms(ctypes.c_int64(len(keys)), *(ctypes.c_void_p(x.ctypes.data) for x in (*key_3N, out)))
    assert out.tobytes() == seeding.uniform(*key_3N).tobytes()


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 70), seed=st.integers(0, 9999), scale=st.sampled_from([0.0, 0.1, 3.0, 30.0, 300.0]),
       holes=st.sampled_from([0.0, 0.5, 0.97, 0.995]))
@pytest.mark.usefixtures("compiler")
def test_native_draws_what_the_definition_draws(rows: int, seed: int, scale: float, holes: float) -> None:
    taken, given_names = proven(), names(rows, seed)
    logits_XV = logits(rows, seed, scale)
    logits_XV[torch.from_numpy(seeding.generator("holes", seed).random((rows, 256)) < holes)] = float("-inf")
    got, want = taken(logits_XV, *given_names), sample(logits_XV, *given_names)
    same_X = got.byte_X == want.byte_X
    for x in np.flatnonzero(~same_X):
        temperature, seed_, step, byte, avoid = (n[x : x + 1] for n in given_names)
        log_prob_V = log_probs(action_log_probs, logits_XV[x : x + 1], temperature)[0]
        uniform = seeding.uniform(seed_, step, byte)[0]
        assert parted(log_prob_V, temperature[0], uniform, avoid[0], int(got.byte_X[x]), int(want.byte_X[x])) < ROUNDING * max(1, scale)
    np.testing.assert_allclose(got.log_prob_X[same_X], want.log_prob_X[same_X], atol=ROUNDING, rtol=1e-6, equal_nan=True)
    np.testing.assert_allclose(got.entropy_X, want.entropy_X, atol=ROUNDING, rtol=1e-6, equal_nan=True)
    assert (~same_X).sum() <= 1 and [x.dtype for x in got] == [x.dtype for x in want]


@pytest.mark.usefixtures("compiler")
def test_of_twenty_thousand_native_draws_at_most_one_is_not_the_definitions() -> None:
    taken, given_names = proven(), names(20_000, 5)
    got, want = (form(logits(1000, 5).repeat(20, 1), *given_names) for form in (taken, sample))
    assert (got.byte_X != want.byte_X).sum() <= 1
    assert len(np.unique(got.byte_X)) > 200


@pytest.mark.usefixtures("compiler")
def test_native_log_probs_are_the_float64_softmax_over_the_support() -> None:
    logits_XV, given_names = logits(64, 2), names(64, 2)
    got = proven()(logits_XV, *given_names)
    divisor = torch.from_numpy(np.where(given_names[0] == 0, 1.0, given_names[0]).astype(np.float32))
    masked = (logits_XV / divisor.unsqueeze(1)).double().masked_fill(torch.from_numpy(~POLICY_MAY_WRITE), float("-inf"))
    exact_XV = torch.log_softmax(masked, -1)
    assert np.abs(got.log_prob_X - exact_XV[torch.arange(64), torch.from_numpy(got.byte_X).long()].numpy()).max() < 1e-6
    assert np.abs(got.entropy_X - torch.special.entr(exact_XV.exp()).sum(-1).numpy()).max() < 1e-6


def extreme(rows: dict[str, float], rest: float = -1e4) -> torch.Tensor:
    """One row: these bytes (by number) at these logits, all others at `rest`."""
    logits_V = torch.full((256,), rest)
    for byte, value in rows.items():
        logits_V[int(byte)] = value
    return logits_V


@pytest.mark.parametrize("logits_V", [
    extreme({"65": 1e4}), extreme({"65": 1e4}, float("-inf")), extreme({}, float("-inf")), extreme({"66": float("nan")}),
    extreme({"66": float("inf")}), extreme({"2": float("inf")}), extreme({"2": 1e9, "66": 3.0}), extreme({"65": 1.0, "66": 1.0}),
    extreme({}, 0.0), extreme({"255": 5.0}), extreme({"0": 5.0}),
], ids=["certain", "alone", "nothing", "nan", "inf", "tag inf", "tag likely", "two", "flat", "last", "first"])  # fmt: skip
@pytest.mark.usefixtures("compiler")
def test_at_the_extremes_native_does_what_the_definition_does(logits_V: torch.Tensor) -> None:
    taken, rows = proven(), 240
    temperature_X, avoid_X = np.tile([0.0, 0.4, 1.0, 1e-30], 60), np.repeat([NOTHING, 65, 2], 80)
    given_names = (temperature_X, np.arange(rows), np.zeros(rows, dtype=np.int64), np.arange(rows), avoid_X)
    got, want = taken(logits_V.repeat(rows, 1), *given_names), sample(logits_V.repeat(rows, 1), *given_names)
    assert np.array_equal(got.byte_X, want.byte_X)
    np.testing.assert_allclose(got.log_prob_X, want.log_prob_X, atol=ROUNDING, rtol=1e-6, equal_nan=True)
    np.testing.assert_allclose(got.entropy_X, want.entropy_X, atol=ROUNDING, rtol=1e-6, equal_nan=True)


@pytest.mark.usefixtures("compiler")
def test_a_stored_log_prob_is_the_policys_and_not_that_of_the_distribution_without_the_excluded_byte() -> None:
    taken, logits_XV, (temperature_X, seed_X, step_X, byte_X, _) = proven(), logits(300, 7, 0.5), names(300, 7)
    logits_XV[:, 65] = 6.0
    log_prob_XV = log_probs(action_log_probs, logits_XV, temperature_X)
    got, free = (taken(logits_XV, temperature_X, seed_X, step_X, byte_X, np.full(300, avoid)) for avoid in (65, NOTHING))
    assert (got.byte_X != 65).all() and (free.byte_X == 65).any() and POLICY_MAY_WRITE[got.byte_X].all()
    np.testing.assert_allclose(got.log_prob_X, log_prob_XV[np.arange(300), got.byte_X], atol=ROUNDING)
    assert np.array_equal(got.entropy_X, free.entropy_X)


@pytest.mark.usefixtures("compiler")
def test_a_row_is_natively_drawn_with_the_same_bits_in_any_batch() -> None:
    taken, logits_XV, given_names = proven(), logits(70, 3), names(70, 3)
    whole = taken(logits_XV, *given_names)
    for rows in (slice(0, 1), slice(69, 70), slice(3, 20), slice(0, 70, 7)):
        part = taken(logits_XV[rows], *(n[rows] for n in given_names))
        assert all(part[i].tobytes() == whole[i][rows].tobytes() for i in range(3))


@pytest.mark.parametrize(("which", "value", "error"), [(0, -1.0, ValueError), (0, float("nan"), ValueError), (4, 256, IndexError)])
@pytest.mark.usefixtures("compiler")
def test_what_the_definition_refuses_is_refused(which: int, value: float, error: type[Exception]) -> None:
    taken, given_names = proven(), names(4, 4)
    given_names[which][2] = value
    with pytest.raises(error):
        taken(logits(4, 4), *given_names)


def test_without_a_compiler_the_definition_draws_to_its_own_bits_counted_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise Unavailable("no C++ compiler on PATH")

    monkeypatch.setattr(native_draw, "library", none)
    taken, given_names = NativeDraw(), names(20, 6)
    for _ in range(2):
        got, want = taken(logits(20, 6), *given_names), sample(logits(20, 6), *given_names)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True))
    assert arms() == "0/2" and len(dispatch.SEEN.lines) == 1
    assert "no C++ compiler" in dispatch.SEEN.lines[0] and "torch draws in its place" in dispatch.SEEN.lines[0]


@pytest.mark.parametrize("spoil", [lambda d: d._replace(byte_X=d.byte_X ^ 1), lambda d: d._replace(log_prob_X=d.log_prob_X + 1e-3),
                                   lambda d: d._replace(entropy_X=d.entropy_X * np.nan)])
@pytest.mark.usefixtures("compiler")
def test_a_native_draw_that_disagrees_with_the_definition_is_never_handed_out(monkeypatch: pytest.MonkeyPatch, spoil) -> None:  # type: ignore[no-untyped-def]
    native = NativeDraw._native
    monkeypatch.setattr(NativeDraw, "_native", lambda self, *given: spoil(native(self, *given)))
    taken, given_names = NativeDraw(), names(20, 8)
    for _ in range(2):
        got, want = taken(logits(20, 8), *given_names), sample(logits(20, 8), *given_names)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True))
    assert arms() == "0/2" and "disagrees" in dispatch.SEEN.lines[0]


@pytest.fixture
def native_policy(policy: Policy) -> Policy:
    """The lively tiny policy with compute = native."""
    made = build_policy(policy.config.model_copy(update={"compute": "native"}), 1)
    made.load_state_dict(policy.state_dict())
    return made.eval()


@pytest.mark.usefixtures("compiler")
def test_the_engine_draws_natively_where_the_configuration_says_so(
    policy: Policy, native_policy: Policy, tasks: list[Task], origin: Origin, config: RunConfig
) -> None:
    assert sampler(policy) is sample
    drawn: list[dict[str, list[tuple[bytes, np.ndarray]]]] = []
    for form in (None, sample):
        engine = Engine(native_policy, config.roll, Ledger())
        if form is not None:
            engine.sample = form
        for request in requests(tasks, origin):
            engine.submit(request)
        drawn.append({t.id: [(s.action_bytes, s.log_probs) for s in t.steps] for t in engine.run()})
    assert asked() > 30
    same = [key for key in drawn[0] if [s[0] for s in drawn[0][key]] == [s[0] for s in drawn[1][key]]]
    assert len(same) >= len(drawn[1]) - 1 > 20
    worst = max(float(np.abs(a[1] - b[1]).max()) for key in same for a, b in zip(drawn[0][key], drawn[1][key], strict=True))
    assert 0 < worst < ROUNDING


@pytest.mark.usefixtures("compiler")
def test_completions_draw_natively_where_the_configuration_says_so(native_policy: Policy) -> None:
    (stream,) = complete(native_policy, [Stream(b"1+2=", 12, 1.0, 7)])
    assert asked() == len(stream.raw)
