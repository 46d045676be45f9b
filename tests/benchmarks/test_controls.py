"""Both controls on a small base, through the stages' own code; and the CPU clock their budgets are measured with."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import controls, cpu
from benchmarks.controls import Bench, even_pools, more_sft, own_passes
from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.provenance import Artifact, Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.resolve import resolve
from dormouse_core.config.run import RunConfig
from dormouse_core.config.suite import load_suite
from dormouse_core.learning import sft
from dormouse_core.learning.consolidation import Passes
from dormouse_core.learning.monitor import Round
from dormouse_core.ledger import Ledger
from dormouse_core.policy.model import build_policy
from dormouse_core.rollouts import stage
from dormouse_core.rollouts.workers import WorkerPool
from dormouse_core.tasks.splits import require_trainable
from dormouse_core.tasks.store import tasks_from_table
from dormouse_core.verifiers.verdict import VerdictClass

SETS = ["sft.rows_per_pool=24", "sft.max_epochs=8", "sft.optimizer.lr=1e-2", "roll.prompts=6", "roll.group_size=8", "roll.lanes=32",
        "train.ckpt_every=4"]


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return resolve("tiny", SETS)


@pytest.fixture(scope="module")
def base(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Artifact]:
    store = Store(tmp_path_factory.mktemp("controls"))
    provenance = Provenance(kind=Kind.CHECKPOINT, stage="pretrained_checkpoint", config_sha256=config.sha256(), code_version="0", seed=1)
    start = store.put_checkpoint(Checkpoint(config, dict(build_policy(config.policy, 1).state_dict())), provenance)
    return store, sft.run(config, start, store=store, ledger=Ledger())


@pytest.fixture
def pool(config: RunConfig) -> Iterator[WorkerPool]:
    with WorkerPool(1) as open_pool:
        yield open_pool


def bench_of(config: RunConfig, base: tuple[Store, Artifact], pool: WorkerPool, budget: float, ledger: Ledger | None = None) -> Bench:
    return Bench(config, base[1], budget, base[0], pool, ledger or Ledger(), measured_steps=3, measured_rounds=2)


def refuse_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on an hour passes at every look at the clock: whatever still depends on it changes."""
    hours = iter(range(10**6))
    monkeypatch.setattr(cpu, "seconds", lambda: 3600.0 * next(hours))


