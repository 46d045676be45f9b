"""`dormouse decode`: one prompt through the policy, by the same engine and distribution that sample rollouts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dormouse_pipeline.cli.options import AsJson, StorePath, chosen_store, emit, opened, out, resumable

if TYPE_CHECKING:
    from dormouse_core.rollouts.request import RolloutRequest


@resumable("Nothing was changed.")
def decode(base: Annotated[Path, typer.Option("--base", help="Checkpoint file (.bin).", show_default=False)],
           prompt: Annotated[str, typer.Option("--prompt", help="What the policy is shown.", show_default=False)],
           temp: Annotated[float, typer.Option("--temp", help="Sampling temperature; 0 is greedy.", min=0.0)] = 0.0,
           max_bytes: Annotated[int, typer.Option("--max-bytes", help="New bytes it may write, END included.", min=1)] = 64,
           n: Annotated[int, typer.Option("--n", help="Answers.", min=1)] = 1,
           seed: Annotated[int, typer.Option("--seed", help="Root of the draws.", min=0)] = 1,
           store: StorePath = None, json: AsJson = False) -> None:
    """Let a checkpoint answer one prompt: a single turn, ended by the policy or by the byte limit."""
    from dormouse_core.encoding import unescape
    from dormouse_core.ledger import Ledger
    from dormouse_core.policy.model import load_policy
    from dormouse_core.rollouts.engine import roll

    held = chosen_store(store)
    artifact = opened(held, base, "checkpoint")
    checkpoint = held.read_checkpoint(artifact)
    policy = load_policy(checkpoint, checkpoint.config.policy, str(base))
    requests = _requests(prompt.encode(), artifact.identity, temp, max_bytes, n, seed)
    played = sorted(roll(policy, requests, checkpoint.config.roll, Ledger()), key=lambda t: t.row)
    answers = [{"answer": unescape(t.steps[0].action_bytes).decode("utf-8", "backslashreplace") if t.steps else "",
                "bytes": t.tokens, "stop": str(t.stop), "log_prob": float(sum(s.log_probs.sum() for s in t.steps))} for t in played]
    emit({"prompt": prompt, "checkpoint": artifact.identity, "temperature": temp, "answers": answers}, json,
         lambda: out.print("\n".join(str(a["answer"]) for a in answers), markup=False))


def _requests(prompt: bytes, identity: str, temp: float, max_bytes: int, n: int, seed: int) -> "list[RolloutRequest]":
    from dormouse_core.rollouts.request import Origin, group_requests
    from dormouse_core.tasks.task import Pool, Split, Task, Use, VerifierKind

    task = Task(pool=Pool.MATH, family="prompt", prompt=prompt, environment="answer", verifier=VerifierKind.EXACT, byte_budget=max_bytes,
                split=Split.PUBLIC, use=Use.EVALUATION, source="command line")
    return group_requests(task, Origin(cycle="decode", round=0, policy=identity, seed=seed), range(n), temp)
