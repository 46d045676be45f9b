"""WorkerPool: parts that arrive while an item goes on, a reference beside the policy, and weights that are read only when they change."""

from pathlib import Path

import pytest
import torch

from dormouse_core.config.resolve import resolve
from dormouse_core.ledger import DormouseError
from dormouse_core.policy.model import build_policy
from dormouse_core.rollouts.workers import WorkerPool
from tests.core.rollouts.test_workers import _until


def gives_then_waits(policy, place):
    yield "part of " + Path(place).name
    _until(Path(place).exists)
    return Path(place).name


def gives_then_fails(policy, item):
    yield item
    raise DormouseError("failed behind its part")


def apart(policy, item, reference=None):
    with torch.no_grad():
        own = float(policy.embedding.sum())
        return item, own - float(reference.embedding.sum()) if reference is not None else own


@pytest.mark.parametrize("workers", [1, 2])
def test_a_part_arrives_while_its_item_goes_on(policy, tmp_path, workers):
    told = []

    def answer(index, value):
        told.append((index, value))
        (tmp_path / str(index)).touch()

    with WorkerPool(workers) as pool:
        pool.set_weights(policy)
        assert pool.map(gives_then_waits, [str(tmp_path / str(i)) for i in range(3)], on_part=answer) == ["0", "1", "2"]
    assert sorted(told) == [(i, f"part of {i}") for i in range(3)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_behind_a_part_is_raised(policy, workers):
    told = []
    with WorkerPool(workers) as pool:
        pool.set_weights(policy)
        with pytest.raises(DormouseError, match="failed behind its part"):
            pool.map(gives_then_fails, [7], on_part=lambda index, value: told.append(value))
    assert told == [7]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reference_comes_only_where_it_is_asked_for(workers):
    config = resolve("tiny").policy
    policy, base = build_policy(config, 1), build_policy(config, 2)
    with torch.no_grad():
        own, gap = float(policy.embedding.sum()), float(policy.embedding.sum()) - float(base.embedding.sum())
    with WorkerPool(workers) as pool:
        pool.set_weights(policy)
        with pytest.raises(ValueError, match="set_reference"):
            pool.map(apart, [0], reference=True)
        pool.set_reference(base)
        assert pool.map(apart, [0], reference=True) == [(0, gap)]
        assert pool.map(apart, [0]) == [(0, own)]


def test_equal_weights_are_written_once_and_a_changed_one_again(policy):
    with WorkerPool(2) as pool:
        versions = []
        for change in (0.0, 0.0, 1e-3):
            with torch.no_grad():
                policy.embedding[0, 0] += change
            pool.set_weights(policy)
            versions.append(pool._blocks[0].version)
            assert pool.map(apart, [0]) == [apart(policy, 0)]
    assert versions == [1, 1, 2]
