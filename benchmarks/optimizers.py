"""Muon+ against AdamW, and against itself without retraction, for nano's SFT base at equal CPU-seconds.

    python -m benchmarks.optimizers [--seconds 15] [--seeds 11,12,13,14,15]      about 7 CPU-minutes

Every seed pretrains a base of its own with the preset's AdamW, then each arm trains SFT on the same rows in the same order, for
as many steps as fit the CPU-seconds given (its own cost of a step, measured first, interleaved with the other arms'), its cosine
ending at its own last step. Score: held-out loss in nats a target byte. Three settings of AdamW and of Muon+ are tried on one seed
that is not used again; the best of each meet on fresh seeds. Seeds differ in rows and base by more than arms do, so arms are compared
seed by seed: an arm wins where it is lower on every seed, is refuted where it is higher on every one (by chance one in 2^n each), and
ties in between.
"""

import argparse
import itertools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.store import Store
from dormouse_core.config.resolve import resolve, resolve_from
from dormouse_core.config.run import RunConfig
from dormouse_core.config.suite import load_suite
from dormouse_core.learning import pretrain
from dormouse_core.learning.batches import epoch_order
from dormouse_core.learning.demonstrations import build_rows
from dormouse_core.learning.rows import Rows, heldout_side, rendered
from dormouse_core.learning.sft import held_batches, text_works, within
from dormouse_core.learning.update import Fuse, score_text, update
from dormouse_core.ledger import Ledger
from dormouse_core.optim.balance import balance
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.model import load_policy
from dormouse_core.rollouts.workers import WorkerPool

MUON = ("experts", "factors", "query_key", "memory_key")
TRIED = {
    "adamw": {f"lr={lr:g}": [f"lr={lr}"] for lr in (1e-3, 2e-3, 4e-3)},
    "muon+": {f"relative_step={rho:g}": [item for name in MUON for item in (f"{name}=muon", f"{name}.relative_step={rho}")]
              for rho in (3e-3, 1e-2, 3e-2)},
}  # fmt: skip
"""Arm -> setting -> overrides of sft.optimizer. Muon+ keeps nano's AdamW rows for everything it does not train."""
FREE, NEVER = "muon+ unretracted", "retract_every=0"


@dataclass(frozen=True)
class Course:
    """What both arms of a seed share."""

    config: RunConfig
    base: Checkpoint
    train: Rows
    held: Rows


def course(seed: int, quick: bool) -> Course:
    """A base and the rows of a seed."""
    small = ["train.steps=2", "sft.rows_per_pool=40"] if quick else []
    config, ledger = resolve("nano", [f"runtime.seed={seed}", "roll.workers=1", *small]), Ledger()
    with tempfile.TemporaryDirectory() as root:
        store = Store(Path(root))
        base = store.read_checkpoint(pretrain.run(config, store=store, ledger=ledger))
    rows = rendered([row.segments for row in build_rows(config, load_suite(config.loop.suite), seed)])
    rows = rows.pick(within(rows, config, ledger))
    heldout_N = heldout_side(rows, config.sft.heldout_share)
    return Course(config, base, rows.pick(np.flatnonzero(~heldout_N)), rows.pick(np.flatnonzero(heldout_N)))


