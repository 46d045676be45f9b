"""What the rank of the readout costs a small policy: nano's shape at several `readout_rank`, the same text, bytes and seeds.

    python -m benchmarks.readout_rank [--seeds 2] [--steps 150] [--ranks 8 48 128]

Every logit passes the readout, so at rank r the next byte is chosen from r numbers. Prints held-out bits a byte after pre-training
on the standard library, and the mean difference to the largest rank over the seeds.
"""

import argparse
import statistics

import torch

from benchmarks import short_train
from dormouse_core.config.resolve import resolve
from dormouse_core.learning import corpus
from dormouse_core.ledger import Ledger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 48, 128])
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = corpus.load("stdlib", Ledger())
    bits: dict[int, list[float]] = {rank: [] for rank in options.ranks}
    print(f"{'rank':>5s} {'seed':>4s} {'bits a byte':>11s} {'train CPU-s':>11s}")
    for seed in range(1, options.seeds + 1):
        for rank in options.ranks:
            config = resolve("nano", [f"policy.readout_rank={rank}", f"train.steps={options.steps}", f"runtime.seed={seed}"])
            policy, seconds = short_train.train(config, text)
            bits[rank].append(short_train.score(policy, config, text).bits)
            print(f"{rank:5d} {seed:4d} {bits[rank][-1]:11.3f} {seconds:11.1f}", flush=True)
    best = bits[max(options.ranks)]
    for rank, own in bits.items():
        gap = statistics.mean(a - b for a, b in zip(own, best, strict=True))
        print(f"rank {rank}: {gap:+.3f} bits a byte against rank {max(options.ranks)} (mean of {len(own)} seeds)")


if __name__ == "__main__":
    main()
