"""Depth arms side by side: the same text, bytes and seeds under each, against the loop at fixed depths.

    python -m benchmarks.depth [--preset nano] [--seeds 3] [--first-seed 1] [--steps 60] [--iterations 4] [--arms fixed,skip]
                                [--set train.batch=16 ...]

About 8 CPU-minutes. The preset's shape with --iterations, pre-trained on the standard library, every arm computed by torch (the compiled
calls know the fixed loop alone, and its times would not be comparable). Columns: held-out bits a byte; iterations a held-out byte ran
(a part run counts as that part); share of bytes read out from each iteration; CPU-seconds of training; decoded bytes a CPU-second
in 128 lanes. The last table is the difference to the fixed loop of --iterations, seed by seed: worse or better where it is on every
seed (by chance one in 2^n each), else a tie.
"""

import argparse
import statistics
import time

import torch

from benchmarks import short_train
from dormouse_core.config.resolve import resolve
from dormouse_core.config.run import RunConfig
from dormouse_core.learning import corpus
from dormouse_core.learning.corpus import Corpus
from dormouse_core.ledger import Ledger
from dormouse_core.policy.control import ControlPlane
from dormouse_core.policy.model import Policy

LANES, DECODED = 128, 64
CONTROL = "fixed"


def arms(iterations: int) -> dict[str, list[str]]:
    """Name -> settings."""
    return {CONTROL: [], "fixed-half": [f"policy.max_iter={max(iterations // 2, 1)}"], "fixed-one": ["policy.max_iter=1"],
            "random": ["policy.depth=random"], "mor": ["policy.depth=mor", f"policy.depth.slots={iterations // 2}"],
            "skip": ["policy.depth=skip"], "q_stop": ["policy.depth=q_stop"], "ponder": ["policy.depth=ponder"]}


def decode_rate(policy: Policy, text: Corpus, config: RunConfig) -> float:
    """Bytes a CPU-second of decoding held-out text in LANES lanes, after as many bytes of warm-up."""
    window_WL = corpus.fixed_windows(text.heldout_M, LANES, 2 * DECODED, "held-out")
    ids_BL, state = torch.from_numpy(window_WL.astype("int64")), policy.initial_state(LANES)
    for j in range(2 * DECODED):
        if j == DECODED:
            began = time.process_time()
        policy.decode(ids_BL[:, j], state)
    return LANES * DECODED / (time.process_time() - began)


def row(name: str, policy: Policy, config: RunConfig, text: Corpus, seconds: float) -> float:
    """Measure and print one line; the held-out bits a byte."""
    scored = short_train.score(policy, config, text)
    n_bytes, most = scored.report.get("depth_bytes_sum", 1.0), config.policy.max_iter
    run = [scored.report.get(f"depth_run{n}_sum", n_bytes) / n_bytes for n in range(1, most + 1)]
    read = [scored.report.get(f"depth_read{n}_sum", n_bytes / most) / n_bytes for n in range(1, most + 1)]
    shares = " ".join(f"{share:.2f}" for share in read)
    rate = decode_rate(policy, text, config) / 1e3
    print(f"{name:16s} {config.runtime.seed:4d} {scored.bits:7.4f} {sum(run):10.2f} {seconds:8.1f} {rate:8.1f}  {shares}", flush=True)
    return scored.bits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--arms", default="", help="only these, comma separated")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text, wanted = corpus.load("stdlib", Ledger()), [a.strip() for a in options.arms.split(",") if a.strip()]
    chosen = {name: sets for name, sets in arms(options.iterations).items() if not wanted or name in wanted}
    bits: dict[str, list[float]] = {}
    print(f"{'arm':16s} {'seed':>4s} {'bits':>7s} {'iterations':>10s} {'train s':>8s} {'kB/CPU-s':>8s}  read out from")
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name, sets in chosen.items():
            base = ["policy.compute=torch", f"policy.max_iter={options.iterations}", f"train.steps={options.steps}",
                    f"runtime.seed={seed}"]  # fmt: skip
            config = resolve(options.preset, [*base, *sets, *options.sets])
            policy, seconds = short_train.train(config, text)
            bits.setdefault(name, []).append(row(name, policy, config, text, seconds))
            if name == "random":
                for depth in range(1, options.iterations + 1):
                    ControlPlane(policy).set(torch.tensor([float(depth)]))
                    row(f"  at depth {depth}", policy, config, text, 0.0)
    if CONTROL not in bits:
        return
    control = bits[CONTROL]
    train = config.train
    print(f"\nagainst {CONTROL} of {options.iterations} iterations, bits a held-out byte after {train.steps} steps of {train.batch} x "
          f"{train.seq_len} bytes ({train.steps * train.batch * train.seq_len:,}: an early reading)")
    for name, own in bits.items():
        if name == CONTROL:
            continue
        gaps = [a - b for a, b in zip(own, control, strict=True)]
        verdict = "better" if max(gaps) < 0 else "worse" if min(gaps) > 0 else "tie"
        print(f"{name:16s} {statistics.mean(gaps):+.4f} bits  ({' '.join(f'{g:+.4f}' for g in gaps)})  {verdict}")
    print(f"{time.process_time():.0f} CPU-seconds in all")


if __name__ == "__main__":
    main()
