"""Pretraining: learns, resumes to the same bits after any kill, and refuses what it cannot go on with."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from dormouse_core.artifacts.provenance import Artifact
from dormouse_core.artifacts.store import Store
from dormouse_core.config.resolve import resolve
from dormouse_core.config.run import RunConfig
from dormouse_core.learning import pretrain
from dormouse_core.ledger import DormouseError, Ledger

STEPS = 8


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("text")
    for i in range(12):
        (root / f"{i}.txt").write_text("".join(f"line {i * j % 97}: the quick brown fox jumps over dog {j}\n" for j in range(40)))
    return root


def config(text: Path, *sets: str) -> RunConfig:
    small = ["train.batch=2", "train.seq_len=24", f"train.steps={STEPS}", "train.log_every=1", "train.ckpt_every=1"]
    return resolve("tiny", [*small, "train.optimizer.warmup=2", f"train.data={text}", *sets])


def run(config: RunConfig, store: Store, ledger: Ledger | None = None) -> Artifact:
    return pretrain.run(config, store=store, ledger=ledger or Ledger())


def killed_at(step: int, config: RunConfig, store: Store) -> None:
    """Run in a forked child that is SIGKILLed when it reports `step`."""
    pid = os.fork()
    if pid == 0:
        def die(stage: str, done: int, total: int, unit: str, **facts: Any) -> None:
            if done == step:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            run(config, store, Ledger(progress=die))
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def test_the_loss_falls_and_the_report_stands_beside_its_anchors(text: Path, store: Store) -> None:
    trained = store.read_checkpoint(run(config(text, "train.steps=40", "train.seq_len=64", "train.batch=4", "train.eval_every=10"), store))
    bits = trained.state["bits_per_byte"]
    assert bits["uniform"] == 8.0 > bits["unigram"] > bits["five_gram"]
    curve = trained.state["curve"]
    assert [step for step, _ in curve] == [10, 20, 30, 40]
    assert curve[-1] == [40, bits["model"]] and curve[-1][1] < curve[0][1] < 8.5
    assert trained.state["window_bytes"] == 2 * 4 * 64


def test_the_same_seed_gives_the_same_identity_and_another_seed_another(text: Path, tmp_path: Path) -> None:
    one, two, other = (run(config(text, f"runtime.seed={seed}"), Store(tmp_path / name)) for name, seed in (("1", 1), ("2", 1), ("3", 2)))
    assert one.identity == two.identity != other.identity


def test_a_run_killed_at_any_step_ends_in_the_same_bits(text: Path, tmp_path: Path) -> None:
    settings = config(text, "train.ckpt_every=2")
    whole = run(settings, Store(tmp_path / "whole"))
    for step in range(1, STEPS + 1):
        store = Store(tmp_path / f"killed{step}")
        killed_at(step, settings, store)
        assert not list((store.root / "checkpoint").glob("*"))
        assert run(settings, store).identity == whole.identity, f"killed at step {step}"
        assert not store.resume_path(pretrain.STAGE).exists()


def test_a_run_killed_twice_ends_in_the_same_bits(text: Path, tmp_path: Path) -> None:
    settings = config(text)
    store = Store(tmp_path / "twice")
    killed_at(3, settings, store)
    killed_at(6, settings, store)
    assert run(settings, store).identity == run(settings, Store(tmp_path / "whole")).identity


def test_a_resume_says_where_it_goes_on(text: Path, store: Store, ledger: Ledger) -> None:
    killed_at(5, config(text), store)
    run(config(text), store, ledger)
    assert any(f"going on from step 4 of {STEPS}" in line for line in ledger.lines)


def test_a_resume_under_another_configuration_is_refused_and_nothing_is_lost(text: Path, store: Store) -> None:
    killed_at(5, config(text), store)
    with pytest.raises(DormouseError, match=r"resume refused: 1 setting differs(.|\n)*train\.optimizer\.lr(.|\n)*start over: delete"):
        run(config(text, "train.optimizer.lr=0.5"), store)
    with pytest.raises(DormouseError, match=r"stands at step 4, past train\.steps = 2"):
        run(config(text, "train.steps=2"), store)
    assert store.resume_path(pretrain.STAGE).exists()
    run(config(text, "train.log_every=3"), store)


def test_a_resume_on_another_text_is_refused(text: Path, store: Store, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for path in text.iterdir():
        (mine / path.name).write_bytes(path.read_bytes())
    killed_at(5, config(mine), store)
    for path in mine.iterdir():
        path.write_text(path.read_text() + "one more line\n")
    with pytest.raises(DormouseError, match="another text"):
        run(config(mine), store)


def test_a_loss_that_is_not_finite_is_an_error_with_the_way_out(text: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    build = pretrain.build_policy

    def broken(*arguments: Any) -> Any:
        policy = build(*arguments)
        with torch.no_grad():
            policy.embedding.fill_(float("nan"))
        return policy

    monkeypatch.setattr(pretrain, "build_policy", broken)
    with pytest.raises(DormouseError, match=r"not finite at step 0(.|\n)*train\.optimizer\.lr"):
        run(config(text), store)
    assert not (store.root / "checkpoint").exists()


def test_arms_that_are_off_say_so(text: Path, store: Store, ledger: Ledger) -> None:
    run(config(text, "policy.lfb_step=0", "policy.deep_loss=0", "train.steps=1"), store, ledger)
    assert any("balancing is off" in line for line in ledger.lines) and any("readout loss is off" in line for line in ledger.lines)


def test_worker_count_changes_no_bit(text: Path, tmp_path: Path) -> None:
    one, two = (run(config(text, f"roll.workers={n}", "train.steps=3"), Store(tmp_path / str(n))) for n in (1, 2))
    assert one.identity == two.identity
