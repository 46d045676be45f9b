"""SFT: masks that are checked, held-out rows that stay out, the best weights kept, and a resume that leaves no trace."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dormouse_core.artifacts.checkpoint import weights_identity
from dormouse_core.artifacts.provenance import Artifact, Kind
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.encoding import Role, Span
from dormouse_core.learning import sft
from dormouse_core.learning.rows import Rows, heldout_side, observation_mask, rendered, training_rows
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.rollouts.workers import WorkerPool
from tests.core.learning.made import coin_rows, config, pretrained


class Killed(BaseException):
    """A kill as the stage sees it: nothing is caught, nothing is written after it."""


def dies_at(step: int) -> Ledger:
    def progress(stage: str, done: int, total: int, unit: str, **facts: Any) -> None:
        if done == step:
            raise Killed
    return Ledger(progress=progress)


def trained(root: Path, of: RunConfig, ledger: Ledger | None = None, pool: WorkerPool | None = None) -> tuple[Store, Artifact]:
    store = Store(root)
    return store, sft.run(of, pretrained(store, of), store=store, ledger=ledger or Ledger(), rows=coin_rows(), pool=pool)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Artifact]:
    return trained(tmp_path_factory.mktemp("sft"), config())


def test_a_row_with_nothing_under_loss_is_refused_and_named() -> None:
    good = [Span(Role.PROMPT, b"q"), Span(Role.ASSISTANT, b"a")]
    with pytest.raises(DormouseError, match=r"row 1 .*no byte under loss"):
        rendered([good, [Span(Role.PROMPT, b"q")]])


def test_with_mask_all_every_content_byte_is_a_target_and_no_tag_is() -> None:
    rows = rendered([[Span(Role.PROMPT, b"q"), Span(Role.ASSISTANT, b"a")]], every_span=True)
    assert rows.masks[0].tolist() == [False, True, False, True, True]


def test_observation_mask_marks_observation_content_alone() -> None:
    answer = Span(Role.ASSISTANT, b"a")
    rows = rendered([[Span(Role.PROMPT, b"q\x01"), answer, Span(Role.OBSERVATION, b"o\x04!"), answer]])
    stream = rows.streams[0].tobytes()
    assert bytes(rows.streams[0][rows.observed[0]]) == b"o\x10D!"
    assert not np.any(rows.observed[0] & rows.masks[0]) and stream.count(b"\x04") == 1
    assert not observation_mask(np.frombuffer(b"\x02q\x03a\x05", dtype=np.uint8)).any()


def test_equal_rows_never_straddle_the_held_out_line_and_the_side_does_not_depend_on_order() -> None:
    rows = rendered([r.segments for r in coin_rows()])
    side = heldout_side(rows, 0.3)
    by_bytes: dict[bytes, set[bool]] = {}
    for stream, held in zip(rows.streams, side, strict=True):
        by_bytes.setdefault(stream.tobytes(), set()).add(bool(held))
    assert all(len(sides) == 1 for sides in by_bytes.values()) and 0 < side.sum() < len(side)
    back = Rows(rows.streams[::-1], rows.masks[::-1], rows.observed[::-1])
    assert np.array_equal(heldout_side(back, 0.3)[::-1], side)
    with pytest.raises(DormouseError, match="no held-out"):
        heldout_side(rows.pick([0]), 1e-9)


def test_it_learns_stops_by_patience_and_keeps_the_best_weights(plain: tuple[Store, Artifact]) -> None:
    store, artifact = plain
    state = store.read_checkpoint(artifact).state
    heldout = {int(p["step"]): p["heldout"] for p in state["curve"]}
    assert state["best_loss"] == min(heldout.values()) == heldout[state["best_step"]] < heldout[0] / 2
    assert state["ended"] == "patience" and state["step"] == state["best_step"] + 10 * 3


def test_the_checkpoint_names_its_base_its_rows_and_the_share_for_rl(plain: tuple[Store, Artifact]) -> None:
    store, artifact = plain
    checkpoint = store.read_checkpoint(artifact)
    assert checkpoint.state["interleave_rl"] == 0.25
    assert {p.role for p in artifact.provenance.parents} == {"base", "demonstrations"}
    stored = store.find(Kind.DEMONSTRATIONS, checkpoint.state["demonstrations"])
    assert stored is not None
    table = store.read_table(stored)
    assert len(training_rows(table)) == checkpoint.state["rows"] and table.num_rows == len(coin_rows())


def test_every_point_of_the_curve_says_how_evenly_experts_were_chosen_and_updated(plain: tuple[Store, Artifact]) -> None:
    store, artifact = plain
    start, *points = store.read_checkpoint(artifact).state["curve"]
    assert not {name for name in start if name.startswith(("load_", "expert"))}, "nothing was trained before the first point"
    assert all(p["load_cv"] > 0 and 0 <= p["load_cold_share"] < 1 for p in points)
    assert [p["expert_updates_max"] for p in points] == [p["step"] for p in points], "some expert moved in every step"


def test_balancing_moves_in_sft(plain: tuple[Store, Artifact]) -> None:
    store, artifact = plain
    checkpoint = store.read_checkpoint(artifact)
    assert checkpoint.state["lfb_version"] > 0 and checkpoint.model["balance_bias_E"].abs().max() > 0


@pytest.mark.parametrize("step", [3, 10, 47])
def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path, plain: tuple[Store, Artifact], step: int) -> None:
    with pytest.raises(Killed):
        trained(tmp_path, config(), dies_at(step))
    _, artifact = trained(tmp_path, config(), ledger := Ledger())
    assert ledger.counts["sft_resumed_at_step"] == step // 10 * 10
    assert artifact.identity == plain[1].identity


def test_worker_count_changes_no_bit(tmp_path: Path, plain: tuple[Store, Artifact]) -> None:
    of = config(roll={"workers": 2})
    store, artifact = trained(tmp_path, of)
    weights = [weights_identity(s.read_checkpoint(a).model) for s, a in ((store, artifact), plain)]
    assert weights[0] == weights[1] and artifact.identity == plain[1].identity


def test_rows_longer_than_the_window_are_left_out_aloud() -> None:
    ledger, rows = Ledger(), rendered([[Span(Role.PROMPT, b"q" * n), Span(Role.ASSISTANT, b"a")] for n in (3, 500)])
    assert sft.within(rows, config(), ledger) == [0]
    assert ledger.counts["sft_rows_too_long"] == 1 and "left out" in ledger.lines[0]


def test_held_out_weights_give_the_mean_over_target_bytes() -> None:
    rows = rendered([r.segments for r in coin_rows(90)])
    assert sum(float(b.weight_BL.sum()) for b in sft.held_batches(rows)) == pytest.approx(1.0, abs=1e-5)


def test_what_is_switched_off_in_sft_says_so(tmp_path: Path) -> None:
    of = config(policy={"lfb_step": 0.0, "deep_loss": 0.0}, sft={"max_epochs": 1})
    store, artifact = trained(tmp_path, of, ledger := Ledger())
    assert len(ledger.lines) == 2 and store.read_checkpoint(artifact).state["lfb_version"] == 0
    assert torch.count_nonzero(store.read_checkpoint(artifact).model["balance_bias_E"]) == 0
