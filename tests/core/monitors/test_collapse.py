"""Positive controls: a policy that ignores its prompt is flagged, one that still reads it is not."""

import numpy as np
import pytest
import torch

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.encoding import END
from dormouse_core.monitors.collapse import Reading, Regime, Sample, first_actions, read, regime_of, worst
from dormouse_core.monitors.entropy import prompt_stream, score_pairs
from dormouse_core.monitors.mutual_information import Dependence
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.policy.model import Policy, build_policy

TINY = PolicyConfig(d_model=32, n_heads=2, head_dim=16, n_experts=4, rank=4, d_ffn=64, shared_rank=8, engram_rows=256, engram_dim=8)
PROMPTS = [b"%d+%d=" % (a, b) for a, b in ((3, 4), (17, 5), (20, 61), (8, 8), (45, 1), (7, 33))]


@pytest.fixture(scope="module")
def policy() -> Policy:
    """A policy that has learnt to copy the first digits of its prompt: what it writes depends on what it is asked."""
    made = build_policy(TINY, 3)
    optimizer = torch.optim.AdamW(made.parameters(), lr=5e-3)
    pairs = [(prompt_stream(p), p.split(b"+")[0] + END) for p in PROMPTS]
    longest = max(len(h + a) for h, a in pairs)
    ids_BL = torch.tensor([list((h + a).ljust(longest, b"\0")) for h, a in pairs])
    target_BL = torch.tensor([[len(h) - 1 <= i < len(h + a) - 1 for i in range(longest - 1)] for h, a in pairs])
    for _ in range(60):
        log_BL = action_log_probs(made(ids_BL).logits_BLV[:, :-1]).gather(-1, ids_BL[:, 1:, None])[..., 0]
        optimizer.zero_grad()
        (-log_BL[target_BL].mean()).backward()
        optimizer.step()
    return made.eval()


class Deaf(torch.nn.Module):
    """Positive control: feeds the same prompt to a policy whatever it is given."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def __call__(self, ids_BL: torch.Tensor, state: object = None) -> object:
        if state is None:
            ids_BL = torch.tensor([list(prompt_stream(b"3+4="))])
        return self.policy(ids_BL, state)


def sample(answer_of: dict[bytes, bytes]) -> Sample:
    return Sample(PROMPTS, [answer_of[p] + END for p in PROMPTS for _ in range(4)], [j for j in range(len(PROMPTS)) for _ in range(4)])


COPIES = sample({p: p.split(b"+")[0] for p in PROMPTS})


def test_scores_equal_a_teacher_forced_forward(policy: Policy) -> None:
    scored = score_pairs(policy, PROMPTS, COPIES.answers, COPIES.own)
    for r, j in ((0, 0), (5, 3), (23, 5)):
        head, answer = prompt_stream(PROMPTS[j]), COPIES.answers[r]
        log = action_log_probs(policy(torch.tensor([list(head + answer)])).logits_BLV[0, len(head) - 1 : -1])
        assert scored.log_RN[r, j] == pytest.approx(float(log.gather(-1, torch.tensor(list(answer))[:, None]).detach().sum()), abs=1e-4)
    assert (scored.entropy_R > 0).all()


def test_a_policy_that_ignores_its_prompt_is_flagged_as_template_collapse(policy: Policy) -> None:
    before = read(policy, COPIES, "t")
    deaf = read(Deaf(policy), sample(dict.fromkeys(PROMPTS, b"3")), "t")  # type: ignore[arg-type]
    assert before.dependence.gap > 0.5
    assert deaf.dependence.gap == pytest.approx(0, abs=1e-5)
    regime, reason = regime_of(before, deaf)
    assert regime is Regime.ERROR
    assert "template collapse" in reason


def test_a_policy_compared_with_itself_is_ok(policy: Policy) -> None:
    before = read(policy, COPIES, "t")
    assert regime_of(before, before)[0] is Regime.OK


def reading(gap: float, entropy: float, distinct: float = 0.8, z: float = 9.0, accuracy: float = 0.9) -> Reading:
    seen = Dependence(prompts=8, answers=32, information=1.0, ceiling=2.08, gap=gap, gap_low=gap * 0.8, gap_high=gap * 1.2,
                      accuracy=accuracy, chance=0.125, null_z=z)
    return Reading(dependence=seen, entropy=entropy, distinct=distinct)


@pytest.mark.parametrize(("now", "solved", "regime", "word"), [
    (reading(0.9, 0.5), 0.0, Regime.OK, "gap"),
    (reading(0.1, 0.5), 0.0, Regime.ERROR, "template collapse"),
    (reading(0.4, 0.5, z=1.0), 0.0, Regime.ERROR, "template collapse"),
    (reading(0.45, 0.5), 0.0, Regime.WARN, "drift"),
    (reading(0.9, 1.2), 0.0, Regime.WARN, "noise"),
    (reading(2.0, 0.05, distinct=0.25), -0.1, Regime.ERROR, "low-entropy"),
    (reading(2.0, 0.05, distinct=0.25), 0.3, Regime.OK, "gap"),
])
def test_regimes_follow_the_limits(now: Reading, solved: float, regime: Regime, word: str) -> None:
    found, reason = regime_of(reading(1.0, 0.5), now, solved)
    assert (found, word in reason) == (regime, True), reason


def test_a_base_that_ignored_its_prompt_itself_is_not_held_against_the_candidate() -> None:
    regime, reason = regime_of(reading(0.01, 0.5, z=0.5), reading(0.0, 0.5, z=0.1))
    assert regime is Regime.OK
    assert "not judged" in reason


def test_without_anything_to_read_the_report_says_so() -> None:
    assert worst([])[1].startswith("not judged")


def test_empty_answers_are_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        score_pairs(policy, PROMPTS, [b""], [0])
    assert first_actions([]) == Sample([], [], [])
    assert np.isfinite(score_pairs(policy, PROMPTS[:1], [b"3"], [0]).log_RN).all()
