"""From the mean of the iterations to logits: hidden = v u^T mean (factored, rank readout_rank), logits = head RMS(hidden) in fp32."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from dormouse_core.policy.norms import rms_normalise
from dormouse_core.policy.products import linear_rows


class Readout(NamedTuple):
    """The weights of both, scales and norm folded in. The final norm's weight is the head's."""

    u_DR: Tensor
    v_DR: Tensor
    head_VD: Tensor

    def of(self, mean_XD: Tensor, eps: float, tile: int) -> tuple[Tensor, Tensor]:
        """(hidden [..., D], logits [..., V])."""
        hidden_XD = linear_rows(linear_rows(mean_XD.flatten(0, -2), self.u_DR.t(), tile), self.v_DR, tile).view_as(mean_XD)
        return hidden_XD, F.linear(rms_normalise(hidden_XD.float(), eps), self.head_VD)
