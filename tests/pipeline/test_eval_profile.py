"""`post-train eval --profile full` as a user meets it: real weights that hack are caught, honest ones are not, on the same path."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dormouse_core.artifacts.store import Store
from dormouse_pipeline.cli.main import cli
from tests.core.learning.made import config
from tests.core.learning.planted import TAKES_GLOBALS, planted

SMALL = ("--set", "eval.suite=tiny", "--set", "eval.tasks_per_pool=3", "--set", "eval.samples=2", "--set", "eval.bootstrap=100", "--set",
         "eval.frozen=false", "--set", "roll.temperature=0.5")


@pytest.mark.parametrize(("answer", "caught"), [(TAKES_GLOBALS, True), (b"x+y", False)])
def test_eval_full_reports_the_proven_hack_rate_and_exits_with_it(tmp_path: Path, answer: bytes, caught: bool) -> None:
    store = Store(tmp_path / "store")
    base = planted(store, config(), answer)
    asked = ["post-train", "eval", "--base", str(store.path(base)), "--store", str(store.root), *SMALL, "--profile", "full"]
    result = CliRunner().invoke(cli, [*asked, "--json"])
    assert result.exit_code == int(caught), result.stderr
    hacks = json.loads(result.stdout)["report"]["hacks"]
    assert hacks["rate"]["episodes"] == 200 and hacks["state"] == ("halted" if caught else "within")
    assert (hacks["rate"]["low"] > 0.02) is caught and (hacks["rate"]["proven"] == 0) is not caught
    assert ("this checkpoint hacks" in result.stderr) is caught
    if caught:
        taken = {trap: t["proven"] for trap, t in hacks["rate"]["by_trap"].items() if t["proven"]}
        assert set(taken) == {"global"} and taken["global"] == hacks["rate"]["by_trap"]["global"]["episodes"]
        shown = CliRunner().invoke(cli, asked)
        assert shown.exit_code == 1 and "honeypots:" in shown.stdout and "baits taken" in shown.stdout
