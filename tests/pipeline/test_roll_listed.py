"""`post-train roll --env` on what stands in files: public sets, the repair environment, a folder of one's own; judged by `verify`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dormouse_core.artifacts.store import Store
from dormouse_core.encoding import unescape
from dormouse_core.rollouts import stage, verify
from dormouse_core.rollouts.trajectory import Start
from dormouse_core.tasks.store import tasks_from_table
from dormouse_core.tasks.task import Task, Use
from dormouse_core.verifiers.verdict import Verdict, VerdictClass
from dormouse_pipeline.cli.main import cli
from tests.core.learning.made import config, pretrained
from tests.core.rollouts.scripted import scripted
from tests.core.verifiers import shop

SETTINGS = ("--set", "roll.group_size=2")
OF_ALL = ("gsm8k", "mbpp", "humaneval", "humanevalfix", "repair", "cruxeval", "bbh", "reasoning_gym")


class Bench:
    """A store with an untrained checkpoint, and the command line over it."""

    def __init__(self, root: Path, tasks_dir: Path | None) -> None:
        self.root, self.store = root, Store(root / "store")
        self.base = str(self.store.path(pretrained(self.store, config())))
        self.env = {"DORMOUSE_TASKS_DIR": str(tasks_dir) if tasks_dir else None}

    def call(self, *arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(cli, ["post-train", *arguments, "--store", str(self.store.root)], env=self.env)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, " ".join(result.stderr.split())

    def roll(self, *arguments: str) -> tuple[dict[str, Task], str]:
        """(tasks by id, rollouts file)."""
        out = str(self.root / "rolled.json")
        code, said, error = self.call("roll", "--base", self.base, "--out", out, "--json", *SETTINGS, *arguments)
        assert code == 0, error
        named = next(p for p in self.store.open(Path(out)).provenance.parents if p.role == "tasks")
        table = self.store.find(named.kind, named.identity)
        assert table is not None and json.loads(said)["trajectories"] > 0
        return {t.id: t for t in tasks_from_table(self.store.read_table(table))}, out

    def verdicts(self, rolled: str, *arguments: str) -> list[Verdict]:
        out = str(self.root / "judged.parquet")
        code, _, error = self.call("verify", "--traj", rolled, "--out", out, *arguments)
        assert code == 0, error
        return list(verify.load(self.store, self.store.open(Path(out))).values())


@pytest.fixture
def bench(tmp_path: Path, tasks_dir: Path) -> Bench:
    return Bench(tmp_path, tasks_dir)


def script(monkeypatch: pytest.MonkeyPatch, actions: Callable[[Task], Sequence[bytes]]) -> None:
    monkeypatch.setattr(stage, "roll_with_forks", scripted(actions))


# --- repair, in several turns


def test_a_scripted_policy_that_reads_edits_tests_and_submits_repairs_one_program_and_is_judged_by_its_hidden_tests(
        bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    mended: list[str] = []

    def repair_the_first(task: Task) -> Sequence[bytes]:
        if task.start["visible"] and (not mended or task.id in mended):
            mended[:] = [task.id]
            return b"r", b"t", *task.reference[:-1], b"t", b"s"
        return b"t", b"s"

    script(monkeypatch, repair_the_first)
    tasks, rolled = bench.roll("--env", "repair", "--n", "3")
    assert {t.environment for t in tasks.values()} == {"repair"} and {t.use for t in tasks.values()} == {Use.EVALUATION}
    found = bench.verdicts(rolled, "--fork-budget", "6")
    assert {v.verdict for v in found if v.task_id in mended} == {VerdictClass.PASS}
    assert {v.verdict for v in found if v.task_id not in mended}.isdisjoint({VerdictClass.PASS, VerdictClass.VERIFIER_ERROR})
    (episode, *_) = (t for t in stage.load(bench.store, bench.store.open(Path(rolled))) if t.task_id in mended)
    assert [s.tool for s in episode.steps][:2] == ["read", "test"] and episode.steps[-1].tool == "submit"
    passed, _, total = episode.steps[-2].observation.partition(b"/")
    assert passed == total and int(total) == len(tasks[episode.task_id].start["visible"]), "what the visible tests say after the repair"


def test_episodes_of_repair_are_forked_and_play_again_to_the_same_digests(bench: Bench, tmp_path: Path) -> None:
    spec = tmp_path / "short.toml"
    spec.write_text('public = ["repair"]\nbyte_budget = 60\nmax_steps = 4\n')
    _, rolled = bench.roll("--env", str(spec), "--n", "2", "--set", "roll.fork_share=1.0", "--set", "roll.group_size=4")
    episodes = stage.load(bench.store, bench.store.open(Path(rolled)))
    assert sum(t.start is Start.PREFIX for t in episodes) >= 2
    assert len(bench.verdicts(rolled, "--fork-budget", "8")) == len(episodes)


# --- public sets


def test_every_public_set_rolls_from_the_command_line_and_its_references_pass(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, lambda task: task.reference)
    tasks, rolled = bench.roll("--env", ",".join(OF_ALL), "--n", str(3 * len(OF_ALL)))
    families = {t.family for t in tasks.values()}
    assert {"gsm8k", "mbpp", "humaneval", "humanevalfix", "humanevalfix_repair", "cruxeval"} <= families
    assert any(f.startswith("bbh_") for f in families) and any(f.startswith("reasoning_gym_") for f in families)
    assert {v.verdict for v in bench.verdicts(rolled)} == {VerdictClass.PASS}
    kept = [t for t in tasks.values() if "test_src" in t.trusted]
    assert len(kept) <= 2, "suites of asserts are judged as cases wherever they can be"


def test_a_set_with_tasks_to_train_on_gives_those_and_the_others_where_they_are_asked_for(bench: Bench, tmp_path: Path) -> None:
    tasks, _ = bench.roll("--env", "mbpp", "--n", "2")
    assert {(t.family, t.use) for t in tasks.values()} == {("mbpp", Use.TRAIN)}
    spec = tmp_path / "held.toml"
    spec.write_text('public = ["mbpp"]\nuse = "evaluation"\n')
    held, _ = bench.roll("--env", str(spec), "--n", "2")
    assert {t.use for t in held.values()} == {Use.EVALUATION}
    mixed, _ = bench.roll("--env", "mbpp,gcd,agent", "--n", "3", "--verifier", "exec")
    assert {t.family for t in mixed.values()} == {"mbpp"}


def test_order_is_drawn_by_the_seed_and_repeats(bench: Bench) -> None:
    ids = [list(bench.roll("--env", "gsm8k", "--n", "3", "--seed", seed)[0]) for seed in ("1", "1", "2")]
    assert ids[0] == ids[1] != ids[2]


def test_rl_learns_from_a_set_that_may_be_trained_on_and_refuses_one_that_may_not(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    _, rolled = bench.roll("--env", "mbpp", "--n", "3", "--set", "roll.prompts=2")
    code, said, error = bench.call("rl", "--base", bench.base, "--traj", rolled, "--json", "--rounds", "3", "--set",
                                   "rl.truncation_limit=1", "--set", "roll.prompts=2", *SETTINGS)
    assert code == 0 and json.loads(said)["rounds"] == 3 and "every round draws from those of the stored round again" in error
    _, rolled = bench.roll("--env", "humaneval", "--n", "2")
    code, _, error = bench.call("rl", "--base", bench.base, "--traj", rolled, "--set", "rl.truncation_limit=1", *SETTINGS)
    assert code == 1 and "evaluation only" in error


def test_without_a_tasks_directory_a_public_set_is_refused_with_what_to_name(tmp_path: Path) -> None:
    bare = Bench(tmp_path, None)
    for name in ("repair", "mbpp,gcd"):
        code, _, error = bare.call("roll", "--base", bare.base, "--env", name)
        assert code == 1 and "--tasks-dir" in error and "DORMOUSE_TASKS_DIR" in error and "Traceback" not in error
    for folder, said in ((tmp_path / "nowhere", "is not a folder"), (tmp_path, "no task file humanevalfix/tasks.jsonl.gz")):
        code, _, error = bare.call("roll", "--base", bare.base, "--env", "repair", "--tasks-dir", str(folder))
        assert code == 1 and said in error
    code, _, error = bare.call("roll", "--base", bare.base, "--env", "mpbb")
    assert code == 1 and "mbpp" in error and "no environment" in error


def test_more_tasks_than_a_set_holds_are_refused_not_repeated(bench: Bench) -> None:
    code, _, error = bench.call("roll", "--base", bench.base, "--env", "repair", "--n", "200")
    assert code == 1 and "only 110 distinct tasks of the 200" in error


# --- a folder of one's own: repositories too


def test_a_folder_of_own_tasks_rolls_and_a_repository_is_judged_by_its_hidden_tests(tmp_path: Path,
                                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    rows = [shop.ROW | {"files": shop.TREE}, {"id": "sum", "question": "How much is 17 + 4?", "answer": 21},
            shop.ROW | {"files": {"shop/price.py": "nothing"}, "instance_id": "broken"}]
    (folder / "mine.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    script(monkeypatch, lambda task: task.reference)
    bare = Bench(tmp_path, None)
    tasks, rolled = bare.roll("--env", str(folder), "--n", "2")
    assert sorted(t.verifier for t in tasks.values()) == ["exact", "repo"]
    assert {v.verdict for v in bare.verdicts(rolled)} == {VerdictClass.PASS}
    episodes = stage.load(bare.store, bare.store.open(Path(rolled)))
    assert {unescape(t.steps[0].action_bytes) for t in episodes if t.verifier_kind == "repo"} == {shop.ROW["patch"].encode()}
    script(monkeypatch, lambda task: (b"no patch",))
    _, rolled = bare.roll("--env", str(folder), "--n", "2", "--seed", "5")
    assert VerdictClass.PASS not in {v.verdict for v in bare.verdicts(rolled)}
