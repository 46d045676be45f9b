"""What each kernel reaches of the device's own ceiling: `python -m benchmarks.kernels [--preset b1] [--bytes 4096] [--lanes 64]`.

Ceilings are measured in the same minute: bandwidth from copying a large tensor, FLOP/s from a square fp32 product without TF32.
Bytes and operations of a row are counted from its shapes: every argument read once, every result written once, products only.
Tensors that stay in a cache between repeats can pass the copy's bandwidth: small presets do.
On a GPU the Triton form stands beside the torch form. Without one only the torch forms run, on the CPU, and the table says so:
the interpreter proves numbers, not speed.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.config.resolve import resolve
from dormouse_core.encoding import POLICY_MAY_WRITE, VOCABULARY
from dormouse_core.kernels import engram, experts, kda
from dormouse_core.kernels.dispatch import Op, run
from dormouse_core.kernels.seen import SEEN
from dormouse_core.rollouts.sampling import SAMPLE


class Case(NamedTuple):
    """An operation with arguments, and what they cost: bytes moved at least once, operations of its products."""

    op: Op
    args: tuple[Any, ...]
    flops: float
    n_bytes: float


def size(*tensors: Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The best of `repeats`, after three that do not count."""
    best = float("inf")
    for i in range(3 + repeats):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
            spent = start.elapsed_time(end) / 1e3
        else:
            began = time.thread_time()
            work()
            spent = time.thread_time() - began
        best = min(best, spent) if i >= 3 else best
    return best


def ceilings(device: torch.device, repeats: int) -> tuple[float, float]:
    """(bytes a second of a copy, reading and writing; fp32 operations a second of a square product)."""
    large = torch.ones(2**28 if device.type == "cuda" else 2**25, device=device)
    other, side = torch.empty_like(large), 4096 if device.type == "cuda" else 768
    a = torch.ones(side, side, device=device)
    torch.backends.cuda.matmul.allow_tf32 = False
    return (2 * size(large) / seconds(lambda: other.copy_(large), device, repeats),
            2 * side**3 / seconds(lambda: a @ a, device, repeats))


