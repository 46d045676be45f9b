"""Trajectories, verdicts and tasks written by hand, with only the fields a test is about; and a run small enough for a test."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.provenance import Artifact, Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.encoding import Role, Span
from dormouse_core.envs.environment import StopReason
from dormouse_core.learning.demonstrations import RowKind, SftRow
from dormouse_core.ledger import Ledger
from dormouse_core.policy.model import build_policy
from dormouse_core.rollouts import stage, verify
from dormouse_core.rollouts.trajectory import Start, Step, Trajectory
from dormouse_core.tasks.store import KEYS, tasks_to_table
from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind
from dormouse_core.verifiers.verdict import Verdict, VerdictClass


def step(k: int, action: bytes = b"go", tool: str = "", ok: bool = True, state: str = "", log_prob: float = -0.5) -> Step:
    n = len(action) + 1
    return Step(step=k, action_bytes=action, ended=True, parsed=action.decode("latin1"), observation=b"seen", obs_digest="o",
                state_digest=state or f"state{k}", tool=tool, tool_ok=ok, log_probs=np.full(n, log_prob, np.float32),
                entropies=np.full(n, 0.7, np.float32), reward=0.0)


def trajectory(name: str, group: str = "g", steps: Sequence[Step] = (step(0),), fork_of: str = "", fork_step: int = -1,
               task_id: str = "task", probe: bool = False, temperature: float = 1.0, prompt: bytes = b"do it") -> Trajectory:
    return Trajectory(
        id=name, cycle="main.c0000", round=0, task_id=task_id, pool="agent", cell="f/d1", group=group, row=0,
        start=Start.PREFIX if fork_of else Start.ROOT, parent_id=fork_of, fork_step=fork_step, seed=1, policy="weights", lfb_version=0,
        temperature=temperature, prompt=prompt, steps=tuple(steps), stop=StopReason.SUBMITTED, probe=probe)


def verdict(t: Trajectory, kind: VerdictClass | str = "pass", score: float | None = None) -> Verdict:
    kind = VerdictClass(kind)
    return Verdict(trajectory_id=t.id, task_id=t.task_id, kind=VerifierKind.EXACT, verdict=kind, decided_by="test", verifier_sha256="0",
                   score=float(kind is VerdictClass.PASS) if score is None else score)


def task(pool: Pool = Pool.AGENT, reference_steps: int | None = None) -> Task:
    return Task(pool=pool, family="f", prompt=b"do it", environment="answer", verifier=VerifierKind.EXACT, split=Split.TRAIN,
                use=Use.TRAIN, reference_steps=reference_steps)


TINY = {
    "policy": {"d_model": 16, "n_heads": 1, "head_dim": 16, "max_iter": 2, "n_experts": 4, "rank": 4, "d_ffn": 32, "shared_rank": 4,
               "engram_rows": 64, "engram_dim": 4, "max_seq_len": 128, "lfb_step": 1e-3},
    "sft": {"batch": 16, "max_epochs": 30, "eval_every": 10, "patience": 3, "optimizer": {"lr": 1e-2, "warmup": 5, "decay": "constant"}},
    "roll": {"prompts": 4, "group_size": 4, "lanes": 16, "workers": 1},
    "verify": {"workers": 1},
    "rl": {"rounds": 6, "ckpt_every": 2, "micro_batches": 3, "dead_round_limit": 3,
           "optimizer": {"lr": 3e-3, "warmup": 1, "decay": "constant"},
           "consolidation": {"kind": "passes", "steps": 5, "batch": 8, "ckpt_every": 2, "optimizer": {"lr": 1e-3, "warmup": 1}}},
}


def config(**sections: dict[str, Any]) -> RunConfig:
    """A run small enough for a test; `sections` override single settings, e.g. rl={"kl": 0.0}."""
    return RunConfig.model_validate({name: {**section, **sections.get(name, {})} for name, section in TINY.items()} | {
        name: section for name, section in sections.items() if name not in TINY})


def coin_rows(n: int = 200) -> list[SftRow]:
    """Rows that answer `k` with a or b, half and half, so that a base can be trained to be right half of the time."""
    return [SftRow((Span(Role.PROMPT, f"{i % 50}?".encode()), Span(Role.ASSISTANT, b"ab"[i // 50 % 2 : i // 50 % 2 + 1])), RowKind.EXPERT,
                   Pool.MATH, "coin/d0", str(i)) for i in range(n)]


def coin_task(k: int, answer: str = "a", **fields: Any) -> Task:
    return Task(**{"pool": Pool.MATH, "family": "coin", "prompt": f"{k % 50}?".encode(), "params": {"k": k}, "environment": "answer",
                   "verifier": VerifierKind.EXACT, "trusted": {"answer": answer, "form": "string"}, "reference": (answer.encode(),),
                   "byte_budget": 6, "split": Split.TRAIN, "use": Use.TRAIN} | fields)


class Coins:
    """A task source of coin questions whose draws depend on what was observed, so a resume that lost it would be seen."""

    def __init__(self, answer: str = "a") -> None:
        self.answer, self.seen = answer, 0

    def draw(self, round: int, n: int) -> list[Task]:
        return [coin_task(1000 * round + 7 * i + self.seen, self.answer) for i in range(n)]

    def observe(self, outcomes: Sequence[tuple[str, int, int]]) -> None:
        self.seen += sum(tried for _, _, tried in outcomes)

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load(self, state: Mapping[str, Any]) -> None:
        self.seen = state["seen"]


def pretrained(store: Store, of: RunConfig) -> Artifact:
    provenance = Provenance(kind=Kind.CHECKPOINT, stage="pretrained_checkpoint", config_sha256=of.sha256(), code_version="0", seed=1)
    return store.put_checkpoint(Checkpoint(of, dict(build_policy(of.policy, 1).state_dict())), provenance)


def judged_round(store: Store, of: RunConfig, base: Artifact, drawn: Sequence[Task]) -> tuple[Artifact, Artifact, Artifact]:
    """(rollouts, verdicts, tasks) of round 0, by the real stages."""
    provenance = Provenance(kind=Kind.TASKS, stage="cycle_plan", config_sha256=of.sha256(), code_version="0", seed=1)
    tasks = store.put_table(tasks_to_table(drawn), KEYS, provenance)
    rollouts = stage.run(of, tasks, base, cycle="main.c0000", store=store, ledger=Ledger())
    return rollouts, verify.run(of, rollouts, tasks, store=store, ledger=Ledger()), tasks
