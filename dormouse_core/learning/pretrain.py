"""Pretraining: next-byte prediction on text, scored in bits per byte beside what counting scores on the same bytes.

The order of the data is a function of (seed, step). A run that was killed goes on from its resume file to the same bits; under
another configuration or another text it refuses to. A step that is not finite is masked: weights, moments and balancing stay,
the data moves on, and it has no loss to report; too many of them stop the run, and so does a held-out score that is not finite.
Not here: the text (corpus.py), the anchors (anchors.py), the update (update.py), what a log line says (instruments.py).
"""

import math
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import torch

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.code_version import code_version
from dormouse_core.artifacts.provenance import Artifact, Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.drift import refuse_drift
from dormouse_core.config.run import RunConfig
from dormouse_core.learning import anchors, corpus, depth
from dormouse_core.learning.batches import TextBatch, text_batch
from dormouse_core.learning.corpus import Corpus
from dormouse_core.learning.instruments import StepLog
from dormouse_core.learning.update import TextWork, score_text, update
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.optim.balance import balance
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.model import build_policy, load_policy
from dormouse_core.rollouts.workers import WorkerPool

STAGE = "pretrained_checkpoint"
MASK_WINDOW, MASK_LIMIT = 50, 8
"""More masked steps than the limit among this many stop the run."""


def run(config: RunConfig, *, store: Store, ledger: Ledger, run_id: str = "", pool: WorkerPool | None = None) -> Artifact:
    """Train from initial values, or go on from the store's resume file of this stage. The checkpoint's state holds
    `bits_per_byte`: the model and the anchors on one held-out window, and the model on a window of training text.

    Raises DormouseError when the text is missing or too short, where too many steps or a held-out score are not finite, and on a
    resume under another configuration or text.
    """
    torch.set_num_threads(config.runtime.threads)
    _announce(config, ledger)
    text = corpus.load(config.train.data, ledger)
    with nullcontext(pool) if pool else WorkerPool(config.roll.workers, config.runtime.threads) as workers:
        session = _Session(config, text, store, ledger, run_id, workers)
        session.train()
        return session.finish()