def kda_cases(c: PolicyConfig, n_bytes: int, lanes: int, make: Callable[..., Tensor]) -> Iterator[Case]:
    h, w, chunk = c.n_heads, c.head_dim, c.chunk
    qk, v, state = torch.nn.functional.normalize(make(lanes, h, 2, w), dim=-1), make(lanes, h, w), make(lanes, h, w, w)
    alpha, beta = make(lanes, h, w).sigmoid(), make(lanes, h, 1).sigmoid()
    yield Case(kda.STEP, (qk, v, alpha, beta, state), 7.0 * state.numel(), 2 * size(state) + size(qk, v, alpha, beta, v))
    sequences = max(1, n_bytes // 512)
    groups, rows = n_bytes // sequences // chunk, sequences * h
    x, entry, small = make(groups, rows, chunk, w), make(groups + 1, rows, w, w), make(groups, rows, chunk).sigmoid()
    unit, cells = torch.nn.functional.normalize(x, dim=-1), groups * rows
    window = (unit, unit, x, x.sigmoid(), small)
    forward = cells * (10.0 * chunk**2 * w + 6.0 * chunk * w * w)
    backward = cells * (26.0 * chunk**2 * w + 14.0 * chunk * w * w + 4.0 * chunk**3)
    yield Case(kda.FORWARD, (*window, entry[0], -5.0), forward, size(*window, x, entry))
    yield Case(kda.BACKWARD, (*window, entry, x, entry[0], -5.0), backward, 2 * size(*window) + size(entry, x))


def expert_cases(c: PolicyConfig, n: int, make: Callable[..., Tensor], what: str) -> Iterator[Case]:
    e, d, f, r, k = c.n_experts, c.d_model, c.d_ffn, c.rank, c.moe_topk
    p = experts.plan(make(n, e).topk(k).indices, e)
    live = int((p.start_E.diff() > 0).sum()) / e
    x, outer, up, down, code = make(n, d), make(e, d, r), make(e, f, r), make(e, f, r), make(n * k, r)
    wide, inner = 2.0 * n * k * d * r, 4.0 * n * k * f * r
    yield Case(experts.GROUPED_IN, (x, p.row_A, outer, p.start_E, p.tiles_E), wide, live * size(outer) + size(x, code))
    yield Case(experts.INNER, (code, up, down, p.start_E, p.tiles_E), inner, live * size(up, down) + 2 * size(code))
    yield Case(experts.GROUPED_OUT, (code, outer, p.start_E, p.tiles_E), wide, live * size(outer) + size(code) + k * size(x))
    if what == "train":
        yield Case(experts.GROUPED_WEIGHT, (x, p.row_A, code, p.start_E, outer.dtype), wide, size(x, code, outer))
        moved = live * size(up, down) + size(up, down, code, code, code)
        yield Case(experts.INNER_BACKWARD, (code, up, down, code, p.start_E, p.tiles_E), 2.5 * inner, moved)


def table_cases(c: PolicyConfig, n: int, lanes: int, make: Callable[..., Tensor], device: torch.device) -> Iterator[Case]:
    n_rows = 3 * c.engram_rows
    words, table = (make(n, 3).sigmoid() * n_rows).long().clamp_max(n_rows - 1), make(n_rows, c.engram_dim)
    read = make(n, 3 * c.engram_dim)
    yield Case(engram.GATHER, (words, table), 0.0, size(words) + 2 * size(read))
    yield Case(engram.SCATTER, (words, read, n_rows), 0.0, size(words, read, table))
    names = [torch.arange(lanes, device=device) for _ in range(3)]
    settings = (torch.from_numpy(POLICY_MAY_WRITE).to(device), torch.ones(lanes, dtype=torch.float64, device=device))
    logits = make(lanes, VOCABULARY)
    yield Case(SAMPLE, (logits, *settings, *names, torch.full_like(names[0], -1)), 0.0, size(logits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--preset", default="b1" if on_gpu else "nano")
    parser.add_argument("--bytes", type=int, default=4096, help="bytes of a training window")
    parser.add_argument("--lanes", type=int, default=64, help="sequences decoded together")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device, c = torch.device("cuda" if on_gpu else "cpu"), resolve(options.preset).policy
    rng = torch.Generator(device=device).manual_seed(1)

    def make(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, device=device)

    bandwidth, peak = ceilings(device, options.repeats)
    print(f"{torch.cuda.get_device_name() if on_gpu else 'CPU, one thread'}: copy {bandwidth / 1e9:.0f} GB/s, "
          f"fp32 product {peak / 1e9:.0f} GFLOP/s")
    if not on_gpu:
        print("no GPU: the torch forms on the CPU. Nothing here says how fast a Triton kernel is.")
    print(f"preset {options.preset}, {options.bytes} bytes a window, {options.lanes} lanes\n"
          f"{'operation':26s} {'form':6s} {'ms':>9s} {'GB/s':>7s} {'of copy':>8s} {'GFLOP/s':>9s} {'of peak':>8s} {'torch/kernel':>13s}")
    cases = [*kda_cases(c, options.bytes, options.lanes, make), *expert_cases(c, options.bytes, make, "train"),
             *expert_cases(c, options.lanes, make, "decode"), *table_cases(c, options.bytes, options.lanes, make, device)]
    for op, args, flops, n_bytes in cases:
        plain = seconds(lambda op=op, args=args: op.reference(*args), device, options.repeats)
        forms = {"torch": plain}
        if on_gpu:
            forms["triton"] = seconds(lambda op=op, args=args: run(op, *args), device, options.repeats)
        for form, spent in forms.items():
            ratio = f"{plain / spent:12.2f}x" if form == "triton" else ""
            print(f"{op.name:26s} {form:6s} {spent * 1e3:9.3f} {n_bytes / spent / 1e9:7.1f} {n_bytes / spent / bandwidth:8.1%} "
                  f"{flops / spent / 1e9:9.1f} {flops / spent / peak:8.1%} {ratio:>13s}")
    for line in (*(f"ran/asked {name}: {ran}" for name, ran in SEEN.arms().items()), *SEEN.lines):
        print(line)


if __name__ == "__main__":
    main()
