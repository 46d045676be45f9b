"""Batch invariance is tried where a process starts to decode, and its failure is heard."""

import pytest
import torch

from dormouse_core.config.resolve import resolve
from dormouse_core.ledger import Ledger
from dormouse_core.policy import invariance
from dormouse_core.policy.model import Policy, build_policy


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Policy:
    monkeypatch.setattr(invariance, "_tried", {})
    return build_policy(resolve("tiny").policy, 1)


@pytest.mark.parametrize("lanes", [1, 16, 100])
def test_this_machine_keeps_a_rows_bits_in_every_batch(policy: Policy, ledger: Ledger, lanes: int) -> None:
    invariance.retest(policy, lanes, ledger)
    assert ledger.arms() == {invariance.WHAT: "1/1"} and not ledger.lines


def test_a_machine_that_does_not_is_counted_and_said_aloud(policy: Policy, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Policy.decode

    def rounding(self: Policy, ids_B: torch.Tensor, state: object) -> tuple[torch.Tensor, torch.Tensor]:
        logits_BV, hidden_BD = decode(self, ids_B, state)  # type: ignore[arg-type]
        return logits_BV * (1 + 1e-7 * len(ids_B)), hidden_BD

    monkeypatch.setattr(Policy, "decode", rounding)
    invariance.retest(policy, 40, ledger)
    assert ledger.arms() == {invariance.WHAT: "0/1"} and "other bits than alone" in ledger.lines[0]


def test_it_is_tried_once_a_shape_and_width(policy: Policy, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(invariance, "invariant", lambda policy, lanes: tried.append(lanes) or True)
    for lanes in (16, 16, 32):
        invariance.retest(policy, lanes, ledger)
    assert tried == [16, 32] and ledger.arms() == {invariance.WHAT: "3/3"}
