"""A learning rate named on its own moves every group that is trained."""

import pytest

from dormouse_core.config.rate import at_rate
from dormouse_core.config.resolve import resolve
from dormouse_core.ledger import DormouseError
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.model import build_policy

MUON = resolve("tiny", ["sft.optimizer.experts=muon", "sft.optimizer.query_key=muon", "sft.optimizer.query_key.relative_step=1e-2",
                        "sft.optimizer.tables=frozen"])  # fmt: skip


def test_half_the_rate_is_half_the_step_of_every_group_muons_included_and_frozen_ones_stay() -> None:
    policy = build_policy(MUON.policy, 1)
    before, after = (build_optimizer(policy, c.sft.optimizer, 10).rates() for c in (MUON, at_rate(MUON, "sft", MUON.sft.optimizer.lr / 2)))
    assert after == {name: pytest.approx(rate / 2) for name, rate in before.items()}
    assert before["tables"] == after["tables"] == 0 and before["query_key"] > before["experts"] > 0


def test_other_stages_and_no_rate_change_nothing() -> None:
    assert at_rate(MUON, "sft", None) == MUON
    assert at_rate(MUON, "rl", 0.5).sft == MUON.sft and at_rate(MUON, "sft", 2e-3).rl == MUON.rl


def test_a_rate_that_takes_a_relative_step_out_of_bounds_is_refused_by_name() -> None:
    with pytest.raises(DormouseError, match=r"sft\.optimizer\.query_key.*relative_step"):
        at_rate(MUON, "sft", 1.0)