class Run:
    """SFT of one arm from the base of a course, stopped after any step."""

    def __init__(self, course: Course, sets: list[str], steps: int) -> None:
        self.course, self.config, self.ledger = course, resolve_from(course.config, [f"sft.optimizer.{s}" for s in sets]), Ledger()
        self.policy = load_policy(course.base, self.config.policy, "the base")
        self.optimizer = build_optimizer(self.policy, self.config.sft.optimizer, steps, self.config.runtime.seed)
        self.pool, self.fuse, self.done, self.cpu = WorkerPool(1, 1), Fuse("sft", self.ledger), 0, 0.0
        self.pool.set_weights(self.policy)

    def step(self) -> None:
        """One update, as the SFT stage makes it; its CPU-seconds are added up."""
        rows, sft = self.course.train, self.config.sft
        epoch, at = divmod(self.done, -(-len(rows) // sft.batch))
        order = epoch_order(rows.lengths(), sft.batch, self.config.runtime.seed, epoch)
        works = text_works(rows.pick(order[at]), self.config)
        began = time.process_time()
        self.fuse.check(update(self.policy, self.optimizer, self.pool, works), f"step {self.done}")
        balance(self.policy, self.config.policy.lfb_step)
        self.cpu += time.process_time() - began
        self.done += 1

    def heldout(self) -> float:
        return float(sum(self.pool.map(score_text, held_batches(self.course.held))))


def cost(course: Course, settings: dict[str, list[str]], steps: int) -> dict[str, float]:
    """CPU-seconds of a step of each arm, steps interleaved; the first two are not counted."""
    runs = {arm: Run(course, sets, steps + 2) for arm, sets in settings.items()}
    for step, (_, run) in itertools.product(range(steps + 2), runs.items()):
        run.step()
        if step == 1:
            run.cpu = 0.0
    return {arm: run.cpu / steps for arm, run in runs.items()}


def trained(course: Course, sets: list[str], steps: int) -> Run:
    run = Run(course, sets, steps)
    while run.done < steps:
        run.step()
    return run


def compared(name: str, losses: list[float], against: str, others: list[float]) -> str:
    """One line: an arm against another, seed by seed."""
    gaps = [a - b for a, b in zip(losses, others, strict=True)]
    verdict = "win" if max(gaps) < 0 else "refuted" if min(gaps) > 0 else "tie"
    return (f"{name} minus {against}, seed by seed: {', '.join(f'{g:+.4f}' for g in gaps)}; mean {np.mean(gaps):+.4f} nats a byte "
            f"(ratio of means {np.mean(losses) / np.mean(others):.3f}): {verdict}")


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--seconds", type=float, default=15.0, help="CPU-seconds of one run")
    parse.add_argument("--seeds", default="11,12,13,14,15")
    parse.add_argument("--trial-seed", type=int, default=100)
    parse.add_argument("--quick", action="store_true", help="a smoke of the benchmark itself: its numbers say nothing")
    asked = parse.parse_args()
    trial = course(asked.trial_seed, asked.quick)
    first = {arm: next(iter(settings.values())) for arm, settings in TRIED.items()}
    price = cost(trial, first | {FREE: [*first["muon+"], NEVER]}, 3 if asked.quick else 15)
    steps = {arm: max(1, round(asked.seconds / seconds)) for arm, seconds in price.items()}
    print(f"a step costs {price['adamw'] * 1e3:.1f} ms of CPU under AdamW, {price['muon+'] * 1e3:.1f} under Muon+ "
          f"(ratio {price['muon+'] / price['adamw']:.2f}), {price[FREE] * 1e3:.1f} without retraction; {asked.seconds:g} CPU-seconds are "
          f"{steps['adamw']}, {steps['muon+']} and {steps[FREE]} steps")
    best = {}
    for arm, settings in TRIED.items():
        scored = {name: trained(trial, sets, steps[arm]).heldout() for name, sets in settings.items()}
        best[arm] = min(scored, key=lambda name: scored[name])
        print(f"trial seed {asked.trial_seed} {arm}: " + "  ".join(f"{name} {loss:.4f}" for name, loss in scored.items()))
    chosen = {arm: TRIED[arm][best[arm]] for arm in TRIED} | {FREE: [*TRIED["muon+"][best["muon+"]], NEVER]}
    losses: dict[str, list[float]] = {arm: [] for arm in chosen}
    for seed in map(int, asked.seeds.split(",")):
        met = course(seed, asked.quick)
        for arm, sets in chosen.items():
            run = trained(met, sets, steps[arm])
            losses[arm].append(run.heldout())
            print(f"seed {seed} {arm} {best.get(arm, best['muon+'])}: held-out {losses[arm][-1]:.4f} nats a byte after {run.done} steps, "
                  f"{run.cpu:.1f} CPU-s, worst orthonormality {run.optimizer.orthonormality().error:.1e}", flush=True)
    print(compared("Muon+", losses["muon+"], "AdamW", losses["adamw"]))
    print(compared("Muon+ without retraction", losses[FREE], "Muon+", losses["muon+"]))
    print(f"{time.process_time():.0f} CPU-seconds in all")


if __name__ == "__main__":
    main()