class _Session:
    """One run of the stage: what is trained, where it stands, and what it is measured on."""

    def __init__(self, config: RunConfig, text: Corpus, store: Store, ledger: Ledger, run_id: str, pool: WorkerPool) -> None:
        train = config.train
        self.config, self.text, self.store, self.ledger, self.run_id, self.pool = config, text, store, ledger, run_id, pool
        count = train.eval_batches * train.batch
        self.heldout_WL = corpus.fixed_windows(text.heldout_M, count, train.seq_len + 1, "held-out")
        self.seen_WL = corpus.fixed_windows(text.train_N, count, train.seq_len + 1, "training")
        self.step, self.curve, self.masked = 0, list[list[float]](), list[int]()
        self.log = StepLog(train.batch * train.seq_len)
        self.policy = build_policy(config.policy, config.runtime.seed)
        before = store.load_resume(STAGE, ledger)
        if before is not None:
            self._check(before)
            self.policy = load_policy(before, config.policy, str(store.resume_path(STAGE)))
            self.step, self.curve, self.masked = before.state["step"], before.state["curve"], before.state.get("masked_steps", [])
        self.optimizer = build_optimizer(self.policy, train.optimizer, train.steps, config.runtime.seed)
        if before is not None:
            self.optimizer.load(before.optimizer)
            ledger.loud(f"train: going on from step {self.step} of {train.steps} ({store.resume_path(STAGE)})")

    def train(self) -> None:
        """Run the steps that are owed."""
        train, ledger = self.config.train, self.ledger
        while self.step < train.steps:
            self._advance()
            self.step += 1
            if train.eval_every and self.step % train.eval_every == 0 and self.step < train.steps:
                self.curve.append([self.step, self.score(self.heldout_WL)])
            if self.step % train.log_every == 0 or self.step == train.steps:
                facts = self.log.facts(self.step, self.optimizer.rates())
                ledger.progress("train", self.step, train.steps, "step", **facts, **({"heldout": self.curve[-1][1]} if self.curve else {}))
            if self.step % train.ckpt_every == 0 and self.step < train.steps:
                self.store.save_resume(STAGE, self._checkpoint(self.optimizer.state(), {}), self._provenance())

    def finish(self) -> Artifact:
        """Score, write the checkpoint, forget the resume file."""
        train = self.config.train
        counted = anchors.score(self.text.train_N, self.heldout_WL)
        model = self.score(self.heldout_WL)
        bits = {"model": model, "model_on_training_text": self.score(self.seen_WL), "uniform": counted.uniform,
                "unigram": counted.unigram, "five_gram": counted.five_gram}
        if not self.curve or self.curve[-1][0] != self.step:
            self.curve.append([self.step, model])
        for name, value in {"train_steps": self.step, "train_bytes": self.step * train.batch * train.seq_len,
                            "corpus_train_bytes": len(self.text.train_N), "corpus_heldout_bytes": len(self.text.heldout_M)}.items():
            self.ledger.count(name, value)
        if self.masked:
            self.ledger.count("train_steps_masked", len(self.masked))
        facts: dict[str, Any] = {"bits_per_byte": bits, "window_bytes": self.heldout_WL[:, 1:].size, "optimizer": "dropped"}
        if train.eval_every:
            facts["best"] = min(self.curve, key=lambda point: point[1])
        artifact = self.store.put_checkpoint(self._checkpoint({}, facts), self._provenance())
        self.store.drop_resume(STAGE)
        return artifact

    def score(self, window_WL: np.ndarray) -> float:
        """Bits per byte of the policy on a fixed window; the first byte of each row is context only. Raises DormouseError where that is
        not finite: such weights are no result, and nothing is the best of them."""
        parts = _batches(window_WL, self.config.train.eval_batches)
        self.pool.set_weights(self.policy)
        bits = math.fsum(self.pool.map(score_text, parts)) / math.log(2)
        if not math.isfinite(bits):
            raise DormouseError(f"train: the score of the weights at step {self.step} is not finite. {self._way_out()}")
        return bits

    def _advance(self) -> None:
        """One optimizer step on the windows of this step, or none where it is not finite."""
        train = self.config.train
        offset_B = corpus.batch_offsets(len(self.text.train_N), train.seq_len + 1, train.batch, self.config.runtime.seed, self.step)
        batches = _batches(corpus.windows(self.text.train_N, offset_B, train.seq_len + 1), train.micro_batches)
        self.pool.set_weights(self.policy)
        load_E = cast(torch.Tensor, self.policy.load_E)
        before_E = load_E.clone()
        outcome = update(self.policy, self.optimizer, self.pool,
                         [TextWork(b, self.config.policy.deep_loss, count_load=True) for b in batches])
        depth.count(self.config.policy, "train", outcome.report, self.ledger)
        self.log.note(outcome.report["text_sum"] if outcome.finite else None, outcome.gradient_norm, load_E - before_E)
        if outcome.finite:
            balance(self.policy, self.config.policy.lfb_step)
        else:
            self._mask()

    def _mask(self) -> None:
        """Note a step that is not finite; refuse to go on where they are many."""
        self.masked.append(self.step)
        self.ledger.loud("train: a step was not finite and is masked: its update is left out, the data moves on (counted as masked)")
        recent = [step for step in self.masked if step > self.step - MASK_WINDOW]
        if len(recent) > MASK_LIMIT:
            raise DormouseError(f"train: {len(recent)} of the last {min(MASK_WINDOW, self.step + 1)} steps were not finite, the last of "
                                f"them step {self.step}. {self._way_out()}")

    def _way_out(self) -> str:
        return f"Lower the learning rate (--set train.optimizer.lr=...) and start over: delete {self.store.resume_path(STAGE).parent}."

    def _check(self, before: Checkpoint) -> None:
        """Refuse a resume that would not go on with what was begun."""
        path = self.store.resume_path(STAGE)
        over = f"start over: delete {path.parent}"
        refuse_drift(before.config, self.config, str(path), over)
        if before.state["corpus_sha256"] != self.text.sha256:
            raise DormouseError(f"resume refused: {path} was trained on another text than --data {self.config.train.data} holds now "
                                f"(other files, or another Python). Restore the text, or {over}.")
        if before.state["step"] > self.config.train.steps:
            raise DormouseError(f"resume refused: {path} stands at step {before.state['step']}, past train.steps = "
                                f"{self.config.train.steps}. Raise --steps, or {over}.")
        if before.state["code_version"] != code_version():
            self.ledger.loud(f"train: {path} was begun by another version of the code; the run goes on, and its bits may differ from "
                             "those of a run under one version")
            self.ledger.count("resumed_under_other_code")

    def _checkpoint(self, moments: dict[str, torch.Tensor], facts: dict[str, Any]) -> Checkpoint:
        state = {"stage": STAGE, "step": self.step, "curve": self.curve, "corpus_sha256": self.text.sha256,
                 "lfb_version": self.policy.lfb_version, **({"masked_steps": self.masked} if self.masked else {})}
        if moments:
            state["code_version"] = code_version()
        return Checkpoint(self.config, dict(self.policy.state_dict()), moments, state | facts)

    def _provenance(self) -> Provenance:
        return Provenance(kind=Kind.CHECKPOINT, stage=STAGE, config_sha256=self.config.sha256(), code_version=code_version(),
                          seed=self.config.runtime.seed, counters=self.ledger.counters(), run_id=self.run_id)


def _batches(window_WL: np.ndarray, parts: int) -> list[TextBatch]:
    """Windows as micro-batches whose weights sum to 1: every byte but the first of a row is a target."""
    target_L = np.ones(window_WL.shape[1], dtype=bool)
    target_L[0] = False
    rows = list(window_WL.astype(np.uint8))
    return text_batch(rows, [target_L] * len(rows), [np.zeros_like(target_L)] * len(rows), 0.0, parts)


def _announce(config: RunConfig, ledger: Ledger) -> None:
    """Say which arms are off, and which depth arm is on."""
    depth.announce(config.policy, "train", ledger)
    if config.policy.lfb_step == 0:
        ledger.loud("train: expert balancing is off (policy.lfb_step = 0)")
    if config.policy.deep_loss == 0:
        ledger.loud("train: the per-iteration readout loss is off (policy.deep_loss = 0)")
