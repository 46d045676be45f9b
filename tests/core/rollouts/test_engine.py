"""The lane engine: what a trajectory is made of, and what may not change it."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from dormouse_core.encoding import END, POLICY_MAY_WRITE, TAG
from dormouse_core.envs.environment import StopReason
from dormouse_core.envs.register_machine import RegisterMachine
from dormouse_core.ledger import Ledger
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.rollouts.engine import Engine
from dormouse_core.rollouts.episode import Episode, Next, Written
from dormouse_core.rollouts.request import group_requests
from tests.core.rollouts.made import bits, changed, fingerprint, played, requests


def _with(config, **changes):
    return config.roll.model_copy(update=changes)


@pytest.fixture(scope="module")
def base(policy, tasks, origin, config):
    return fingerprint(played(policy, requests(tasks, origin), config.roll, forks=True))


@pytest.mark.parametrize("lanes", [4, 6, 16, 64])
def test_number_of_lanes_changes_no_bit(base, policy, tasks, origin, config, lanes):
    assert fingerprint(played(policy, requests(tasks, origin), _with(config, lanes=lanes), forks=True)) == base


def test_order_of_requests_changes_no_bit(base, policy, tasks, origin, config):
    shuffled = requests(tasks, origin)
    random.Random(3).shuffle(shuffled)
    assert fingerprint(played(policy, shuffled, config.roll, forks=True)) == base


def test_a_group_alone_is_the_group_among_others(base, policy, tasks, origin, config):
    for task in tasks[:2]:
        alone = fingerprint(played(policy, requests([task], origin), config.roll, forks=True))
        assert alone.items() <= base.items()
        assert len(alone) > 4


def test_a_row_alone_is_the_row_in_its_group(base, policy, tasks, origin, config):
    request = group_requests(tasks[1], origin, [2], 1.0)[0]
    alone = played(policy, [request], config.roll)[0]
    among = {t.id: t for t in played(policy, requests(tasks, origin), config.roll)}[request.id]
    assert bits(alone) == bits(among)


def test_a_shared_prompt_state_is_the_state_of_a_row_of_its_own(policy, tasks, origin, config):
    shared = fingerprint(played(policy, requests(tasks, origin), config.roll))
    one_by_one = [t for r in requests(tasks, origin) for t in played(policy, [r], config.roll)]
    assert fingerprint(one_by_one) == shared


def test_a_prompt_cache_that_forgets_changes_no_bit(policy, tasks, origin, config):
    engine = Engine(policy, config.roll, Ledger())
    engine.snapshots._prompt_limit = 1
    for request in requests(tasks, origin):
        engine.submit(request)
    assert fingerprint(engine.run()) == fingerprint(played(policy, requests(tasks, origin), config.roll))


def test_other_seeds_cycles_and_rounds_draw_otherwise(policy, tasks, origin, config):
    texts = set()
    for other in (origin, replace(origin, seed=12), replace(origin, cycle="main.c0001"), replace(origin, round=4)):
        ended = sorted(played(policy, requests(tasks, other), config.roll), key=lambda t: (t.task_id, t.row))
        texts.add(tuple(s.action_bytes for t in ended for s in t.steps))
    assert len(texts) == 4


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
def test_stored_log_probs_are_those_of_a_teacher_forced_forward(policy, tasks, origin, config, temperature):
    worst = 0.0
    for t in played(policy, requests(tasks, origin, temperature=temperature), config.roll, forks=True):
        stream, step_L, log_prob_L = t.stream()
        with torch.no_grad():
            logits = policy(torch.tensor([list(stream)])).logits_BLV[0]
        scored = action_log_probs(logits, temperature)
        own = np.flatnonzero(step_L >= 0)
        assert own.size == sum(s.tokens for s in t.sampled_steps)
        again = scored[torch.from_numpy(own - 1), torch.tensor([stream[i] for i in own])].numpy()
        worst = max(worst, float(np.abs(again - log_prob_L[own]).max()))
    assert worst < 1e-5


def test_greedy_takes_the_likeliest_byte_and_stores_its_log_prob_at_temperature_one(policy, tasks, origin, config):
    for t in played(policy, requests(tasks, origin, g=2, temperature=0.0), config.roll):
        stream, step_L, log_prob_L = t.stream()
        with torch.no_grad():
            scored = action_log_probs(policy(torch.tensor([list(stream)])).logits_BLV[0]).numpy()
        for i in np.flatnonzero(step_L >= 0):
            assert scored[i - 1].argmax() == stream[i]
            assert log_prob_L[i] == pytest.approx(scored[i - 1].max(), abs=1e-5)


def test_greedy_and_sampled_rows_may_share_a_batch(policy, tasks, origin, config):
    greedy, warm = requests(tasks, origin, g=1, temperature=0.0), requests(tasks, origin, g=3, temperature=0.7)
    together = fingerprint(played(policy, greedy + warm, config.roll))
    assert together == fingerprint(played(policy, greedy, config.roll)) | fingerprint(played(policy, warm, config.roll))


def test_the_byte_budget_counts_every_sampled_byte_and_cuts_without_an_end(policy, tasks, origin, config):
    cut, whole = 0, 0
    for budget in (1, 2, 3, 5):
        short = [changed(t, byte_budget=budget) for t in tasks]
        for t in played(policy, requests(short, origin), config.roll):
            assert t.tokens <= budget
            if t.stop is StopReason.BYTE_BUDGET:
                assert t.tokens == budget
                cut += not t.steps[-1].ended
                whole += t.steps[-1].ended
                if not t.steps[-1].ended:
                    assert t.steps[-1].observation == b"" and t.steps[-1].parsed == "" and t.steps[-1].tool == ""
    assert cut and whole


def test_the_step_limit_ends_an_episode(policy, tasks, origin, config):
    short = [changed(t, max_steps=2) for t in tasks]
    ended = played(policy, requests(short, origin), config.roll)
    assert all(len(t.steps) <= 2 for t in ended)
    assert any(t.stop is StopReason.MAX_STEPS and len(t.steps) == 2 for t in ended)


def test_the_policy_never_writes_a_role_tag_and_end_only_closes(policy, tasks, origin, config):
    wild = played(policy, requests(tasks, origin, g=8, temperature=5.0), config.roll)
    for t in wild:
        for s in t.steps:
            assert not any(tag in s.action_bytes for tag in (*TAG.values(), END))
            assert np.isfinite(s.log_probs).all() and (s.entropies >= 0).all()
            assert all(POLICY_MAY_WRITE[b] for b in s.action_bytes)


def test_the_environment_sees_the_unescaped_action_and_the_trajectory_keeps_the_stream_bytes(tasks, origin):
    seen: list[bytes] = []

    class Listens(RegisterMachine):
        def step(self, action):
            seen.append(action)
            return super().step(action)

    episode = Episode(group_requests(tasks[0], origin, [0], 1.0)[0], Listens)
    assert episode.begin(None, Ledger())
    n = np.zeros(4, dtype=np.float32)
    assert episode.act(Written(b"\x10\x41\xff" + END, n, n, 5, 0.0), Ledger()) is Next.STEP
    assert seen == [b"\x01\xff"] and episode.steps[0].action_bytes == b"\x10\x41\xff"


class _Breaks(RegisterMachine):
    """A register machine that raises at its second step."""

    def step(self, action):
        if self.steps == 1:
            raise RuntimeError("the machine is on fire")
        return super().step(action)


class _Refuses(RegisterMachine):
    """A register machine that does not start."""

    @classmethod
    def start(cls, task, seed):
        raise RuntimeError("no machine")


@pytest.mark.parametrize(("broken", "steps"), [(_Breaks, 2), (_Refuses, 0)])
def test_an_environment_that_raises_ends_its_own_episodes_only(policy, tasks, origin, config, broken, steps):
    ledger = Ledger()
    owed = requests(tasks, origin)
    bad = changed(owed[0].task, environment="broken")
    owed += group_requests(bad, origin, range(2), 1.0)
    engine = Engine(policy, config.roll, ledger, environment_of=lambda name: broken if name == "broken" else RegisterMachine)
    for request in owed:
        engine.submit(request)
    done = list(engine.run())
    infra = [t for t in done if t.stop is StopReason.INFRA]
    assert {t.task_id for t in infra} == {bad.id} and all(len(t.steps) == steps for t in infra)
    assert ledger.counts["rollouts.infra"] == 2 and len(ledger.lines) == 1
    rest = fingerprint(t for t in done if t.task_id != bad.id)
    assert rest == fingerprint(played(policy, requests(tasks, origin), config.roll))


def test_the_policy_is_left_in_the_mode_it_was_in(policy, tasks, origin, config):
    policy.train()
    try:
        played(policy, requests(tasks[:1], origin, g=2), config.roll)
        assert policy.training
    finally:
        policy.eval()
