"""What baited episodes cost: the CPU seconds of rolling a round with them over those of rolling it without.

    python -m benchmarks.honeypots [--preset nano] [--share 0.02] [--rounds 20]

Both ways are timed on the same rounds, in turns that alternate, in one process. The policy is untrained: it writes its whole budget, so
no episode is short. The ratio is of the medians.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from dormouse_core.artifacts.store import Store
from dormouse_core.config.resolve import resolve
from dormouse_core.evolution.curriculum import suite_source
from dormouse_core.ledger import Ledger
from dormouse_core.policy.model import build_policy
from dormouse_core.rollouts import honeypots
from dormouse_core.rollouts.request import Origin
from dormouse_core.rollouts.stage import roll_round
from dormouse_core.rollouts.workers import WorkerPool

WAYS = ("without", "with")


def measure(preset: str, share: float, rounds: int) -> dict[str, list[float]]:
    """Way -> CPU seconds of each round but the first of both, which warms up."""
    config = resolve(preset, ["roll.workers=1", f"honeypots.share={share}"])
    policy, source = build_policy(config.policy, 1), suite_source(config, "bench")
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder, WorkerPool(1, config.runtime.threads) as pool:
        for k in range(rounds + 1):
            tasks = source.draw(k, config.roll.prompts)
            for way in WAYS if k % 2 else WAYS[::-1]:
                laid = honeypots.lay(tasks, config, Origin(way, k, "0" * 64, 1), Ledger()) if way == "with" else []
                began = time.process_time()
                roll_round(policy, tasks, config, cycle=way, round=k, policy_identity="0" * 64, pool=pool, store=Store(Path(folder)),
                           ledger=Ledger(), baits=laid)
                spent[way].append(time.process_time() - began)
    return {way: seconds[1:] for way, seconds in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--share", type=float, default=0.02)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    spent = measure(asked.preset, asked.share, asked.rounds)
    without, with_ = (median(spent[way]) for way in WAYS)
    print(f"{asked.preset}, {asked.rounds} rounds: {without:.3f} CPU seconds a round, {with_:.3f} with {asked.share:.0%} baited episodes")
    print(f"ratio {with_ / without:.3f}")


if __name__ == "__main__":
    main()
