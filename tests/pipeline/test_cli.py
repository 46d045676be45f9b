"""The command line as a user meets it: results, one-paragraph errors, exit codes, and what an interruption leaves."""

import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dormouse_core.artifacts.lock import StoreLock
from dormouse_core.artifacts.store import Store
from dormouse_core.config.optimizer import MuonRow
from dormouse_pipeline import lineage
from dormouse_pipeline.cli.main import cli
from dormouse_pipeline.instance import Project, project_instance
from dormouse_pipeline.jobs import CYCLE
from tests.pipeline.conftest import SETS, Line, dormouse, environment

RUNNER = CliRunner()


def call(*arguments: str) -> tuple[int, str, str]:
    """The command line in this process."""
    result = RUNNER.invoke(cli, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def checkpoint(line: Line, asset: str = "sft_checkpoint") -> str:
    with project_instance(line.project) as instance:
        made = lineage.latest(instance, asset, None if asset != "rl_checkpoint" else "main.c0000")
    assert made
    return str(line.project.store / made.artifact.path)


def flat(text: str) -> str:
    return re.sub(r"[\s│]+", " ", text)


# ---- results ------------------------------------------------------------------------------------------------------------


def test_lineage_prints_the_chain_and_the_runs_that_recorded_it(line: Line) -> None:
    code, said, _ = call("lineage", checkpoint(line, "rl_checkpoint"), "--store", str(line.project.store))
    assert code == 0
    for part in ("by rl_checkpoint", "verdicts:", "rollouts:", "tasks:", "by sft_checkpoint", "by pretrained_checkpoint"):
        assert part in said, part


def test_lineage_as_json_names_every_artifact_and_run(line: Line) -> None:
    result = dormouse("lineage", checkpoint(line, "rl_checkpoint"), "--json", cwd=line.root)
    value = json.loads(result.stdout)
    assert value["complete"] and result.returncode == 0
    root = next(a for a in value["artifacts"] if a["identity"] == value["root"])
    assert [r["asset"] for r in root["recorded"]] == ["rl_checkpoint"] and root["recorded"][0]["cycle"] == "main.c0000"


def test_lineage_with_a_lost_parent_says_incomplete_and_fails(line: Line) -> None:
    lost = Path(checkpoint(line, "pretrained_checkpoint"))
    kept = lost.read_bytes()
    try:
        lost.unlink()
        code, said, _ = call("lineage", checkpoint(line, "rl_checkpoint"), "--store", str(line.project.store))
        assert code == 1 and "MISSING" in said and "INCOMPLETE" in said
    finally:
        lost.write_bytes(kept)


def test_the_loop_run_again_prints_tables_curve_and_the_next_command(line: Line) -> None:
    arguments = [part for item in [*SETS, "loop.line=main"] for part in ("--set", item)]
    result = dormouse("loop", "--preset", "tiny", "--cycles", "2", *arguments, cwd=line.root)
    assert result.returncode == 0, result.stderr
    for part in ("main.c0001", "seconds inside each stage", "verdicts of all rollouts", "promoted", "dormouse lineage"):
        assert part in result.stdout
    assert (line.project.store / "curve-main.png").read_bytes()[:4] == b"\x89PNG"
    assert "main.c0001: already complete" in result.stderr


def test_a_loop_whose_store_lost_what_its_event_log_counts_as_done_is_refused_with_both_folders_named(line: Line) -> None:
    store, aside = line.project.store, line.root / "aside"
    arguments = [part for item in [*SETS, "loop.line=main"] for part in ("--set", item)]
    store.rename(aside)
    try:
        result = dormouse("loop", "--preset", "tiny", "--cycles", "2", *arguments, cwd=line.root)
        assert result.returncode == 1 and "already complete" not in result.stderr
        said = flat(result.stderr)
        assert "no longer holds cycle_plan" in said and str(store) in said and str(line.project.home) in said and "Traceback" not in said
    finally:
        shutil.rmtree(store, ignore_errors=True)
        aside.rename(store)


def test_an_exported_checkpoint_answers_a_prompt_and_a_training_checkpoint_is_refused_with_the_converting_command(
        line: Line, tmp_path: Path) -> None:
    out = str(tmp_path / "policy.safetensors")
    code, said, _ = call("decode", checkpoint(line), "--prompt", "1+2")
    assert code == 1 and not said
    _, _, error = call("decode", checkpoint(line), "--prompt", "1+2")
    assert f"dormouse export {checkpoint(line)} --out" in flat(error)
    assert call("serve", checkpoint(line))[0] == 1
    code, said, _ = call("export", checkpoint(line), "--out", out, "--json", "--store", str(line.project.store))
    assert code == 0 and json.loads(said)["dtype"] == "bf16"
    code, said, _ = call("decode", out, "--prompt", "1+2", "--max-bytes", "8", "--n", "3", "--temp", "1", "--json")
    answers = json.loads(said)["answers"]
    assert code == 0 and len(answers) == 3 and all(a["bytes"] <= 8 and a["log_prob"] < 0 for a in answers)
    code, said, _ = call("lineage", out, "--store", str(line.project.store))
    assert code == 0 and "checkpoint:" in said and "by pretrained_checkpoint" in said


def test_model_prints_the_counts_of_a_preset() -> None:
    code, said, _ = call("model", "--preset", "tiny", "--json")
    counts = json.loads(said)["counts"]
    assert code == 0 and 0 < counts["active"] <= counts["total"] <= 50_000


def test_model_prints_the_memory_of_a_stage_and_refuses_what_does_not_fit_with_what_would() -> None:
    code, said, _ = call("model", "--preset", "b1", "--stage", "rl", "--device-gib", "16", "--json")
    memory = json.loads(said)["memory"]
    assert code == 0 and memory["peak"] < 16 * 2**30 and {"weights", "fp32 masters"} <= {i["name"] for i in memory["items"]}
    code, said, error = call("model", "--preset", "b1", "--stage", "sft", "--device-gib", "12")
    assert code == 1 and not said and "frozen experts and tables" in error and "--set sft.optimizer.experts.kind=frozen" in error
    code, said, _ = call("model", "--preset", "b1", "--stage", "rl", "--device-gib", "16")
    assert code == 0 and "1,065,407,140" in said and "57,073,412" in said and "peak" in said


def test_bench_threads_suggests_the_best_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dormouse_core.learning.throughput.candidates", lambda cores: [(1, 1), (1, 2)])
    code, said, _ = call("bench", "threads", "--preset", "tiny", "--repeats", "1", "--json")
    value = json.loads(said)
    best = max(value["rows"], key=lambda row: row["joint"])
    assert code == 0 and value["best"] == {"workers": best["workers"], "threads": best["threads"]} and len(value["rows"]) == 2
    assert value["settings"] == [f"roll.workers={best['workers']}", f"runtime.threads={best['threads']}"]


@pytest.mark.parametrize("command", [
    ("smoke", "--n", "1"), ("train", "--preset", "tiny"), ("lineage", "none.bin"), ("loop", "--preset", "tiny")])
def test_a_file_in_the_place_of_the_store_is_refused_before_anything_is_done(tmp_path: Path, command: tuple[str, ...]) -> None:
    place = tmp_path / "store"
    place.write_text("mine")
    code, _, error = call(*command, "--store", str(place))
    assert code == 1 and str(place) in error.replace("\n", "") and place.read_text() == "mine"


def test_smoke_attributes_every_decision(tmp_path: Path) -> None:
    code, said, _ = call("smoke", "--n", "4", "--json", "--store", str(tmp_path))
    value = json.loads(said)
    assert code == 0 and value["misjudged"] == 0 and value["canary_failures"] == 0 and len(value["rows"]) == 12
    assert all(row["decided_by"] and row["verdict"] and row["task"] for row in value["rows"])
    executed = [row for row in value["rows"] if row["isolation"] != "none"]
    assert executed and all(row["layers"] for row in executed)


def test_tasks_list_show_and_check() -> None:
    code, said, _ = call("tasks", "list", "--json", "--pool", "code")
    assert code == 0 and {card["pool"] for card in json.loads(said)} == {"code"}
    code, said, _ = call("tasks", "show", "gcd", "-d", "2", "--json")
    assert code == 0 and json.loads(said)[0]["cell"] == "gcd/d2"
    code, said, _ = call("tasks", "check", "sum_of_terms", "--per-cell", "1", "--json")
    assert code == 0 and json.loads(said)["holds"]


def test_stage_commands_on_files_go_from_a_base_to_a_scored_checkpoint(line: Line, tmp_path: Path) -> None:
    store, base = ("--store", str(tmp_path / "store")), tmp_path / "sft.bin"
    base.write_bytes(Path(checkpoint(line)).read_bytes())
    rolled, judged, learned = (str(tmp_path / name) for name in ("rolled.json", "judged.parquet", "learned.bin"))
    code, said, _ = call("post-train", "roll", "--base", str(base), "--env", "math,agent", "--n", "4", "--out", rolled, "--json", *store)
    assert code == 0 and json.loads(said)["trajectories"] >= 16
    code, said, _ = call("post-train", "verify", "--traj", rolled, "--out", judged, "--report", str(tmp_path / "v.json"), "--json", *store)
    rows = json.loads(said)["rows"]
    assert code == 0 and sum(row["n"] for row in rows) >= 16 and json.loads((tmp_path / "v.json").read_text())["rows"] == rows
    code, said, _ = call("post-train", "rl", "--base", str(base), "--traj", judged, "--adv", "group", "--rounds", "2", "--out", learned,
                         "--json", *store)
    assert code == 0 and json.loads(said)["rounds"] == 2
    code, said, _ = call("post-train", "eval", "--base", learned, "--set", "eval.tasks_per_pool=8", "--json", *store)
    assert code in (0, 1) and {s["split"] for s in json.loads(said)["report"]["splits"]} == {"fresh", "frozen"}


def test_the_short_form_is_the_three_commands_it_prints(line: Line, tmp_path: Path) -> None:
    """Run as printed, in a store of their own, they give the same checkpoint."""
    base = tmp_path / "sft.bin"
    base.write_bytes(Path(checkpoint(line)).read_bytes())
    short, long = str(tmp_path / "short"), str(tmp_path / "long")
    code, said, error = call("post-train", "--base", str(base), "--rl", "--env", "code", "--n", "2", "--verifier", "hard", "--rounds", "2",
                             "--set", "rl.consolidation=off", "--seed", "5", "--out", str(tmp_path / "rl.bin"), "--store", short, "--json")
    told = json.loads(said)
    assert code == 0 and told["rounds"] == 2 and (tmp_path / "rl.bin").is_file()
    assert "! --verifier hard: verify.jail=full verify.hack_screen.enabled=true" in flat(error)
    assert [line in flat(error) for line in told["commands"]] == [True] * 3
    for command in told["commands"]:
        code, again, _ = call(*shlex.split(command.replace(short, long))[1:], "--json")
        assert code == 0
    assert json.loads(again)["identity"] == told["identity"]


@pytest.mark.parametrize(("arguments", "why"), [
    (("--rl", "--env", "code"), "--base FILE --rl --env ENV"), (("--base", "x.bin", "--env", "code"), "--base FILE --rl --env ENV"),
    (("--base", "x.bin", "--rl", "--env", "code", "roll"), "options of the short form stand before `roll`")])
def test_a_short_form_that_lacks_something_says_what_it_is(arguments: tuple[str, ...], why: str) -> None:
    code, said, error = call("post-train", *arguments)
    assert code == 1 and why in flat(error) and not said


def test_show_mask_marks_assistant_bytes_alone(line: Line) -> None:
    code, said, _ = call("post-train", "sft", "--base", checkpoint(line), "--show-mask", "1", "--store", str(line.project.store))
    assert code == 0 and said.count("^") > 0
    for stream, marks in re.findall(r"^(\\x02.*)\n([ ^]+)$", said, re.M):
        first = marks.index("^")
        assert stream[:first].endswith("\\x03")


def test_lr_lowers_the_step_of_muons_groups_too(line: Line, tmp_path: Path) -> None:
    small = (f"sft.optimizer.{key}" for key in ("experts=muon", "experts.relative_step=1e-2", "lr=1e-3"))
    sets = [part for key in (*small, "sft.rows_per_pool=8") for part in ("--set", key)]
    code, said, _ = call("post-train", "sft", "--base", checkpoint(line), *sets, "--epochs", "1", "--lr", "1e-4", "--json", "--store",
                         str(tmp_path))
    assert code == 0
    store = Store(tmp_path)
    optimizer = store.read_checkpoint(store.open(Path(json.loads(said)["path"]))).config.sft.optimizer
    assert optimizer.lr == 1e-4
    assert isinstance(optimizer.experts, MuonRow) and optimizer.experts.relative_step == pytest.approx(1e-3)


# ---- bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "said"), [
    (("loop", "--preset", "nanoo"), "did you mean nano"),
    (("loop", "--preset", "tiny", "--set", "rl.klip=1"), "did you mean rl.clip"),
    (("train", "--preset", "tiny", "--set", "train.steps=-1"), "train.steps"),
    (("post-train", "roll", "--base", "nowhere.bin", "--env", "code"), "cannot read nowhere.bin"),
    (("lineage", "nowhere.bin"), "cannot read nowhere.bin"),
    (("tasks", "show", "gdc"), "did you mean gcd"),
    (("post-train", "eval", "--base", "text.bin"), "text.bin"),
    (("model", "--set", "policy.n_heads=2"), "must equal d_model"),
    (("loop", "--preset", "tiny", "--store", "text.bin"), "could not write"),
    (("tasks", "check", "--per-cell", "1", "--tasks-dir", "nowhere"), "nowhere is not a folder"),
])
def test_bad_input_is_one_paragraph_with_a_way_out_and_exit_code_1(arguments: tuple[str, ...], said: str, tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.bin").write_text("this is no checkpoint")
    code, _, error = call(*arguments)
    assert code == 1 and error.startswith("dormouse: ") and said in error
    assert "Traceback" not in error and "\n\n" not in error


@pytest.mark.parametrize("arguments", [("loop", "--cycles", "0"), ("loop", "--nonsense"), ("post-train", "rl"), ("nonsense",),
                                       ("post-train", "rl", "--base", "a", "--traj", "b", "--adv", "learned")])
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert call(*arguments)[0] == 2


def test_a_truncated_checkpoint_is_refused_by_every_command_that_takes_one(line: Line, tmp_path: Path) -> None:
    short = tmp_path / "short.bin"
    short.write_bytes(Path(checkpoint(line)).read_bytes()[:-100])
    store = ("--store", str(tmp_path / "s"))
    for arguments in (("post-train", "eval"), ("post-train", "roll", "--env", "code"), ("post-train", "sft")):
        code, _, error = call(*arguments, "--base", str(short), *store)
        assert code == 1 and "truncated" in error, arguments
    for command in (("decode", str(short), "--prompt", "x"), ("export", str(short), "--out", str(tmp_path / "f"), *store)):
        code, _, error = call(*command)
        assert code == 1 and "truncated" in error, command


def test_rollouts_of_another_policy_are_refused(line: Line, tmp_path: Path) -> None:
    store = ("--store", str(line.project.store))
    rolled = str(tmp_path / "rolled.json")
    assert call("post-train", "roll", "--base", checkpoint(line), "--env", "math", "--n", "2", "--out", rolled, *store)[0] == 0
    code, _, error = call("post-train", "rl", "--base", checkpoint(line, "pretrained_checkpoint"), "--traj", rolled, *store)
    assert code == 1 and "another policy" in error


def test_a_report_that_cannot_be_written_is_one_paragraph_and_leaves_the_verdicts(line: Line, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    rolled, store = str(tmp_path / "rolled.json"), ("--store", str(tmp_path / "store"))
    assert call("post-train", "roll", "--base", checkpoint(line), "--env", "math", "--n", "2", "--out", rolled, *store)[0] == 0
    code, _, error = call("post-train", "verify", "--traj", rolled, "--report", str(tmp_path / "file" / "v.json"), *store)
    assert code == 1 and "could not write" in error and "v.json" in error
    assert len(list((tmp_path / "store" / "verdicts").glob("*.parquet"))) == 1


def test_a_file_that_the_system_refuses_is_one_paragraph(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "tasks")

    monkeypatch.setattr("dormouse_core.tasks.registry.cards", refuse)
    code, _, error = call("tasks", "list")
    assert code == 1 and error.startswith("dormouse: the system refused a file") and os.strerror(errno.EMFILE) in error


def test_a_file_of_the_wrong_kind_is_named(line: Line) -> None:
    code, _, error = call("post-train", "verify", "--traj", checkpoint(line), "--store", str(line.project.store))
    assert code == 1 and "is of kind checkpoint" in error


# ---- one writer, and what an interruption leaves ----------------------------------------------------------------------------


def test_a_second_loop_on_the_same_store_is_refused_and_names_the_first(line: Line) -> None:
    with StoreLock(line.project.store, "dormouse loop"):
        result = dormouse("loop", "--preset", "tiny", cwd=line.root)
    assert result.returncode == 1 and f"pid {os.getpid()}" in result.stderr and "--store" in result.stderr


def _loop(root: Path, *more: str) -> "subprocess.Popen[str]":
    arguments = [part for item in [*SETS, "loop.line=main", *more] for part in ("--set", item)]
    command = [sys.executable, "-m", "dormouse_pipeline.cli.main", "loop", "--preset", "tiny", "--cycles", "1", *arguments]
    return subprocess.Popen(command, cwd=root, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)


def _wait_for(folder: Path, pattern: str, child: "subprocess.Popen[str]", seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not any(folder.glob(pattern)):
        assert child.poll() is None, child.communicate()[1]
        assert time.monotonic() < deadline, f"{pattern} never appeared"
        time.sleep(0.02)


def _identities(project: Project) -> dict[str, str]:
    with project_instance(project) as instance:
        made = {asset: lineage.latest(instance, asset, "main.c0000") for asset in CYCLE}
    assert all(made.values()), [name for name, m in made.items() if m is None]
    return {name: m.artifact.identity for name, m in made.items() if m}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_loop_stopped_inside_rl_resumes_to_the_same_artifacts(line: Line, project: Project, tmp_path: Path, sent: signal.Signals) -> None:
    child = _loop(tmp_path)
    _wait_for(project.store / "journal", "rl_checkpoint-*.jsonl", child)
    if sent is signal.SIGINT:
        os.killpg(child.pid, sent)  # as a terminal sends Ctrl-C: to every process of the command
    else:
        child.send_signal(sent)
    _, said = child.communicate(timeout=120)
    assert child.returncode == (-signal.SIGKILL if sent is signal.SIGKILL else 130), said
    if sent is signal.SIGINT:
        assert "goes on where it stopped" in said and "Traceback" not in said
    again = _loop(tmp_path)
    _, said = again.communicate(timeout=300)
    assert again.returncode == 0, said
    assert "going on at rl_checkpoint" in flat(said) or "going on at failure_memory" in flat(said)
    assert _identities(project) == _identities(line.project)
