"""Supervised fine-tuning: next-byte loss on assistant bytes, stopped when held-out rows no longer get better.

The loss is on the action distribution (what samples is what trains), plus the per-iteration readout loss and, where asked,
one on observation bytes (the environment's reply is a free teacher). Expert balancing moves here and is frozen in RL.
Not here: the rows (demonstrations.py), the update (update.py).
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.identity import canonical, config_content
from dormouse_core.artifacts.journal import stage_key
from dormouse_core.artifacts.provenance import Artifact, Kind, Parent, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.config.suite import load_suite
from dormouse_core.learning.batches import TextBatch, epoch_order, text_batch
from dormouse_core.learning.conversations import read_conversations
from dormouse_core.learning.demonstrations import SftRow, build_rows
from dormouse_core.learning.monitor import load_metrics
from dormouse_core.learning.rows import KEYS, Rows, heldout_side, rendered, to_table
from dormouse_core.learning.update import Fuse, Outcome, Pool, TextWork, score_text, update
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.optim.balance import balance
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.model import Policy, load_policy
from dormouse_core.rollouts.workers import WorkerPool

STAGE = "sft_checkpoint"
SCORE_BATCH = 64
_BEST = "best/"


class SftEnd(StrEnum):
    """Why SFT stopped."""

    PATIENCE = "patience"  # held-out loss stopped improving
    EPOCHS = "epochs"  # max_epochs were run


@dataclass
class Run:
    """Where SFT stands: everything a resume needs beside weights and moments."""

    step: int = 0
    best_loss: float = float("inf")
    best_step: int = 0
    stale: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "best_loss": self.best_loss, "best_step": self.best_step, "stale": self.stale, "curve": self.curve}


def run(config: RunConfig, base: Artifact, *, store: Store, ledger: Ledger, run_id: str = "", rows: Sequence[SftRow] | None = None,
        data: Path | None = None, pool: WorkerPool | None = None) -> Artifact:
    """SFT from `base` on the configuration's demonstrations (or on `rows`, or the conversations of the file or folder `data`); the best
    weights by held-out loss.

    Resumes where a killed run stopped, to the same bits. Raises DormouseError on a mask that is all 0 or all 1, on data without one
    good line, and when two updates in a row are not finite.
    """
    torch.set_num_threads(config.runtime.threads)
    _announce(config, ledger)
    policy = load_policy(store.read_checkpoint(base), config.policy, f"base {base.path}")
    root = (Parent(role="base", kind=base.kind, identity=base.identity),)
    provenance = Provenance(kind=Kind.CHECKPOINT, stage=STAGE, parents=root, config_sha256=config.sha256(), code_version=code_version(),
                            seed=config.runtime.seed, run_id=run_id)
    train, held, table = _data(config, chosen_rows(config, data, ledger) if rows is None else rows, store, provenance, ledger)
    key = stage_key(STAGE, base.identity, table.identity, canonical(config_content(config)).decode(), code_version())
    with nullcontext(pool) if pool else WorkerPool(config.roll.workers, config.runtime.threads) as workers:
        ended, state, best = _fit(config, policy, train, held, workers, store, key, provenance, ledger)
    for name, value in {"sft_rows": len(train), "sft_heldout_rows": len(held), "sft_steps": state.step}.items():
        ledger.count(name, value)
    out = Checkpoint(config, best, state=state.state() | {
        "stage": STAGE, "ended": ended.value, "interleave_rl": config.sft.interleave_rl, "demonstrations": table.identity,
        "lfb_version": int(best["balance_version"]), "rows": len(train), "heldout_rows": len(held), "target_bytes": train.target_bytes()})
    parents = (*root, Parent(role="demonstrations", kind=table.kind, identity=table.identity))
    artifact = store.put_checkpoint(out, provenance.model_copy(update={"parents": parents, "counters": ledger.counters()}))
    store.drop_resume(key)
    return artifact


def _announce(config: RunConfig, ledger: Ledger) -> None:
    if config.policy.lfb_step == 0:
        ledger.loud("sft: loss-free balancing is off (policy.lfb_step = 0)")
    if config.policy.deep_loss == 0:
        ledger.loud("sft: the per-iteration readout loss is off (policy.deep_loss = 0)")
    if config.sft.mask == "all":
        ledger.loud("sft: loss on all content, prompts and observations included (sft.mask = all)")


def chosen_rows(config: RunConfig, data: Path | None, ledger: Ledger) -> list[SftRow]:
    """The conversations of a file or folder, or the demonstrations that the configuration asks for."""
    began = time.perf_counter()
    if data is not None:
        ledger.loud(f"sft: trains on the conversations of {data}, not on demonstrations of the suite")
    rows = build_rows(config, load_suite(config.loop.suite), config.runtime.seed) if data is None else read_conversations(data, ledger)
    ledger.seconds["sft.rows"] += time.perf_counter() - began
    return rows


def _data(config: RunConfig, rows: Sequence[SftRow], store: Store, provenance: Provenance, ledger: Ledger) -> tuple[Rows, Rows, Artifact]:
    """(training rows, held-out rows, the stored table of both)."""
    began, chosen = time.perf_counter(), list(rows)
    data = rendered([row.segments for row in chosen], config.sft.mask == "all")
    fits = within(data, config, ledger)
    data, chosen = data.pick(fits), [chosen[i] for i in fits]
    heldout_N = heldout_side(data, config.sft.heldout_share)
    about = {name: [getattr(row, name) for row in chosen] for name in ("kind", "pool", "cell", "task_id", "long")}
    table = to_table(data, about, heldout_N)
    stored = store.put_table(table, KEYS, provenance.model_copy(update={"kind": Kind.DEMONSTRATIONS, "parents": ()}))
    ledger.seconds["sft.rows"] += time.perf_counter() - began
    return data.pick(np.flatnonzero(~heldout_N)), data.pick(np.flatnonzero(heldout_N)), stored


def within(rows: Rows, config: RunConfig, ledger: Ledger) -> list[int]:
    """Which rows fit the policy's window; longer ones are left out, counted and said aloud. Raises DormouseError if none fits."""
    longest = config.policy.max_seq_len
    fits = [i for i, n in enumerate(rows.lengths()) if n <= longest]
    if len(fits) < len(rows):
        ledger.count("sft_rows_too_long", len(rows) - len(fits))
        ledger.loud(f"sft: {len(rows) - len(fits)} of {len(rows)} rows are longer than policy.max_seq_len = {longest} and are left out")
    if not fits:
        raise DormouseError(f"sft: none of {len(rows)} rows fits policy.max_seq_len = {longest} bytes; raise it or shorten the rows")
    return fits


