"""The peer of benchmarks/policy.py: a byte Llama of `transformers`, sized to the compute or the active parameters of a policy.

It is given the policy's width and heads and as many layers as the policy has iterations (fewer where the feed-forward part would get
narrower than half the width); the feed-forward width fills what is left. Random weights, tied head, key-value cache.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dormouse_core.config.policy import PolicyConfig

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
VOCABULARY = 256


@dataclass(frozen=True)
class Size:
    """A Llama's shape."""

    width: int
    heads: int
    layers: int
    ffn: int

    def madds(self, context: float) -> float:
        """Multiply-adds a byte with `context` bytes before it on average: layers, scores and values of the attention, head."""
        return self.layers * (4 * self.width**2 + 3 * self.width * self.ffn + 2 * context * self.width) + VOCABULARY * self.width

    def parameters(self) -> int:
        """All of them; a byte uses each once (the embedding is the head's matrix)."""
        return self.layers * (4 * self.width**2 + 3 * self.width * self.ffn + 2 * self.width) + (VOCABULARY + 1) * self.width


def sized(config: PolicyConfig, madds: float | None = None, parameters: int | None = None, context: float = 0.0) -> Size:
    """The Llama of so many multiply-adds a byte at this mean context, or of so many parameters."""
    d = config.d_model
    for layers in range(config.max_iter, 0, -1):
        empty = Size(d, config.n_heads, layers, 0)
        left = madds - empty.madds(context) if madds is not None else (parameters or 0) - empty.parameters()
        ffn = round(left / (3 * d * layers) / 4) * 4
        if ffn >= d // 2 or layers == 1:
            return Size(d, config.n_heads, layers, max(ffn, 4))
    raise AssertionError("unreachable")


def build(size: Size, dtype: torch.dtype = torch.float32) -> Any:
    """The model. Raises ImportError where transformers is not installed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=size.width, intermediate_size=size.ffn, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.heads, max_position_embeddings=32768, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None, pad_token_id=0, attention_dropout=0.0,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype)


def generate(model: Any, prompt_BL: Tensor, new: int) -> None:
    """`new` sampled bytes a row: temperature 1, whole support, no stop."""
    with torch.inference_mode():
        out = model.eval().generate(
            prompt_BL, attention_mask=torch.ones_like(prompt_BL), do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=new,
            min_new_tokens=new, use_cache=True,
        )
    assert out.shape[1] == prompt_BL.shape[1] + new


class Trainer:
    """forward + backward + AdamW on one batch, as `transformers` computes its own loss."""

    def __init__(self, model: Any) -> None:
        self.model, self.adam = model.train(), torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(self, ids_BL: Tensor) -> None:
        self.model(ids_BL, labels=ids_BL).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
