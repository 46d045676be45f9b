"""A resume under another configuration is refused with the difference and two ways out."""

import pytest

from dormouse_core.config.drift import PROGRESS_KEYS, differences, refuse_drift
from dormouse_core.config.resolve import resolve
from dormouse_core.ledger import DormouseError


def test_the_same_configuration_is_no_drift() -> None:
    refuse_drift(resolve("nano"), resolve("nano"), "x.bin")


def test_drift_is_refused_field_by_field_with_two_ways_out() -> None:
    with pytest.raises(DormouseError) as caught:
        refuse_drift(resolve("nano"), resolve("nano", ["rl.clip=0.3", "policy.max_iter=3"]), "store/checkpoint/3f2a.bin")
    text = str(caught.value)
    assert text.splitlines()[0] == "resume refused: 2 settings differ from the run in store/checkpoint/3f2a.bin"
    assert [line.split() for line in text.splitlines()[1:3]] == [["policy.max_iter", "2", "->", "3"], ["rl.clip", "0.2", "->", "0.3"]]
    assert "--set policy.max_iter=2 --set rl.clip=0.2" in text
    assert "dormouse loop --line" in text


@pytest.mark.parametrize("setting", ["train.steps=9", "train.log_every=3", "train.ckpt_every=7", "train.eval_every=5", "eval.samples=9",
                                     "rl.ckpt_every=3"])
def test_progress_keys_may_change(setting: str) -> None:
    fresh = resolve("nano", [setting])
    assert fresh != resolve("nano")
    refuse_drift(resolve("nano"), fresh, "x.bin")


def test_no_other_key_may_change() -> None:
    assert {"steps", "log_every", "ckpt_every", "eval", "eval_every"} == PROGRESS_KEYS
    for setting in ("train.seq_len=32", "roll.lanes=8", "runtime.seed=5", "sft.mask=all", "runtime.threads=2"):
        assert list(differences(resolve("nano"), resolve("nano", [setting]))) == [setting.split("=")[0]]


def test_another_arm_is_drift_even_where_its_keys_are_new() -> None:
    changed = differences(resolve("nano"), resolve("nano", ["rl.advantage=group"]))
    assert changed["rl.advantage.kind"] == ("fork-replay", "group")
    assert changed["rl.advantage.kappa"] == (None, 0.0)


def test_the_name_of_the_preset_is_not_compared(tmp_path: object) -> None:
    stored = resolve("nano")
    refuse_drift(stored, stored.model_copy(update={"preset": "copied"}), "x.bin")