def test_more_sft_goes_on_from_the_base_on_its_own_rows(config: RunConfig, base: tuple[Store, Artifact], pool: WorkerPool,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    store, start = base
    seen: list[list[bytes]] = []
    real = controls.text_works
    monkeypatch.setattr(controls, "text_works", lambda rows, of: (seen.append([s.tobytes() for s in rows.streams]), real(rows, of))[1])
    ran = more_sft(bench_of(config, base, pool, 0.8))
    named = store.read_checkpoint(start).state["demonstrations"]
    table = store.read_table(store.find(Kind.DEMONSTRATIONS, named))  # type: ignore[arg-type]
    own = {row["stream"] for row in table.to_pylist() if not row["heldout"]}
    assert {s for batch in seen for s in batch} <= own
    assert ran.rows == sum(not row["heldout"] for row in table.to_pylist())
    made = store.read_checkpoint(store.find(Kind.CHECKPOINT, ran.identity))  # type: ignore[arg-type]
    assert made.state["steps"] == ran.steps >= 1 and ran.identity != start.identity
    assert int(made.model["balance_version"]) == int(store.read_checkpoint(start).model["balance_version"]) + ran.steps


def test_a_killed_control_ends_in_the_same_bits_and_never_measures_again(config: RunConfig, base: tuple[Store, Artifact], pool: WorkerPool,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(config, base, pool, 1.1)
    monkeypatch.setattr(controls, "_steps", _counting(controls._steps, 10))
    whole = more_sft(bench)
    controls.StageJournal(base[0], f"{bench.key('more_sft')}-counts").clear()
    updates = controls._updates

    def killed(*arguments: Any) -> Iterator[int]:
        for step in updates(*arguments):
            yield step
            if step == 7:
                raise KeyboardInterrupt

    monkeypatch.setattr(controls, "_updates", killed)
    with pytest.raises(KeyboardInterrupt):
        more_sft(bench)
    monkeypatch.setattr(controls, "_updates", updates)
    refuse_clock(monkeypatch)
    again = more_sft(bench)
    assert (again.identity, again.steps) == (whole.identity, 10)


def _counting(real: Any, steps: int) -> Any:
    """Counts as the journal would hold them, the same in both runs."""
    def counted(bench: Bench, name: str, rows: Any, budget: float, journal: Any) -> int:
        if journal.done("steps") is None:
            journal.commit("steps", steps)
        return int(real(bench, name, rows, budget, journal))
    return counted


def test_own_passes_trains_on_nothing_but_what_the_verifiers_passed(config: RunConfig, base: tuple[Store, Artifact], pool: WorkerPool,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    store, start = base
    ran = own_passes(bench_of(config, base, pool, 3.0))
    assert ran.rounds >= 2 and ran.trajectories == ran.rounds * 6 * 8
    assert ran.rows > 0, "the base of this test must solve something"
    made = store.find(Kind.CHECKPOINT, ran.identity)
    assert made is not None and store.read_checkpoint(made).state["stage"] == "own_passes"
    parents = [p for p in made.provenance.parents if p.kind is Kind.TASKS]
    assert len(parents) == ran.rounds
    for parent in parents:
        require_trainable(tasks_from_table(store.read_table(store.find(Kind.TASKS, parent.identity))), "test")  # type: ignore[arg-type]
    for parent in (p for p in made.provenance.parents if p.kind is Kind.ROLLOUTS):
        played = stage.load(store, store.find(Kind.ROLLOUTS, parent.identity))  # type: ignore[arg-type]
        assert {t.policy for t in played} == {start.identity} and not any(t.parent_id for t in played)
    refuse_clock(monkeypatch)
    again = own_passes(bench_of(config, base, pool, 3.0))
    assert again == ran


def test_own_passes_keeps_passes_only_and_repeats_once(config: RunConfig, base: tuple[Store, Artifact], pool: WorkerPool) -> None:
    bench = bench_of(config, base, pool, 0.1)
    rounds, _, _ = controls._sample(bench, "own_passes", controls.StageJournal(base[0], "keeps"))
    passed = {t.stream()[0] for r in rounds for t, v in zip(r.trajectories, r.verdicts, strict=True) if v.verdict is VerdictClass.PASS}
    passes = Passes()
    for round in [*rounds, *rounds]:
        passes.add(round)
    rows = passes.rows()
    assert {s.tobytes() for s in rows.streams} == passed and len(rows) == len(passed)
    for stream_L, mask_L in zip(rows.streams, rows.masks, strict=True):
        assert mask_L.any() and not mask_L.all() and stream_L[np.flatnonzero(mask_L)[-1]] == 5, "targets end with END"


def test_a_base_that_passes_nothing_is_its_own_control_and_says_so(config: RunConfig, base: tuple[Store, Artifact], pool: WorkerPool,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    monkeypatch.setattr(controls, "_sample", lambda bench, name, journal: ([Round(0, [], [], {})], (), 1.0))
    ran = own_passes(bench_of(config, base, pool, 0.2, ledger))
    assert (ran.identity, ran.steps, ran.rows) == (base[1].identity, 0, 0)
    assert any("passed" in line for line in ledger.lines)


def test_every_pool_is_drawn_equally_often_and_so_is_every_cell_of_a_pool() -> None:
    suite = load_suite("nano")
    drawn = even_pools(suite)
    for cells in suite.pools("train").values():
        times = [drawn.count((c.family, c.difficulty)) for c in cells]
        assert len(set(times)) == 1 and sum(times) == len(drawn) // 3


BURN = "import time\nwhile time.process_time() < {}: pass"
ORPHAN = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN.format(0.2)!r}])"


def test_the_clock_counts_a_childs_seconds_while_it_lives_and_after() -> None:
    began, process = cpu.children_seconds(), subprocess.Popen([sys.executable, "-c", BURN.format(0.3)])
    alive = 0.0
    while process.poll() is None:
        alive = max(alive, cpu.children_seconds() - began)
        time.sleep(0.02)
    assert alive > 0.1
    assert 0.3 <= cpu.children_seconds() - began < 0.9


def test_an_orphans_seconds_are_not_lost() -> None:
    began, known = cpu.children_seconds(), cpu.children()
    with cpu.adopting():
        subprocess.run([sys.executable, "-c", ORPHAN], check=True)
        cpu.reap(known, patience=60.0)
    assert cpu.children_seconds() - began >= 0.2
    assert cpu.children() == known


def test_a_stages_seconds_are_read_off_the_curve_of_its_attempt(tmp_path: Path) -> None:
    from benchmarks.timed_loop import _read

    path = tmp_path / "attempt-000.jsonl"
    path.write_text("[100.0, 0.0]\n[101.0, 2.0]\n[102.0, 2")
    assert _read(path).tolist() == [[100.0, 0.0], [101.0, 2.0]], "a torn line is left out"
