"""Adam and AdamW (1412.6980, 1711.05101) by torch's fused kernel, on whole tensors or on some of their rows.

The kernel is called directly: constructing `torch.optim.AdamW` imports torch._dynamo, which costs a process more CPU than a
hundred small updates, and gives the same bits. Rows that are left out rest: neither weight nor moments move. The step count
of a tensor is shared by its rows, as in torch.optim.SparseAdam.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dormouse_core.optim.precision import ALL, Index, Slot

EPS = 1e-8
STATE = ("step", "exp_avg", "exp_avg_sq")


def adam_step(slots: Sequence[tuple[Slot, Index]], lr: float, betas: tuple[float, float], weight_decay: float, step: int) -> None:
    """One step of every slot on the entries given, with the gradients they hold. `step` numbers the optimizer's steps (noise)."""
    if not slots:
        return
    weights, moments = [], []
    for slot, index in slots:
        if not slot.state.keys() >= set(STATE):
            like = torch.zeros_like(slot.parameter, dtype=torch.float32, memory_format=torch.preserve_format)
            slot.state |= {"step": torch.zeros((), device=like.device), "exp_avg": like, "exp_avg_sq": like.clone()}
        weights.append(slot.read(index))
        moments.append([_entries(slot, slot.state[name], index) for name in STATE[1:]])
    counts = [slot.state["step"] for slot, _ in slots]
    torch._foreach_add_(counts, 1)
    torch._fused_adamw_(
        weights, [_entries(slot, slot.grad, index).float() for slot, index in slots], [m for m, _ in moments], [v for _, v in moments],
        [], counts, amsgrad=False, lr=lr, beta1=betas[0], beta2=betas[1], weight_decay=weight_decay, eps=EPS, maximize=False,
        grad_scale=None, found_inf=None,
    )  # fmt: skip
    for (slot, index), weight, rows in zip(slots, weights, moments, strict=True):
        slot.write(index, weight, step)
        if not isinstance(index, slice):
            for name, row in zip(STATE[1:], rows, strict=True):
                slot.state[name].view(slot.shape).index_copy_(0, index, row)


def _entries(slot: Slot, t: Tensor, index: Index) -> Tensor:
    stack = t.view(slot.shape)
    return stack if index is ALL else stack[index] if isinstance(index, slice) else stack.index_select(0, index)
