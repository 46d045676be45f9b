"""What the rollout engine costs beside the policy it drives, what a kept state saves a fork, and what storing a round costs.

    python benchmarks/rollouts.py [--preset nano] [--lanes 64]

By CPU time of one thread: bytes a second, the engine's own work as a share of the policy's decode (target: at most 25 % at 64
lanes), forks behind four steps from kept states against replayed prefixes, and the commit of a shard of 64 rows and its forks
(a round writes its shards in parallel; target 40 ms wall a round on an idle machine).
"""

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dormouse_core.config.resolve import resolve
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import Ledger
from dormouse_core.policy.model import Policy, build_policy
from dormouse_core.rollouts.engine import Engine
from dormouse_core.rollouts.forks import roll_with_forks
from dormouse_core.rollouts.request import Origin, RolloutRequest, group_requests
from dormouse_core.rollouts.shards import ShardHead, write_shard
from dormouse_core.rollouts.trajectory import Start, Step
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.task import Split, Task

ORIGIN = Origin("bench", 0, "w" * 64, 1)
REPEATS = 5


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--preset", default="nano")
    arguments.add_argument("--lanes", type=int, default=64)
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    config = resolve(chosen.preset, sets=[f"roll.lanes={chosen.lanes}"])
    policy = build_policy(config.policy, 1).eval()
    requests = [r for task in _tasks(16) for r in group_requests(task, ORIGIN, range(8), 1.0)]
    _engine_against_policy(policy, config, requests)
    _kept_against_replayed(policy, config, requests[:64])
    _shard(policy, config, requests[:64])


def _tasks(n: int) -> list[Task]:
    """Register-machine tasks with 24 bytes each: an untrained policy rarely ends an action, so rows are of one length."""
    drawn = [draw("register_machine", 1, Split.TRAIN, i, "bench") for i in range(n)]
    return [Task.model_validate({**t.model_dump(), "byte_budget": 24}) for t in drawn]


class _Timed:
    """CPU seconds inside the policy, by name of what was called (calls inside a call are part of it)."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.seconds, self.inside = policy, defaultdict(float), False

    def __enter__(self) -> "_Timed":
        for name in ("decode", "forward"):
            setattr(self.policy, name, self._timed(name, getattr(self.policy, name)))
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("decode", "forward"):
            delattr(self.policy, name)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return function(*args, **kwargs)
            self.inside, began = True, time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += time.process_time() - began
                self.inside = False
        return timed


def _engine_against_policy(policy: Policy, config: RunConfig, requests: list[RolloutRequest]) -> None:
    rows = []
    for _ in range(REPEATS):
        with _Timed(policy) as timed:
            began = time.process_time()
            engine = Engine(policy, config.roll, Ledger())
            for request in requests:
                engine.submit(request)
            tokens = sum(t.tokens for t in engine.run())
            total = time.process_time() - began
        rows.append((total, timed.seconds["decode"], timed.seconds["forward"], tokens, engine.busy_ticks / engine.lane_ticks))
    total, decode, prefill, tokens, busy = min(rows)
    engine_alone = total - decode - prefill
    print(f"engine at {config.roll.lanes} lanes: {tokens / total / 1e3:.1f} kB/s all in; decode {decode * 1e3:.0f} ms, prefill "
          f"{prefill * 1e3:.0f} ms, engine {engine_alone * 1e3:.0f} ms = {engine_alone / decode:.0%} of decode (target 25 %); "
          f"lanes busy {busy:.0%}")


def _kept_against_replayed(policy: Policy, config: RunConfig, requests: list[RolloutRequest]) -> None:
    """The same episodes behind four stored steps of eight bytes, begun from a kept state and by replaying the prefix."""
    none = np.zeros(9, dtype=np.float32)
    prefix = tuple(Step(k, b"________", True, "", b"?", "", "", "", False, none, none, 0.0) for k in range(4))
    owed = []
    for r in requests:
        task = Task.model_validate({**r.task.model_dump(), "byte_budget": 44, "max_steps": 9})
        owed.append(replace(r, task=task, start=Start.PREFIX, parent_id=r.id, fork_step=4, prefix=prefix))
    seconds = {}
    for kept in (True, False):
        times = []
        for _ in range(REPEATS):
            engine = Engine(policy, config.roll, Ledger())
            for request in owed if kept else ():
                world = engine.environment_of(request.task.environment).start(request.task, request.env_seed)
                for step in prefix:
                    world.step(step.action_bytes)
                engine.snapshots.keep_steps([(request.parent_id, 4)], [world.snapshot()], engine.state, [0])
            began = time.process_time()
            for request in owed:
                engine.submit(request)
            list(engine.run())
            times.append(time.process_time() - began)
        seconds[kept] = min(times)
    print(f"{len(owed)} forks behind 4 steps, 8 new bytes each: {seconds[True] * 1e3:.0f} ms from kept states, "
          f"{seconds[False] * 1e3:.0f} ms by replay: {seconds[False] / seconds[True]:.1f}x")


def _shard(policy: Policy, config: RunConfig, requests: list[RolloutRequest]) -> None:
    rolled = list(roll_with_forks(policy, requests, config.roll, Ledger()))
    tasks = tuple(dict.fromkeys(r.task.id for r in requests))
    wall, cpu, size = [], [], 0
    with tempfile.TemporaryDirectory() as root:
        for i in range(10):
            head = ShardHead(key=f"{i:016d}", slot=f"{i:016d}", cycle="bench", round=0, policy=ORIGIN.policy, lfb_version=0,
                             code_version="bench", tasks=tasks)
            began, used = time.perf_counter(), time.process_time()
            write_shard(Path(root), head, rolled, {})
            wall.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
        size = sum(p.stat().st_size for p in Path(root).rglob("*") if p.is_file()) // 10
    print(f"shard of {len(rolled)} trajectories, {sum(len(t.steps) for t in rolled)} steps: committed in {sorted(wall)[5] * 1e3:.0f} ms "
          f"wall, {sorted(cpu)[5] * 1e3:.0f} ms CPU (target 40 ms a round); {size / len(rolled):.0f} bytes on disk a trajectory")


if __name__ == "__main__":
    main()
