"""The policy beside `transformers` on this machine: sampling, training, forks, share of the machine's peak, growth with length.

    pip install -c constraints.txt -e . 'transformers==5.24.0'      # in an environment of its own: the peer is in extra `peers`
    python -m benchmarks.policy [--preset nano --preset small] [--repeats 5] [--only sampling --only training ...]

One thread, one process. Ours and the peer's work alternate, and each number is the best of the repeats in CPU-seconds of the process
(wall beside it), so a busy neighbour disturbs it least. The peer (benchmarks/peer.py) is a byte Llama of random weights with the same
multiply-adds a byte, attention at the mean context included; the ratio at equal active parameters stands beside it. A bound is judged
on each preset, of native computing (policy.compute) where both ways are printed: HOLDS or FALLS SHORT.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from benchmarks import peer
from dormouse_core.config.optimizer import OptimizerConfig
from dormouse_core.config.policy import PolicyConfig
from dormouse_core.config.resolve import resolve
from dormouse_core.kernels.dispatch import SEEN
from dormouse_core.optim.groups import Optimizer, build_optimizer
from dormouse_core.policy.counts import parameter_counts
from dormouse_core.policy.heads import action_log_probs
from dormouse_core.policy.model import Policy, build_policy
from dormouse_core.rollouts.deviation import NOTHING
from dormouse_core.rollouts.native_draw import sampler

PROMPT, NEW = 32, 64
BACKWARD = 3  # a forward and its backward do three times the products of a forward
PARTS = ("training", "peak", "fork", "sampling", "length")
WAYS = ("torch", "native")
JUDGED = "native"
"""The way a bound is asked of: what preset nano computes by on a CPU. The other stands beside it."""


@dataclass
class Cost:
    """CPU-seconds and wall of the best repeat."""

    cpu: float = math.inf
    wall: float = math.inf

    def take(self, work: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        cpu = time.process_time() - cpu
        if cpu < self.cpu:
            self.cpu, self.wall = cpu, time.perf_counter() - wall


def measure(works: Sequence[Callable[[], object]], repeats: int, seconds: float = 20.0) -> list[Cost]:
    """Costs of works that take turns, after one unmeasured turn each; at most about `seconds` for all of them."""
    costs, deadline = [Cost() for _ in works], time.process_time() + seconds
    for work in works:
        work()
    for turn in range(repeats):
        if turn and time.process_time() > deadline:
            break
        for cost, work in zip(costs, works, strict=True):
            cost.take(work)
    return costs


@dataclass
class Report:
    """Lines of one preset, and how its bounds came out."""

    verdicts: list[str] = field(default_factory=list)

    def line(self, what: str, ours: str, theirs: str = "", ratio: str = "", bound: str = "", holds: bool | None = None) -> None:
        verdict = "" if holds is None else "HOLDS" if holds else "FALLS SHORT"
        if verdict:
            self.verdicts.append(verdict)
        print(f"  {what:46s} {ours:>23s} {theirs:>23s} {ratio:>8s} {bound:>8s}  {verdict}", flush=True)

    def ratio(self, what: str, amount: float, ours: Cost, theirs: Cost, bound: float | None) -> None:
        ratio = theirs.cpu / ours.cpu
        limit, holds = ("", None) if bound is None else (f">= {bound:g}", ratio >= bound)
        self.line(what, rate(amount, ours), rate(amount, theirs), f"{ratio:.2f}x", limit, holds)


def limit(how: str, bound: str, holds: bool) -> tuple[str, bool | None]:
    """What `Report.line` says of a bound: nothing where it is not asked of this way to compute."""
    return (bound, holds) if how == JUDGED else ("", None)


def rate(amount: float, cost: Cost) -> str:
    return f"{amount / cost.cpu:,.0f} ({amount / cost.wall:,.0f})"


def peak_madds(repeats: int, dtype: torch.dtype = torch.float32) -> float:
    """Multiply-adds a CPU-second of the better of two square products."""
    squares = [torch.randn(n, n).to(dtype) for n in (512, 1024)]
    costs = measure([lambda a=a: [a @ a for _ in range(4)] for a in squares], 4 * repeats)
    return max(4 * len(a) ** 3 / c.cpu for a, c in zip(squares, costs, strict=True))


def some_bytes(*shape: int) -> Tensor:
    return torch.randint(32, 127, shape, generator=torch.Generator().manual_seed(0))


def sample(policy: Policy, prompt_BL: Tensor, new: int) -> None:
    """`new` bytes a row by the calls the rollout engine makes: prefill, distribution, seeded draw with log-prob and entropy, decode."""
    take = sampler(policy)
    with torch.no_grad():
        out = policy.eval()(prompt_BL)
        logits_BV, state, rows = out.logits_BLV[:, -1], out.state, len(prompt_BL)
        one, seed, step, avoid = np.ones(rows), np.arange(rows), np.zeros(rows, dtype=np.int64), np.full(rows, NOTHING)
        for j in range(new):
            drawn = take(logits_BV, one, seed, step, np.full(rows, j), avoid)
            if j + 1 < new:
                logits_BV, _ = policy.decode(torch.from_numpy(drawn.byte_X.astype(np.int64)), state)


def train_step(policy: Policy, optimizer: Optimizer, ids_BL: Tensor) -> None:
    """Next-byte loss on the action distribution, backward, clip, AdamW."""
    log_probs_BLV = action_log_probs(policy.train()(ids_BL).logits_BLV)[:, :-1]
    loss = -log_probs_BLV.gather(-1, ids_BL[:, 1:, None]).mean()
    torch.autograd.backward(loss, inputs=[p for p in policy.parameters() if p.requires_grad])
    optimizer.step()
    optimizer.zero_grad()


class Bench:
    """All measurements of one preset."""

    def __init__(self, preset: str, repeats: int) -> None:
        self.preset, self.repeats, self.report = preset, repeats, Report()
        self.config = resolve(preset).policy
        self.counts = parameter_counts(self.config)
        self.batch_BL = some_bytes(8 if self.counts.total < 2_000_000 else 4, 256)
        c = self.counts
        print(f"\npreset {preset}: {c.total:,} parameters, {c.active:,} active a byte, {c.madds_per_byte:,} multiply-adds a byte")
        print(f"  {'what; in brackets the same by wall':46s} {'ours':>23s} {'transformers':>23s} {'ratio':>8s} {'bound':>8s}")

    def policy(self, **changes: str) -> Policy:
        return build_policy(PolicyConfig.model_validate(self.config.model_dump() | changes), 1)

    def sampling(self) -> None:
        context = PROMPT + NEW / 2
        same, active = (peer.sized(self.config, madds=self.counts.madds_per_byte, context=context),
                        peer.sized(self.config, parameters=self.counts.active))
        print(f"  peers: {same} = {same.madds(context):,.0f} multiply-adds; {active} = {active.parameters():,} parameters")
        llama, small = peer.build(same), peer.build(active)
        for batch, bound in ((64, 3.0), (1, 8.0)):
            prompt_BL = some_bytes(batch, PROMPT)
            ours = {how: self.policy(compute=how) for how in WAYS}
            works: list[Callable[[], object]] = [lambda p=p, x=prompt_BL: sample(p, x, NEW) for p in ours.values()]
            works += [lambda m=m, x=prompt_BL: peer.generate(m, x, NEW) for m in (llama, small)]
            *mine, same_cost, active_cost = measure(works, self.repeats)
            for how, cost in zip(ours, mine, strict=True):
                self.report.ratio(f"sampling, batch {batch}, compute={how}, bytes/s", batch * NEW, cost, same_cost,
                                  bound if how == JUDGED else None)
                self.report.ratio("   at equal active parameters", batch * NEW, cost, active_cost, None)

    def training(self) -> None:
        ids_BL = self.batch_BL
        size = peer.sized(self.config, madds=self.counts.madds_per_byte, context=ids_BL.shape[1] / 2)
        print(f"  peer: {size}; {ids_BL.shape[0]} x {ids_BL.shape[1]} bytes a step, optimizer included")
        for dtype, ways, bound in (("float32", WAYS, 1.25), ("bfloat16", ("torch",), None)):
            theirs = peer.Trainer(peer.build(size, getattr(torch, dtype)))
            works: list[Callable[[], object]] = [self.train_work(dtype=dtype, compute=how) for how in ways]
            *mine, other = measure([*works, lambda t=theirs: t.step(ids_BL)], self.repeats)
            for how, cost in zip(ways, mine, strict=True):
                self.report.ratio(f"training, {dtype}, compute={how}, bytes/s", ids_BL.numel(), cost, other,
                                  bound if how == JUDGED else None)

    def train_work(self, **changes: str) -> Callable[[], object]:
        """A training step of a policy of its own."""
        policy = self.policy(**changes)
        optimizer = build_optimizer(policy, OptimizerConfig(), 1000)
        return lambda: train_step(policy, optimizer, self.batch_BL)

    def fork(self) -> None:
        policy, prefix_BL = self.policy(compute="native"), some_bytes(1, 1024)
        with torch.inference_mode():
            state = policy.eval()(prefix_BL).state
            pool, lanes = policy.initial_state(128), policy.initial_state(64)

            def copied() -> None:
                pool.copy_([77], state, [0])
                lanes.copy_([5], pool, [77])

            def as_bytes() -> None:
                lanes.copy_([5], policy.state_from_bytes([state.row_bytes(0)]), [0])

            def decoded() -> None:
                fresh = policy.initial_state(1)
                for j in range(128):  # an eighth of the prefix
                    policy.decode(prefix_BL[:, j], fresh)

            copy, blob = measure([lambda: [copied() for _ in range(50)], lambda: [as_bytes() for _ in range(50)]], self.repeats)
            window, bytewise = measure([lambda: policy(prefix_BL), decoded], self.repeats)
        cheapest = min(window.cpu, 8 * bytewise.cpu)
        for what, cost in (("copy into the pool and back", copy), ("through bytes", blob)):
            share = cost.cpu / 50 / cheapest
            self.report.line(f"fork, {what}, ms", f"{cost.cpu / 50 * 1e3:.3f}", "", f"{share:.2%}", "<= 1 %", share <= 0.01)
        self.report.line("   re-reading 1,024 bytes: one window, decoded; ms", f"{window.cpu * 1e3:.1f}, {8e3 * bytewise.cpu:.1f}")

    def peak(self) -> None:
        peak, amount = peak_madds(self.repeats), self.batch_BL.numel()
        steps = measure([self.train_work(compute=how) for how in WAYS], 2 * self.repeats)
        peak = max(peak, peak_madds(self.repeats))
        self.report.line("GEMM peak of this thread, fp32, GFLOP/s", f"{2 * peak / 1e9:.0f}")
        for how, cost in zip(WAYS, steps, strict=True):
            share = amount * self.counts.madds_per_byte * BACKWARD / cost.cpu / peak
            what = f"share of it in training, compute={how}"
            self.report.line(what, rate(amount, cost), "", f"{share:.1%}", *limit(how, ">= 50 %", share >= 0.5))
        for how in WAYS:
            decoder, ids_B = self.policy(compute=how), some_bytes(64)
            state = decoder.initial_state(64)
            (cost,) = measure([lambda d=decoder, s=state, i=ids_B: [d.decode(i, s) for _ in range(10)]], 4 * self.repeats)
            share = 640 * self.counts.madds_per_byte / cost.cpu / peak
            what = f"share of it in decoding 64 lanes, compute={how}"
            self.report.line(what, rate(640, cost), "", f"{share:.1%}", *limit(how, ">= 35 %", share >= 0.35))

    def length(self) -> None:
        policy, lengths = self.policy(compute="native").eval(), (256, 1024, 4096, 16384)
        text_BL = some_bytes(1, lengths[-1])
        with torch.no_grad():
            costs = measure([lambda n=n: policy(text_BL[:, :n]) for n in lengths], self.repeats, 40.0)
            each = [cost.cpu / n * 1e6 for cost, n in zip(costs, lengths, strict=True)]
            slope = float(np.polyfit(np.log(lengths), np.log([c.cpu for c in costs]), 1)[0])
            self.report.line(f"reading {', '.join(f'{n:,}' for n in lengths)} bytes", " ".join(f"{x:.1f}" for x in each), "us a byte")
            self.report.line("   exponent of cost in bytes (1 is linear)", f"{slope:.3f}", "", "", "<= 1.1", slope <= 1.1)
            for how in WAYS:
                decoder, ids_B = self.policy(compute=how), some_bytes(16)
                states = [decoder(text_BL[:, :n].expand(16, -1) if n == 256 else text_BL[:, :n]).state for n in (256, lengths[-1])]
                states[1] = states[1].select([0] * 16)
                works = [lambda d=decoder, s=s, i=ids_B: [d.decode(i, s) for _ in range(20)] for s in states]
                near, far = measure(works, 4 * self.repeats)
                ratio = far.cpu / near.cpu
                self.report.line(f"decoding 16 lanes behind 16,384 bytes / 256, {how}", f"{far.cpu / 20 * 1e3:.3f} ms",
                                 f"{near.cpu / 20 * 1e3:.3f} ms", f"{ratio:.2f}", "<= 1.1", ratio <= 1.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", action="append", help="repeatable; nano and small where none is named")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", action="append", choices=PARTS, help="repeatable; all where none is named")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    parts = options.only or list(PARTS)
    try:
        import transformers

        versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
        print(f"{versions}, 1 thread; best of {options.repeats}, rates a CPU-second")
    except ImportError:
        left_out = [part for part in parts if part in ("sampling", "training")]
        parts = [part for part in parts if part not in left_out]
        print(f"! transformers is not installed (extra `peers`, see --help): {' and '.join(left_out) or 'nothing'} NOT MEASURED.")
    verdicts = []
    for preset in options.preset or ["nano", "small"]:
        bench = Bench(preset, options.repeats)
        for part in parts:
            getattr(bench, part)()
        verdicts += bench.report.verdicts
    print(f"\n{verdicts.count('HOLDS')} bounds hold, {verdicts.count('FALLS SHORT')} fall short")
    for line in SEEN.lines:
        print(f"! {line}")


if __name__ == "__main__":
    main()
