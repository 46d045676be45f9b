"""Forks: exact excluded sampling, chosen by the state alone, restored to the bit."""

from dataclasses import replace

import numpy as np
import pytest

from dormouse_core.envs.environment import StopReason
from dormouse_core.envs.register_machine import RegisterMachine
from dormouse_core.ledger import Ledger
from dormouse_core.rollouts.deviation import NOTHING, can_deviate, deviate, index_probabilities, realised_bytes
from dormouse_core.rollouts.engine import Engine
from dormouse_core.rollouts.forks import fork_request, plan_forks, roll_with_forks
from dormouse_core.rollouts.sampling import draw
from dormouse_core.rollouts.trajectory import Start, Step
from tests.core.rollouts.made import bits, changed, fingerprint, played, requests


@pytest.fixture(scope="module")
def rolled(policy, tasks, origin, config):
    ledger = Ledger()
    owed = {r.id: r for r in requests(tasks, origin)}
    done = {t.id: t for t in played(policy, list(owed.values()), config.roll, forks=True, ledger=ledger)}
    forks = [t for t in done.values() if t.start is Start.PREFIX]
    assert len(forks) >= 8 and any(f.fork_step > 0 for f in forks)
    return owed, done, forks, ledger


def test_a_fork_replays_its_parents_steps_and_then_does_something_else(rolled):
    _, done, forks, _ = rolled
    for fork in forks:
        parent, k = done[fork.parent_id], fork.fork_step
        assert bits(replace(fork, steps=fork.steps[:k]))[-1] == bits(replace(parent, steps=parent.steps[:k]))[-1]
        assert realised_bytes(fork.steps[k]) != realised_bytes(parent.steps[k])
        assert fork.steps[k].state_digest == parent.steps[k].state_digest
        assert fork.steps[k].parsed == "" or fork.steps[k].parsed != parent.steps[k].parsed
        assert fork.group not in {t.group for t in done.values() if t.start is Start.ROOT}


def test_a_fork_carries_what_its_credit_needs(rolled):
    _, done, forks, _ = rolled
    for fork in forks:
        realised = done[fork.parent_id].steps[fork.fork_step]
        assert fork.extra["pi"] == pytest.approx(np.exp(realised.log_probs.astype(np.float64).sum()))
        assert fork.extra["acceptance"] == 1 / (1 + fork.extra["redraws"])
        shared = int(fork.extra["deviation"])
        own = fork.steps[fork.fork_step]
        assert realised_bytes(own)[:shared] == realised_bytes(realised)[:shared]
        assert realised_bytes(own)[shared] != realised_bytes(realised)[shared]
        assert own.log_probs[:shared].tobytes() == realised.log_probs[:shared].tobytes()
        assert own.entropies[: shared + 1].tobytes() == realised.entropies[: shared + 1].tobytes()


def test_parents_count_their_forks_and_no_step_is_forked_twice(rolled):
    _, done, forks, _ = rolled
    for t in done.values():
        assert t.fork_count == sum(f.parent_id == t.id for f in forks)
    assert len({(f.parent_id, f.fork_step) for f in forks}) == len(forks)


def test_forks_leave_the_roots_as_they_are_without_forks(rolled, policy, config):
    owed, done, _, _ = rolled
    plain = played(policy, list(owed.values()), config.roll)
    assert fingerprint(plain) == fingerprint(replace(t, fork_count=0) for t in done.values() if t.start is Start.ROOT)


def test_a_fork_from_a_kept_state_is_bit_equal_to_one_by_replay(rolled, policy, config):
    owed, done, forks, ledger = rolled
    assert ledger.ran["fork from a kept state"] == ledger.asked["fork from a kept state"] > 0
    again = Ledger()
    asked = [fork_request(owed[f.parent_id], done[f.parent_id], f.fork_step) for f in forks]
    replayed = played(policy, asked, config.roll, ledger=again)
    assert again.ran["fork from a kept state"] == 0 < again.asked["fork from a kept state"]
    assert fingerprint(replayed) == fingerprint(forks)


def test_without_room_for_states_forks_are_the_same_by_replay(rolled, policy, config, monkeypatch):
    owed, done, _, _ = rolled
    keep = Engine.__init__

    def small(self, *args, **kwargs):
        keep(self, *args, **kwargs)
        self.snapshots._step_limit = 2

    monkeypatch.setattr(Engine, "__init__", small)
    ledger = Ledger()
    assert fingerprint(roll_with_forks(policy, list(owed.values()), config.roll, ledger)) == fingerprint(done.values())
    assert ledger.ran["fork from a kept state"] < ledger.asked["fork from a kept state"]


