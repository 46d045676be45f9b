"""Bytes a CPU-second of the policy: decoding at several lane counts and training, beside this machine's own GEMM rate.

    python benchmarks/policy.py [--preset nano] [--repeats 30]

One thread. Each number is the best of the repeats, in CPU time of the thread, so a busy neighbour disturbs it least. The
share column is multiply-adds done a second over those of a [512, 512] fp32 product measured in the same minute.
"""

import argparse
import time
from collections.abc import Callable

import torch

from dormouse_core.config.resolve import resolve
from dormouse_core.policy.counts import parameter_counts
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.policy.model import Policy, build_policy

BACKWARD = 3  # a forward and its backward do three times the products of a forward


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    for _ in range(3):
        work()
    seconds = []
    for _ in range(repeats):
        start = time.thread_time()
        work()
        seconds.append(time.thread_time() - start)
    return min(seconds)


def peak_madds(repeats: int) -> float:
    """Multiply-adds a second of a square product that fits the cache."""
    a = torch.randn(512, 512)
    return 512**3 / best_seconds(lambda: a @ a, repeats)


def training_step(policy: Policy, ids_BL: torch.Tensor) -> None:
    """One forward and backward of the loss SFT and RL share."""
    log_probs = action_log_probs(policy(ids_BL).logits_BLV)[:, :-1]
    loss = -log_probs.gather(-1, ids_BL[:, 1:, None]).mean()
    torch.autograd.backward(loss, inputs=[p for p in policy.parameters() if p.requires_grad])
    policy.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    config = resolve(options.preset).policy
    policy, counts = build_policy(config, 1), parameter_counts(config)
    peak = peak_madds(options.repeats)
    print(f"preset {options.preset}: {counts.total:,} parameters, {counts.active:,} active, {counts.madds_per_byte:,} multiply-adds a byte")
    print(f"GEMM peak of this thread: {2 * peak / 1e9:.0f} GFLOP/s")
    print(f"{'what':28s} {'ms':>8s} {'kB/CPU-s':>9s} {'of peak':>8s}")

    def row(what: str, n_bytes: int, seconds: float, factor: int) -> None:
        share = n_bytes * counts.madds_per_byte * factor / seconds / peak
        print(f"{what:28s} {seconds * 1e3:8.2f} {n_bytes / seconds / 1e3:9.1f} {share:8.1%}")

    for lanes in (1, 64, 128):
        state, ids_B = policy.initial_state(lanes), torch.randint(32, 127, (lanes,))
        row(f"decode, {lanes} lanes", lanes, best_seconds(lambda i=ids_B, s=state: policy.decode(i, s), 5 * options.repeats), 1)
    for batch in (16, 32, 128):
        ids_BL = torch.randint(32, 127, (batch, 100))
        with torch.no_grad():
            row(f"score, {batch} x 100", batch * 100, best_seconds(lambda i=ids_BL: policy(i), options.repeats), 1)
        row(f"train, {batch} x 100", batch * 100, best_seconds(lambda i=ids_BL: training_step(policy, i), options.repeats), BACKWARD)


if __name__ == "__main__":
    main()
