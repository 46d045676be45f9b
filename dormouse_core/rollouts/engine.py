"""The lane engine: a fixed number of sequences decoded together, each row either forced or sampled at every byte.

Prompts, role tags, observations and replayed prefixes are forced; the policy's own bytes are sampled. A lane that finishes is
refilled from the queue at once; when the queue is empty and lanes fall idle, the batch narrows. A group's prompt is prefilled
once and its state copied into the rows. At the steps a request names, the boundary state (just before the
assistant tag) is kept, so that a fork costs a copy; without one the prefix is replayed byte for byte, to the same bits.
Nothing is drawn from anything but a row's own keys, so lanes, order, batch-mates and processes change no byte.
Not here: which episodes are owed (request), forks (forks), files (shards).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch

from dormouse_core.config.stages import RolloutConfig
from dormouse_core.envs.environment import Environment
from dormouse_core.envs.registry import environment
from dormouse_core.ledger import Ledger
from dormouse_core.policy.invariance import retest
from dormouse_core.policy.model import Policy
from dormouse_core.policy.state import MIN_ROWS
from dormouse_core.rollouts import depth
from dormouse_core.rollouts.episode import Episode, Next
from dormouse_core.rollouts.lanes import Lanes
from dormouse_core.rollouts.native_draw import sampler
from dormouse_core.rollouts.request import RolloutRequest
from dormouse_core.rollouts.snapshots import Boundary, Snapshots
from dormouse_core.rollouts.trajectory import Start, Trajectory

PREFILL_BATCH = 64


def roll(policy: Policy, requests: Sequence[RolloutRequest], config: RolloutConfig, ledger: Ledger) -> Iterator[Trajectory]:
    """Play requests; trajectories come in the order they end, which lanes decide (sort by their keys)."""
    engine = Engine(policy, config, ledger)
    for request in requests:
        engine.submit(request)
    yield from engine.run()


class Engine:
    """Plays every submitted request; more may be submitted while it runs."""

    def __init__(self, policy: Policy, config: RolloutConfig, ledger: Ledger,
                 environment_of: Callable[[str], type[Environment]] = environment) -> None:
        self.policy, self.ledger, self.sample = policy, ledger, sampler(policy)
        self.device = next(policy.parameters()).device
        self.most = config.lanes
        self.environment_of = environment_of
        self.queue: deque[Episode] = deque()
        self.lanes = Lanes(0)
        self.state = policy.initial_state(0)
        self.snapshots = Snapshots(policy.initial_state, prompts=max(config.lanes // 2, 8))
        self.ticks, self.lane_ticks, self.busy_ticks = 0, 0, 0

    def submit(self, request: RolloutRequest, keep: frozenset[int] = frozenset()) -> None:
        """Owe an episode. At the steps in `keep` (not step 0: that is behind the prompt) its state is kept for forks."""
        self.queue.append(Episode(request, self.environment_of(request.task.environment), keep))

    def drop(self, key: Boundary) -> None:
        """Forget a kept state: no fork will start there."""
        self.snapshots.drop(key)

    def keep_only(self, trajectories: Iterable[str], wanted: set[Boundary]) -> None:
        """Forget all kept states of these trajectories but the ones wanted."""
        self.snapshots.keep_only(trajectories, wanted)

    def run(self) -> Iterator[Trajectory]:
        """Play until nothing is owed. The policy is in evaluation mode meanwhile."""
        training = self.policy.training
        self.policy.eval()
        try:
            if self.queue:
                retest(self.policy, self.most, self.ledger)
            while self.queue or self.lanes.busy:
                with torch.no_grad():
                    done = self._admit() + self._tick()
                for trajectory in done:
                    self._count(trajectory)
                    yield trajectory
        finally:
            self.policy.train(training)

    # --- admission

    def _admit(self) -> list[Trajectory]:
        """Fill idle lanes from the queue. Returns episodes whose environment would not start."""
        self._resize()
        admitted: list[tuple[int, Episode]] = []
        dead: list[Trajectory] = []
        idle = deque(self.lanes.idle() if self.queue else ())
        while self.queue and idle:
            episode = self.queue.popleft()
            if self._begin(episode):
                admitted.append((idle.popleft(), episode))
            else:
                dead.append(episode.trajectory())
        self._place(admitted)
        return dead

    def _resize(self) -> None:
        """As wide as what is owed, in steps of MIN_ROWS up to `lanes`; live rows move to the front."""
        owed = self.lanes.busy + len(self.queue)
        wanted = min(-(-owed // MIN_ROWS) * MIN_ROWS, self.most)
        if wanted != self.lanes.width:
            rows = self.lanes.resize(wanted)
            state = self.policy.initial_state(wanted)
            if len(rows):
                state.copy_(range(len(rows)), self.state, rows.tolist())
            self.state = state

    def _begin(self, episode: Episode) -> bool:
        kept = self.snapshots.step(episode.source)
        if episode.source is not None:
            self.ledger.ask("fork from a kept state", ran=kept is not None)
        return episode.begin(kept[1] if kept else None, self.ledger)

    def _place(self, admitted: Sequence[tuple[int, Episode]]) -> None:
        """Put begun episodes at their first draw's boundary: policy state copied in, forced bytes queued."""
        if not admitted:
            return
        behind_prompt = [e.prompt_stream for _, e in admitted if self.snapshots.step(e.source) is None]
        missing = {p: None for p in behind_prompt if self.snapshots.prompt(p) is None}
        if missing:
            self._prefill(list(missing), frozenset(behind_prompt))
        slots = []
        for row, episode in admitted:
            kept = self.snapshots.step(episode.source)
            slot = kept[0] if kept else self.snapshots.prompt(episode.prompt_stream)
            assert slot is not None
            slots.append(slot)
            self.lanes.place(row, episode, episode.opening(from_snapshot=kept is not None))
        self.state.copy_([row for row, _ in admitted], self.snapshots.state, slots)

    def _prefill(self, prompts: Sequence[bytes], needed: frozenset[bytes]) -> None:
        """Run prompts, those of like length together, and keep the state after each."""
        started = time.perf_counter()
        ordered = sorted(prompts, key=len)
        for i in range(0, len(ordered), PREFILL_BATCH):
            part = ordered[i : i + PREFILL_BATCH]
            longest = len(part[-1])
            ids_BL = torch.tensor([list(stream.ljust(longest, b"\0")) for stream in part], device=self.device)
            after = self.policy(ids_BL, length_B=torch.tensor([len(stream) for stream in part], device=self.device)).state
            self.snapshots.keep_prompts(part, after, needed)
        self.ledger.seconds["rollouts.prefill"] += time.perf_counter() - started

    # --- one byte for every lane

    def _tick(self) -> list[Trajectory]:
        lanes = self.lanes
        if not lanes.busy:
            return []
        started = time.perf_counter()
        boundary = lanes.at_boundary()
        if len(boundary):
            self._keep(boundary.tolist())
        ids_B = torch.from_numpy(lanes.next_bytes()).to(self.device)
        before = time.perf_counter()
        logits_BV, _ = self.policy.decode(ids_B, self.state)
        after = time.perf_counter()
        lanes.ms_B += (after - before) * 1e3 / lanes.busy
        self.ticks, self.lane_ticks, self.busy_ticks = self.ticks + 1, self.lane_ticks + lanes.width, self.busy_ticks + lanes.busy
        rows = lanes.sampling()
        done = self._sample(rows, logits_BV) if len(rows) else []
        self.ledger.seconds["rollouts.decode"] += after - before
        self.ledger.seconds["rollouts.engine"] += time.perf_counter() - started - (after - before)
        return done

    def _sample(self, rows: np.ndarray, logits_BV: torch.Tensor) -> list[Trajectory]:
        """One byte of the policy's for each of `rows`, and what follows from it."""
        lanes = self.lanes
        depth.count(self.policy, rows, self.ledger)
        logits_XV = logits_BV if len(rows) == lanes.width else logits_BV[torch.from_numpy(rows).to(self.device)]
        temperature_X = lanes.temperature_B[rows]
        drawn = self.sample(logits_XV, temperature_X, lanes.seed_B[rows], lanes.step_B[rows], lanes.count_B[rows], lanes.avoid_B[rows])
        over = lanes.record(rows, drawn)
        return [t for row in over.tolist() if (t := self._close(row)) is not None]

    def _close(self, row: int) -> Trajectory | None:
        """Carry out the action a lane just finished; the trajectory if that ended the episode."""
        episode = self.lanes.episodes[row]
        assert episode is not None
        match episode.act(self.lanes.written(row), self.ledger):
            case Next.STEP:
                self.lanes.next_action(row, episode.request.seed, episode.between())
                return None
            case Next.REDRAW:
                self.ledger.count("rollouts.fork_redraws")
                if self._begin(episode):
                    self._place([(row, episode)])
                    return None
        self.lanes.free(row)
        return episode.trajectory()

    def _keep(self, rows: list[int]) -> None:
        """Keep the states of these rows, with their environments'."""
        episodes = [e for row in rows if (e := self.lanes.episodes[row]) is not None]
        self.snapshots.keep_steps([(e.id, len(e.steps)) for e in episodes], [e.snapshot() for e in episodes], self.state, rows)

    def _count(self, trajectory: Trajectory) -> None:
        ledger = self.ledger
        if trajectory.probe:  # no rollout: nobody's rate or cost
            ledger.count("probes.trajectories")
            ledger.count("probes.bytes", trajectory.tokens)
            return
        ledger.count("rollouts.trajectories")
        ledger.count("rollouts.bytes", sum(s.tokens for s in trajectory.sampled_steps))
        ledger.count(f"rollouts.stop.{trajectory.stop}")
        if trajectory.start is Start.PREFIX:
            ledger.count("rollouts.forks")
            ledger.count("rollouts.forks_same_action", int(trajectory.extra.get("acceptance", 1.0) == 0.0))
