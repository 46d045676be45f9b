"""What the checks at the loop's edges say of a stage's counters."""

from pathlib import Path

import pytest

from dormouse_core.artifacts.provenance import Artifact, Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.resolve import resolve
from dormouse_core.ledger import Ledger
from dormouse_pipeline.checks import Made, no_verdict_share


def made(root: Path, kind: Kind, counters: dict[str, int]) -> Made:
    provenance = Provenance(kind=kind, stage="test", config_sha256="c", code_version="v", seed=1, counters=counters)
    return Made(Artifact(kind=kind, identity="i", file_sha256="f", path="p", provenance=provenance), Store(root), Ledger(), resolve("tiny"))


@pytest.mark.parametrize(("kind", "counters", "passes"), [
    (Kind.VERDICTS, {"verdicts.pass": 40}, True), (Kind.VERDICTS, {"verdicts.pass": 20, "verdicts.undecided": 20}, False),
    (Kind.VERDICTS, {}, False), (Kind.CHECKPOINT, {"verdicts.fail": 20, "verdicts.verifier_error": 20}, False), (Kind.CHECKPOINT, {}, True),
], ids=["all judged", "half judged", "nothing judged", "rounds of RL half judged", "RL of the stored round alone"])  # fmt: skip
def test_a_stage_that_judges_passes_by_its_share_and_rl_without_rounds_of_its_own_judges_none(
    tmp_path: Path, kind: Kind, counters: dict[str, int], passes: bool
) -> None:
    assert no_verdict_share.judge(made(tmp_path, kind, counters)).passed is passes
