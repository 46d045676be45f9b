"""The control plane: the few numbers that steer how deep the loop goes, as one flat vector with names and bounds.

It is what a gradient-free search (2511.16652) may move without touching what the policy knows. Groups:

    depth   the arm's scalar, where it has one (`random`: iterations; `skip`, `q_stop`: threshold), and its router [d + 1] (`mor`,
            `skip`, `ponder`). Empty for `fixed`
    gates   the controller's three gate rows (attention, memory, experts), [3, 2 d]: weights of every policy, so only when asked for

Expert scores are weights of the router and stay outside. There is no sparse-attention budget: such a key is refused by the
configuration, for there is no such arm.
Not here: what moves it, and by which score.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, cast

import torch
from torch import Tensor

from dormouse_core.ledger import DormouseError
from dormouse_core.policy.depth import knobs
from dormouse_core.policy.network import Policy

WEIGHT_BOUND = 8.0
"""Router and gate weights read an RMS-normalised state: beyond this they saturate on every byte."""


class Group(StrEnum):
    """Parts of the control plane."""

    DEPTH = "depth"  # the depth arm's scalar and router
    GATES = "gates"  # the controller's gate rows: they move the answers of any policy


class Control(NamedTuple):
    """One number of the plane: its name, the bounds it may lie in, and whether it is a whole number."""

    name: str
    low: float
    high: float
    whole: bool = False


class _Piece(NamedTuple):
    """Where a stretch of the vector lives in the policy."""

    tensor: Tensor
    controls: tuple[Control, ...]


class ControlPlane:
    """The chosen groups of one policy. Reads and writes the policy's own tensors; holds no copy of them."""

    def __init__(self, policy: Policy, groups: Sequence[Group | str] = (Group.DEPTH,)) -> None:
        """Raises ValueError for a group that does not exist."""
        self._policy = policy
        self._pieces = [piece for group in groups for piece in _PIECES[Group(group)](policy)]
        self.controls = tuple(c for piece in self._pieces for c in piece.controls)

    def __len__(self) -> int:
        return len(self.controls)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.controls)

    def bounds(self) -> Tensor:
        """[P, 2]: lowest and highest legal value of each number."""
        return torch.tensor([[c.low, c.high] for c in self.controls]).reshape(-1, 2)

    def get(self) -> Tensor:
        """[P] fp32: a copy of the numbers as they are."""
        flat = [piece.tensor.detach().reshape(-1).float().cpu() for piece in self._pieces]
        return torch.cat(flat) if flat else torch.zeros(0)

    @torch.no_grad()
    def set(self, values_P: Tensor) -> None:
        """Write all of them; whole numbers are rounded. Nothing else of the policy changes.

        Raises DormouseError, and writes nothing, where the length is another, or a value is not finite or out of its bounds.
        """
        self._check(values_P)
        offset = 0
        for piece in self._pieces:
            part = values_P[offset : offset + len(piece.controls)].to(piece.tensor.device)
            whole = torch.tensor([c.whole for c in piece.controls], device=part.device)
            piece.tensor.copy_(torch.where(whole, part.round(), part).view_as(piece.tensor))
            offset += len(piece.controls)
        self._policy.refresh()

    def _check(self, values_P: Tensor) -> None:
        if values_P.shape != (len(self),):
            raise DormouseError(f"control plane: {tuple(values_P.shape)} values for {len(self)} numbers. Take the vector from get(), whose "
                                "order is that of `names`.")
        low_P, high_P = self.bounds().unbind(1)
        value_P = values_P.detach().cpu()
        wrong = ~((value_P >= low_P) & (value_P <= high_P))  # NaN compares false
        if wrong.any():
            i = int(wrong.nonzero()[0])
            control = self.controls[i]
            raise DormouseError(f"control plane: {control.name} = {float(value_P[i]):g} lies outside {control.low:g} .. {control.high:g} "
                                f"({int(wrong.sum())} such values). Nothing was changed; clip the vector to bounds().")


def _depth(policy: Policy) -> list[_Piece]:
    arm, pieces = policy.config.depth, list[_Piece]()
    scalars = knobs(arm, policy.config.max_iter)
    if scalars:
        named = tuple(Control(f"depth.{name}", k.low, k.high, k.whole) for name, k in scalars.items())
        pieces.append(_Piece(cast(Tensor, policy.depth_knobs), named))
    if arm.kind in ("mor", "skip", "ponder"):
        router = policy.mor_router
        pieces.append(_Piece(router.weight, _numbered("depth.router.weight", router.weight.numel())))
        pieces.append(_Piece(router.bias, (Control("depth.router.bias", -WEIGHT_BOUND, WEIGHT_BOUND),)))
    return pieces


def _gates(policy: Policy) -> list[_Piece]:
    rows = zip(("attention", "memory", "experts"), policy.block.controller.detach(), strict=False)
    return [_Piece(row_X, _numbered(f"gates.{name}", row_X.numel())) for name, row_X in rows]


def _numbered(name: str, count: int) -> tuple[Control, ...]:
    return tuple(Control(f"{name}.{i}", -WEIGHT_BOUND, WEIGHT_BOUND) for i in range(count))


_PIECES = {Group.DEPTH: _depth, Group.GATES: _gates}
