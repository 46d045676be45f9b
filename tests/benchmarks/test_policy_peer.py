"""The peer of the policy's benchmark is as large as it says, and no smaller than the policy it is measured against."""

import pytest

from benchmarks import peer
from dormouse_core.config.resolve import resolve
from dormouse_core.policy.counts import parameter_counts


@pytest.mark.parametrize("preset", ["nano", "small"])
def test_the_peer_has_the_policys_multiply_adds_or_its_active_parameters(preset: str) -> None:
    config = resolve(preset).policy
    counts = parameter_counts(config)
    for context in (0.0, 64.0, 256.0):
        same = peer.sized(config, madds=counts.madds_per_byte, context=context)
        assert same.madds(context) == pytest.approx(counts.madds_per_byte, rel=0.01)
        assert (same.width, same.heads, same.layers) == (config.d_model, config.n_heads, config.max_iter)
    assert peer.sized(config, parameters=counts.active).parameters() == pytest.approx(counts.active, rel=0.01)


def test_multiply_adds_are_the_matrices_plus_the_attentions_own() -> None:
    size = peer.Size(width=8, heads=2, layers=3, ffn=20)
    matrices = 3 * (4 * 8 * 8 + 3 * 8 * 20) + 256 * 8
    assert size.madds(0) == matrices
    assert size.madds(10) - matrices == 3 * 2 * 10 * 8  # scores and values against ten bytes before
    assert size.parameters() == matrices + 3 * 2 * 8 + 8


def test_transformers_counts_the_same_parameters() -> None:
    pytest.importorskip("transformers", reason="the extra `peers` is not installed: the peer was not built")
    size = peer.sized(resolve("nano").policy, parameters=279_512)
    assert sum(p.numel() for p in peer.build(size).parameters()) == size.parameters()
