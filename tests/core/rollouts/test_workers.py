"""WorkerPool: order, fresh weights, and what happens when something dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dormouse_core.kernels.seen import SEEN, forget_counts
from dormouse_core.ledger import DormouseError
from dormouse_core.policy.model import build_policy
from dormouse_core.rollouts.workers import WorkerPool


def total(policy, item):
    with torch.no_grad():
        return item, float(sum(t.double().sum() for t in policy.state_dict().values())), os.getpid()


def slow_first(policy, item):
    time.sleep(0.2 if item == 0 else 0)
    return item


def fails(policy, item):
    if item == 1:
        raise ValueError("item one is bad")
    if item == 2:
        raise DormouseError("a sentence for a person")
    return item


def dies(policy, item):
    if item == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def asks(policy, item):
    SEEN.ask("kernel.some", item > 1)
    SEEN.loud("kernel.some cannot run: torch does it")
    return item


def unpicklable(policy, item):
    return lambda: item


@pytest.fixture(scope="module")
def pair():
    with WorkerPool(2) as pool:
        yield pool


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_item_order_and_are_told_as_they_arrive(policy, workers):
    told = []
    with WorkerPool(workers) as pool:
        pool.set_weights(policy)
        assert pool.map(slow_first, range(5), on_done=lambda i, result: told.append((i, result))) == [0, 1, 2, 3, 4]
    assert sorted(told) == [(i, i) for i in range(5)]
    assert workers == 1 or told[0] != (0, 0)


def test_every_worker_has_the_latest_weights_and_buffers(pair, policy, config):
    mine = build_policy(config.policy, 1)
    for shift in (0.0, 0.5):
        with torch.no_grad():
            mine.embedding.add_(shift)
            mine.balance_version.add_(1)
        pair.set_weights(mine)
        told = pair.map(total, range(6))
        assert {value for _, value, _ in told} == {total(mine, 0)[1]}
        assert os.getpid() not in {pid for _, _, pid in told}
    assert mine.lfb_version == 2


def test_weights_of_another_shape_may_follow(pair, policy, config):
    wider = build_policy(config.policy.model_copy(update={"d_ffn": 96}), 1)
    for each in (wider, policy):
        pair.set_weights(each)
        assert pair.map(total, [0])[0][1] == total(each, 0)[1]


def test_later_changes_reach_workers_only_with_set_weights(pair, config):
    mine = build_policy(config.policy, 2)
    pair.set_weights(mine)
    before = total(mine, 0)[1]
    with torch.no_grad():
        mine.embedding.add_(1.0)
    assert pair.map(total, [0])[0][1] == before


@pytest.mark.parametrize(("items", "kind", "text"), [
    ([0, 1], ValueError, "item one is bad"),
    ([2], DormouseError, "a sentence for a person"),
])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_of_an_item_is_raised_here(policy, workers, items, kind, text):
    with WorkerPool(workers) as pool:
        pool.set_weights(policy)
        with pytest.raises(kind, match=text):
            pool.map(fails, items)


def test_a_result_that_cannot_travel_is_an_error_not_a_hang(policy):
    with WorkerPool(2) as pool:
        pool.set_weights(policy)
        with pytest.raises(RuntimeError, match="cannot travel"):
            pool.map(unpicklable, [0])


@pytest.mark.parametrize("workers", [1, 2])
def test_what_kernels_were_asked_in_workers_is_counted_and_said_by_their_owner(policy, workers):
    forget_counts()
    with WorkerPool(workers) as pool:
        pool.set_weights(policy)
        for _ in range(2):
            pool.map(asks, [1, 2, 3])
    assert SEEN.arms()["kernel.some"] == "4/6" and SEEN.lines == ["kernel.some cannot run: torch does it"]
    forget_counts()


def test_a_dead_worker_is_an_error_that_says_what_to_do(policy):
    pool = WorkerPool(2)
    pool.set_weights(policy)
    with pytest.raises(DormouseError, match=r"(?s)SIGKILL while it worked on item 1.*roll.workers=1"):
        pool.map(dies, range(4))
    with pytest.raises(DormouseError, match="closed"):
        pool.map(slow_first, range(2))


ROOT = Path(__file__).parents[3]
_OWNER = """
import os, sys, time
from dormouse_core.config.resolve import resolve
from dormouse_core.policy.model import build_policy
from dormouse_core.rollouts.workers import WorkerPool
from tests.core.rollouts.test_workers import sleeps
if __name__ == "__main__":
    pool = WorkerPool(2)
    pool.set_weights(build_policy(resolve("tiny").policy, 1))
    print(*[w.process.pid for w in pool._crew], flush=True)
    try:
        pool.map(sleeps, [sys.argv[1] + "/0", sys.argv[1] + "/1"])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(130)
"""


def sleeps(policy, item):
    Path(item).touch()
    time.sleep(600)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _until(condition, seconds=120):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.05)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_child_outlives_its_owner(tmp_path, how):
    script = tmp_path / "owner.py"
    script.write_text(_OWNER)
    # a job that a shell put into the background is started with SIGINT ignored, and hands that on
    owner = subprocess.Popen([sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "PYTHONPATH": str(ROOT)}, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    children = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(children) == 2 and all(_alive(pid) for pid in children)
    _until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    owner.send_signal(how)
    rest = owner.communicate(timeout=120)[0]
    assert owner.returncode == (130 if how is signal.SIGINT else -signal.SIGKILL)
    assert ("interrupted" in rest) == (how is signal.SIGINT)
    _until(lambda: not any(_alive(pid) for pid in children))