def test_no_kept_state_outlives_the_round(rolled, policy, config, monkeypatch):
    owed, _, _, _ = rolled
    engines = []
    begin = Engine.__init__

    def remembered(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        engines.append(self)

    monkeypatch.setattr(Engine, "__init__", remembered)
    assert list(roll_with_forks(policy, list(owed.values()), config.roll, Ledger()))
    assert len(engines[0].snapshots) == 0


@pytest.mark.parametrize("log_prob", [-3.0, -1e-4])
def test_which_steps_are_forked_does_not_depend_on_the_actions_taken(rolled, config, log_prob):
    owed, done, _, _ = rolled
    roots = sorted((t for t in done.values() if t.start is Start.ROOT), key=lambda t: (t.group, t.row))
    group = [(owed[t.id], t) for t in roots if t.group == roots[0].group]
    others = [(request, replace(t, steps=tuple(_other_action(s, log_prob) for s in t.steps))) for request, t in group]
    planned = [{(f.parent_id, f.fork_step) for f in plan_forks(members, config.roll, Ledger())} for members in (group, others)]
    assert planned[0] == planned[1] != set()


def _other_action(step: Step, log_prob: float) -> Step:
    """The same state (so the same first entropy), another action, rare or all but certain."""
    n = 4
    entropies = np.concatenate([step.entropies[:1], np.zeros(n - 1, dtype=np.float32)])
    return replace(step, action_bytes=b"zzz", ended=True, parsed="", log_probs=np.full(n, log_prob, dtype=np.float32), entropies=entropies)


class _Mute(RegisterMachine):
    """Names no canonical action, so nothing but excluded sampling keeps a fork off its parent's action."""

    def step(self, action):
        return replace(super().step(action), parsed="")


def test_excluded_sampling_alone_never_repeats_the_realised_bytes(policy, tasks, origin, config):
    every = config.roll.model_copy(update={"fork_share": 1.0})
    done = {t.id: t for t in roll_with_forks(policy, requests(tasks, origin, g=8), every, Ledger(), environment_of=lambda name: _Mute)}
    forks = [t for t in done.values() if t.start is Start.PREFIX]
    assert len(forks) > 40 and all(f.extra["redraws"] == 0 for f in forks)
    assert all(realised_bytes(f.steps[f.fork_step]) != realised_bytes(done[f.parent_id].steps[f.fork_step]) for f in forks)


def test_a_step_below_the_entropy_bound_is_never_forked(rolled, policy, config):
    owed, done, _, _ = rolled
    first = sorted(float(s.entropies[0]) for t in done.values() for s in t.steps)
    bound = first[len(first) // 2]
    forks = [t for t in played(policy, list(owed.values()), config.roll.model_copy(update={"fork_entropy": bound}), forks=True)
             if t.start is Start.PREFIX]
    assert forks and all(done[f.parent_id].steps[f.fork_step].entropies[0] > bound for f in forks)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_the_fork_share_bounds_a_group_and_holds_in_the_mean(rolled, config, share):
    owed, done, _, _ = rolled
    roots = [t for t in done.values() if t.start is Start.ROOT]
    group = [(owed[t.id], t) for t in roots if t.group == roots[0].group]
    setting = config.roll.model_copy(update={"fork_share": share})
    counts = []
    for i in range(300):
        members = [(replace(request, group=f"g{i}"), t) for request, t in group]
        counts.append(len(plan_forks(members, setting, Ledger())))
    assert max(counts) <= np.ceil(share * len(group))
    assert np.mean(counts) == pytest.approx(share * len(group), abs=0.1)


def test_single_step_tasks_are_not_forked(policy, tasks, origin, config):
    single = [changed(t, max_steps=1) for t in tasks[:2]]
    assert not [t for t in played(policy, requests(single, origin), config.roll, forks=True) if t.start is Start.PREFIX]


def test_an_action_the_policy_was_certain_of_is_not_forked(rolled, config):
    owed, done, _, _ = rolled
    roots = [t for t in done.values() if t.start is Start.ROOT][:4]
    certain = [(replace(owed[t.id], group="g"), replace(t, steps=tuple(replace(s, log_probs=np.zeros_like(s.log_probs)) for s in t.steps)))
               for t in roots]
    ledger = Ledger()
    assert plan_forks(certain, config.roll.model_copy(update={"fork_share": 1.0}), ledger) == []
    assert ledger.counts["rollouts.forks_of_certain_actions"] == 4


class _OneWord(RegisterMachine):
    """Reads every action as the same canonical one, and counts how often it was asked."""

    def step(self, action):
        return replace(super().step(action), parsed="same")


def test_a_fork_that_cannot_find_another_canonical_action_says_so(policy, tasks, origin, config):
    ledger = Ledger()
    done = list(roll_with_forks(policy, requests(tasks[:1], origin), config.roll, ledger, environment_of=lambda name: _OneWord))
    forks = [t for t in done if t.start is Start.PREFIX]
    assert forks
    for fork in forks:
        if fork.steps[fork.fork_step].ended:
            assert fork.extra["redraws"] == 8 and fork.extra["acceptance"] == 0.0
    assert ledger.counts["rollouts.fork_redraws"] >= 8 and ledger.counts["rollouts.forks_same_action"] >= 1


class _Forgets(RegisterMachine):
    """Restores to another state than was snapshot: a broken environment."""

    @classmethod
    def restore(cls, task, blob):
        env = super().restore(task, blob)
        env.value += 1
        return env


def test_an_environment_that_restores_wrongly_is_found_out(policy, tasks, origin, config):
    ledger = Ledger()
    done = list(roll_with_forks(policy, requests(tasks, origin), config.roll, ledger, environment_of=lambda name: _Forgets))
    later = [t for t in done if t.fork_step > 0]
    assert later and all(t.stop is StopReason.INFRA for t in later)
    assert ledger.counts["rollouts.restore_mismatch"] == len(later)


# --- exact excluded sampling, against a policy small enough to enumerate

_ALPHABET, _LENGTH = b"abc", 3
_TABLE = {prefix: np.random.Generator(np.random.Philox(key=i)).dirichlet(np.ones(3)) for i, prefix in enumerate(
    [b"", *[bytes([x]) for x in _ALPHABET], *[bytes([x, y]) for x in _ALPHABET for y in _ALPHABET]])}


def _probability(action: bytes) -> float:
    return float(np.prod([_TABLE[action[:i]][_ALPHABET.index(action[i])] for i in range(_LENGTH)]))


def _alternative(step: Step, seed: int) -> bytes:
    deviation = deviate(step, seed)
    action = step.action_bytes[: deviation.at]
    for i in range(deviation.at, _LENGTH):
        log_prob = np.full((1, 256), -np.inf, dtype=np.float32)
        log_prob[0, list(_ALPHABET)] = np.log(_TABLE[action])
        names = [np.array([v], dtype=np.int64) for v in (seed, 0, i, deviation.byte if i == deviation.at else NOTHING)]
        action += bytes([draw(log_prob, np.ones(1), *names).byte_X[0]])
    return action


def test_alternatives_have_exactly_the_policys_distribution_without_the_realised_action():
    realised = b"bca"
    log_probs = np.log([_TABLE[realised[:i]][_ALPHABET.index(realised[i])] for i in range(_LENGTH)]).astype(np.float32)
    step = Step(0, realised, False, "", b"", "", "", "", True, log_probs, np.ones(_LENGTH, dtype=np.float32), 0.0)
    n = 4000
    drawn = [_alternative(step, seed) for seed in range(n)]
    assert realised not in drawn
    actions = [bytes([x, y, z]) for x in _ALPHABET for y in _ALPHABET for z in _ALPHABET if bytes([x, y, z]) != realised]
    expected = np.array([_probability(a) for a in actions]) / (1 - _probability(realised))
    observed = np.array([drawn.count(a) for a in actions]) / n
    keep = expected * n > 5
    chi2 = (n * (observed - expected)[keep] ** 2 / expected[keep]).sum()
    assert chi2 < keep.sum() + 5 * np.sqrt(2 * keep.sum())


def test_index_probabilities_are_those_of_the_first_difference():
    log_probs = np.log([0.5, 0.9, 0.25]).astype(np.float32)
    step = Step(0, b"xy", True, "", b"", "", "", "", True, log_probs, log_probs, 0.0)
    whole = 1 - 0.5 * 0.9 * 0.25
    assert index_probabilities(step) == pytest.approx([0.5 / whole, 0.5 * 0.1 / whole, 0.5 * 0.9 * 0.75 / whole])
    assert can_deviate(step) and not can_deviate(replace(step, log_probs=np.zeros(3, dtype=np.float32)))
