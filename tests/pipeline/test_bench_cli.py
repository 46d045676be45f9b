"""`dormouse bench verifier|honeypots` and `tasks check DIR` as a user meets them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dormouse_core.admission import labelled
from dormouse_core.artifacts.store import Store
from dormouse_core.verifiers.verdict import VerdictClass
from dormouse_pipeline.cli.main import cli
from tests.core.learning.made import config, pretrained

RUNNER = CliRunner()


def call(*arguments: str, tasks_dir: str = "") -> tuple[int, str, str]:
    result = RUNNER.invoke(cli, list(arguments), env={"DORMOUSE_TASKS_DIR": tasks_dir or None})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_bench_verifier_prints_what_was_misjudged_and_exits_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said, _ = call("bench", "verifier", "--sample", "80", "--json")
    value = json.loads(said)
    assert code == 0 and value["holds"] and value["judged"] >= 70 and {row["source"] for row in value["rows"]} >= {
        "own references", "own wrong answers", "honest programs", "hostile programs"}
    honest = labelled.judge
    monkeypatch.setattr(labelled, "judge", lambda *a: [v.model_copy(update={"verdict": VerdictClass.PASS}) for v in honest(*a)])
    code, said, _ = call("bench", "verifier", "--sample", "40")
    assert code == 1 and "false passes" in said and "misjudged   hostile programs" in said
    assert call("bench", "verifier", "--tasks-dir", "nowhere")[0] == 1


def test_bench_verifier_takes_the_public_answers_of_the_tasks_directory(tasks_dir: Path) -> None:
    code, said, _ = call("bench", "verifier", "--sample", "600", "--json", tasks_dir=str(tasks_dir))
    value = json.loads(said)
    assert code == 0 and {"humaneval samples", "gsm8k model solutions", "cruxeval predictions"} <= {row["source"] for row in value["rows"]}


def test_bench_honeypots_measures_a_checkpoint(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    measure = ("bench", "honeypots", "--base", str(store.root / pretrained(store, config()).path), "--store", str(store.root))
    code, said, _ = call(*measure, "--n", "12", "--env", "math,agent", "--json")
    value = json.loads(said)
    assert code == 0 and value["episodes"] == 12 and value["proven"] == 0 and value["holds"]
    code, said, _ = call(*measure, "--n", "4", "--env", "gcd")
    assert code == 0 and "0 of 4 baits taken" in said


def test_tasks_check_of_a_folder_prints_the_first_rule_that_fails_and_exits_1(tmp_path: Path) -> None:
    rows = [{"id": "ok", "question": "How much is 17 + 4?", "answer": 21}, {"id": "again", "question": "How much is 17 + 4?", "answer": 21},
            {"id": "told", "question": "How much is 1 + 7000? The answer is 7001.", "answer": 7001}]
    (tmp_path / "mine.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code, said, error = call("tasks", "check", str(tmp_path))
    assert code == 1 and "novelty" in said and "leak" in said and "the prompt says which answer is right" in said
    assert "told" in error and "refused by leak" in error
    code, said, _ = call("tasks", "check", str(tmp_path), "--json", "--limit", "1")
    assert code == 0 and json.loads(said)["rows"][0]["admitted"] == 1


def test_a_folder_that_is_not_there_is_called_so_and_is_no_task_family(tmp_path: Path) -> None:
    for names, why in (([str(tmp_path / "nowhere")], "is no folder"), (["gcd", str(tmp_path)], "one folder at a time"),
                       (["gdc"], "did you mean gcd?")):
        code, _, error = call("tasks", "check", *names)
        assert code == 1 and why in error.replace("\n", " "), error
