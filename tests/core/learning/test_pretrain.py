"""Pretraining: learns, resumes to the same bits after any kill, and refuses what it cannot go on with."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dormouse_core import seeding
from dormouse_core.artifacts.provenance import Artifact
from dormouse_core.artifacts.store import Store
from dormouse_core.config.resolve import resolve
from dormouse_core.config.run import RunConfig
from dormouse_core.learning import pretrain, rl, sft, update
from dormouse_core.learning.instruments import LOAD_WINDOW, StepLog
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.optim.groups import Group, build_optimizer

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


def test_weights_that_are_not_finite_are_an_error_with_the_way_out(text: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    build = pretrain.build_policy

    def broken(*arguments: Any) -> Any:
        policy = build(*arguments)
        with torch.no_grad():
            policy.embedding.fill_(float("nan"))
        return policy

    monkeypatch.setattr(pretrain, "build_policy", broken)
    with pytest.raises(DormouseError, match=r"9 of the last 9 steps were not finite(.|\n)*train\.optimizer\.lr"):
        run(config(text, "train.steps=12"), store)
    with pytest.raises(DormouseError, match=r"score of the weights at step 3 is not finite"):
        run(config(text, "train.steps=3"), Store(store.root / "short"))
    assert not list(store.root.rglob("checkpoint/*"))


def spoil(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> list[dict[str, torch.Tensor]]:
    """At these steps one micro-batch of two yields NaN. Returns a list that gains weights, buffers and moments around each of them."""
    advance, gradient, seen = pretrain._Session._advance, update.gradient, list[dict[str, torch.Tensor]]()

    def everything(session: Any) -> dict[str, torch.Tensor]:
        return {n: t.clone() for n, t in (session.policy.state_dict() | session.optimizer.state()).items()}

    def spoiled(policy: Any, work: Any, reference: Any = None) -> Any:
        part = gradient(policy, work, reference)
        part.gradient_P[:3] = float("nan")
        return part

    def stepped(session: Any) -> None:
        with monkeypatch.context() as patch:
            if session.step in steps:
                seen.append(everything(session))
                patch.setattr(update, "gradient", spoiled)
            advance(session)
            if session.step in steps:
                seen.append(everything(session))

    monkeypatch.setattr(pretrain._Session, "_advance", stepped)
    return seen


def test_a_step_that_is_not_finite_moves_nothing_and_is_neither_reported_nor_best(
        text: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, said = spoil(monkeypatch, {0, 3}), dict[int, dict[str, Any]]()
    ledger = Ledger(progress=lambda stage, done, total, unit, **facts: said.update({done: facts}))
    trained = store.read_checkpoint(run(config(text, "train.eval_every=1"), store, ledger))
    for before, after in ((seen[0], seen[1]), (seen[2], seen[3])):
        assert before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)
    assert "bpb" not in said[1] and said[1]["masked"] == 1 and "masked" not in said[2] and said[2]["bpb"] > 0
    assert trained.state["masked_steps"] == [0, 3] and ledger.counts["train_steps_masked"] == 2
    curve = trained.state["curve"]
    assert curve[3][1] == curve[2][1]  # the weights of step 4 are those of step 3
    assert trained.state["best"] == min(curve, key=lambda p: p[1]) and 0 < trained.state["best"][1] < 8.5


def test_a_run_with_masked_steps_resumes_to_the_same_bits(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, {1, 4})
    settings, store = config(text, "train.ckpt_every=2"), Store(tmp_path / "killed")
    killed_at(6, settings, store)
    assert run(settings, store).identity == run(settings, Store(tmp_path / "whole")).identity


def test_a_run_killed_at_random_instants_ends_in_the_same_bits(text: Path, tmp_path: Path) -> None:
    settings = config(text, "policy.lfb_step=0.05", "train.steps=12")
    began = time.process_time()
    whole = run(settings, Store(tmp_path / "whole"))
    seconds = time.process_time() - began
    draw, store = seeding.generator("test-kills"), Store(tmp_path / "killed")
    ends = []
    for _ in range(3):
        delay, pid = float(draw.uniform(0.1, 0.6)) * seconds, os.fork()
        if pid == 0:
            try:
                signal.setitimer(signal.ITIMER_PROF, delay)  # CPU time; nobody handles SIGPROF, so it ends the process there and then
                run(settings, store)
            finally:
                os._exit(0)
        ends.append(os.waitpid(pid, 0)[1])
    assert os.WIFSIGNALED(ends[0])
    assert run(settings, store).identity == whole.identity
    trained = Store(tmp_path / "whole").read_checkpoint(whole)
    assert trained.model["balance_bias_E"].abs().max() > 0.04 and int(trained.model["balance_version"]) == 12


def test_a_log_line_names_rates_router_and_the_step_of_its_speed(text: Path, store: Store) -> None:
    said: dict[int, dict[str, Any]] = {}
    ledger = Ledger(progress=lambda stage, done, total, unit, **facts: said.update({done: facts}))
    run(config(text, "train.log_every=4"), store, ledger)
    assert sorted(said) == [4, 8] and "speed" not in said[4] and said[8]["speed"].endswith("bytes/s at step 8")
    rates = said[8]["lr"].split()
    assert rates[::2] == [group.value for group in Group] and float(rates[rates.index("tables") + 1]) > float(rates[1])
    shares = [float(share) for share in said[8]["router"].removesuffix(" %").split("/")]
    assert len(shares) == 4 and sum(shares) == pytest.approx(100, abs=3)
    assert 0 < said[8]["router_entropy"] <= 1 and said[8]["dead"] == sum(share == 0 for share in shares)


def test_dead_experts_are_read_over_a_window_of_steps() -> None:
    log = StepLog(1)
    for step in range(LOAD_WINDOW):
        load_E = torch.zeros(8, dtype=torch.int64)
        load_E[step % 7] = 5
        log.note(1.0, 1.0, load_E)
        log.note(None, 0.0, torch.zeros(8, dtype=torch.int64))
    load = log.load()
    assert load is not None and load.dead == 1
    for _ in range(LOAD_WINDOW):
        log.note(1.0, 1.0, torch.tensor([3, 0, 0, 0, 0, 0, 0, 0]))
    load = log.load()
    assert load is not None and load.dead == 7


def test_pretraining_sft_and_rl_update_through_the_same_core() -> None:
    for stage in (pretrain, sft, rl):
        assert stage.update is update.update  # type: ignore[attr-defined]
        assert stage.build_optimizer is build_optimizer  # type: ignore[attr-defined]


def test_arms_that_are_off_say_so(text: Path, store: Store, ledger: Ledger) -> None:
    run(config(text, "policy.lfb_step=0", "policy.deep_loss=0", "train.steps=1"), store, ledger)
    assert any("balancing is off" in line for line in ledger.lines) and any("readout loss is off" in line for line in ledger.lines)


def test_worker_count_changes_no_bit(text: Path, tmp_path: Path) -> None:
    one, two = (run(config(text, f"roll.workers={n}", "train.steps=3"), Store(tmp_path / str(n))) for n in (1, 2))
    assert one.identity == two.identity