def _fit(config: RunConfig, policy: Policy, train: Rows, held: Rows, pool: Pool, store: Store, key: str, provenance: Provenance,
         ledger: Ledger) -> tuple[SftEnd, Run, dict[str, Tensor]]:
    """The loop: updates, an evaluation every `eval_every`, a resume file at each. Returns why it ended and the best weights."""
    sft, seed = config.sft, config.runtime.seed
    per_epoch = -(-len(train) // sft.batch)
    last = per_epoch * sft.max_epochs
    optimizer = build_optimizer(policy, sft.optimizer, last, seed)
    examined = held_batches(held)
    state, best, fuse = Run(), copied(policy), Fuse("sft", ledger)
    resumed = store.load_resume(key, ledger)
    if resumed is not None:
        policy.load_state_dict(resumed.model)
        optimizer.load({n: t for n, t in resumed.optimizer.items() if not n.startswith(_BEST)})
        best = {n.removeprefix(_BEST): t for n, t in resumed.optimizer.items() if n.startswith(_BEST)}
        state = Run(**resumed.state)
        ledger.count("sft_resumed_at_step", state.step)
    pool.set_weights(policy)
    if resumed is None:
        _examine(state, pool, examined, {})
    order: tuple[int, list[np.ndarray]] = (-1, [])
    since: list[Outcome] = []
    while state.step < last and state.stale < sft.patience:
        epoch, at = divmod(state.step, per_epoch)
        if order[0] != epoch:
            order = (epoch, epoch_order(train.lengths(), sft.batch, seed, epoch))
        outcome = update(policy, optimizer, pool, text_works(train.pick(order[1][at]), config))
        fuse.check(outcome, f"step {state.step}")
        balance(policy, config.policy.lfb_step)
        pool.set_weights(policy)
        state.step += 1
        since.append(outcome)
        if state.step % sft.eval_every == 0 or state.step == last:
            train_loss = sum(o.report["text_sum"] for o in since) / len(since)
            if _examine(state, pool, examined, {"train": train_loss} | load_metrics(since) | optimizer.expert_counts()):
                best = copied(policy)
            since = []
            moments = optimizer.state() | {_BEST + n: t for n, t in best.items()}
            store.save_resume(key, Checkpoint(config, dict(policy.state_dict()), moments, state.state()), provenance)
        ledger.progress("sft", state.step, last, "steps", heldout=state.curve[-1]["heldout"], best=state.best_loss)
    return SftEnd.PATIENCE if state.stale >= sft.patience else SftEnd.EPOCHS, state, best


def _examine(state: Run, pool: Pool, examined: Sequence[TextBatch], trained: dict[str, float]) -> bool:
    """Score the held-out rows and note it beside what was seen of training since the last time. True where it is the best so far (the
    start counts)."""
    heldout = float(sum(pool.map(score_text, examined)))
    better = heldout < state.best_loss
    if better:
        state.best_loss, state.best_step, state.stale = heldout, state.step, 0
    else:
        state.stale += 1
    state.curve.append({"step": float(state.step), "heldout": heldout} | trained)
    return better


def held_batches(held: Rows) -> list[TextBatch]:
    """The held-out rows by length, weighted so that the scores of all batches add up to the mean loss a target byte."""
    order = np.argsort(held.lengths(), kind="stable")
    total, out = held.target_bytes(), []
    for lo in range(0, len(order), SCORE_BATCH):
        rows = held.pick(order[lo : lo + SCORE_BATCH])
        (batch,) = text_batch(rows.streams, rows.masks, rows.observed, 0.0)
        out.append(replace(batch, weight_BL=batch.weight_BL * np.float32(rows.target_bytes() / total)))
    return out


def text_works(rows: Rows, config: RunConfig, scale: float = 1.0, count_load: bool = True) -> list[TextWork]:
    """One batch of rows as the micro-batches of an update; `scale` multiplies its loss."""
    parts = text_batch(rows.streams, rows.masks, rows.observed, config.sft.observation_loss, config.sft.micro_batches)
    return [TextWork(part, config.policy.deep_loss, scale, count_load) for part in parts]


def copied(policy: Policy) -> dict[str, Tensor]:
    """Weights and buffers as they are now."""
    return {n: t.detach().clone() for n, t in policy.state_dict().items()}
