"""Scoring answers under prompts: log-probabilities of every (answer, prompt) pair, and the entropy of the policy where it wrote.

Everything is the policy's action distribution at temperature 1, teacher-forced. A prompt is run once; all answers go on from copies
of its state, so the cost is the prompts' bytes plus answers times prompts, not their product with the prompts' length.
Not here: what the scores say (mutual_information, collapse).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dormouse_core.encoding import Role, opening
from dormouse_core.policy.heads import action_log_probs, entropy
from dormouse_core.policy.model import Policy

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """R answers under N prompts."""

    log_RN: Floats  # log p(answer | prompt), nats
    entropy_R: Floats  # mean entropy of the distributions the answer's bytes were drawn from, nats a byte
    length_R: NDArray[np.int64]  # bytes, END included


def prompt_stream(prompt: bytes) -> bytes:
    """The forced bytes before a first action."""
    return opening(Role.PROMPT, prompt) + opening(Role.ASSISTANT)


@torch.inference_mode()
def score_pairs(policy: Policy, prompts: Sequence[bytes], answers: Sequence[bytes], own_R: Sequence[int]) -> Scored:
    """Score every answer under every prompt.

    prompts: raw content. answers: stream bytes as sampled, END included where it was written; none empty. own_R: index of the prompt
    each answer was written to. Raises ValueError on an empty answer.
    """
    length_R = np.array([len(a) for a in answers])
    if not len(length_R) or length_R.min() < 1:
        raise ValueError("every answer needs at least one byte: an episode that wrote nothing says nothing about its prompt")
    longest = int(length_R.max())
    padded_RL = np.frombuffer(b"".join(a.ljust(longest, b"\0") for a in answers), dtype=np.uint8).reshape(-1, longest)
    ids_RL = torch.from_numpy(padded_RL.astype(np.int64))
    mask_RL = torch.arange(longest)[None] < torch.from_numpy(length_R)[:, None]
    own = torch.tensor(list(own_R))
    log_RN, entropy_R = np.empty((len(answers), len(prompts))), np.empty(len(answers))
    was_training = policy.training
    policy.eval()
    for j, prompt in enumerate(prompts):
        head = policy(torch.tensor([list(prompt_stream(prompt))]))
        body = policy(ids_RL, head.state.select([0] * len(answers)))
        first_R1V = head.logits_BLV[:, -1:].expand(len(answers), 1, -1)
        log_RLV = action_log_probs(torch.cat((first_R1V, body.logits_BLV[:, :-1]), 1))
        taken_RL = log_RLV.gather(-1, ids_RL[..., None])[..., 0].masked_fill(~mask_RL, 0.0)
        log_RN[:, j] = taken_RL.double().sum(-1).numpy()
        mine = torch.nonzero(own == j)[:, 0]
        if len(mine):
            entropy_ML = entropy(log_RLV[mine]).masked_fill(~mask_RL[mine], 0.0)
            entropy_R[mine.numpy()] = (entropy_ML.sum(-1) / mask_RL[mine].sum(-1)).numpy()
    policy.train(was_training)
    return Scored(log_RN, entropy_R, length_R)
