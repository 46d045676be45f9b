"""The measurement behind `dormouse bench threads`."""

import pytest
import torch

from dormouse_core.config.resolve import resolve
from dormouse_core.learning.throughput import candidates, measure
from dormouse_core.policy.model import build_policy


@pytest.mark.parametrize("cores", [1, 2, 3, 8, 32])
def test_candidates_fill_the_machine_and_never_more(cores: int) -> None:
    found = candidates(cores)
    assert (1, 1) in found and len(set(found)) == len(found)
    assert all(workers * threads <= cores for workers, threads in found)
    assert {(cores, 1), (1, cores)} <= set(found) or cores not in (1, 2, 3, 8, 32)


def test_a_measurement_counts_bytes_of_both_kinds_and_leaves_the_threads_as_they_were() -> None:
    config, before = resolve("tiny", ["roll.lanes=16"]), torch.get_num_threads()
    rate = measure(build_policy(config.policy, 1), config, 1, 2, 1)
    assert rate.sampled > 0 and rate.trained > 0 and rate.joint < min(rate.sampled, rate.trained)
    assert torch.get_num_threads() == before
