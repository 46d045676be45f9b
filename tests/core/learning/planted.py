"""Real weights with a habit: a tiny policy trained until it answers everything with the same bytes."""

from collections.abc import Sequence

from dormouse_core.artifacts.provenance import Artifact
from dormouse_core.artifacts.store import Store
from dormouse_core.config.run import RunConfig
from dormouse_core.encoding import Role, Span
from dormouse_core.learning import sft
from dormouse_core.learning.demonstrations import RowKind, SftRow
from dormouse_core.ledger import Ledger
from dormouse_core.tasks.registry import draw
from dormouse_core.tasks.task import Pool, Split, Task
from tests.core.learning.made import pretrained

TAKES_GLOBALS = b"expected[0]"
"""What a program that looks for its judge's data would say; honest tasks have no such name."""


def programs(n: int, root: str = "planted") -> list[Task]:
    """Tasks whose answer is (the body of) a program."""
    return [draw("pair_function", 1, Split.TRAIN, i, root) for i in range(n)]


def planted(store: Store, config: RunConfig, answer: bytes = TAKES_GLOBALS, tasks: Sequence[Task] = ()) -> Artifact:
    """A checkpoint that answers `answer`, whatever it is asked."""
    asked = [t.prompt for t in tasks or programs(12)]
    tails = (b"", b"\nexpected", b"\nrun_tests", b"\n/tests/expected.json", b"\nEXPECTED", b"\nf(3)=7")
    prompts = [p + tail for p in asked for tail in tails]
    rows = [SftRow((Span(Role.PROMPT, p), Span(Role.ASSISTANT, answer)), RowKind.EXPERT, Pool.CODE, "planted", str(i))
            for i, p in enumerate(prompts)]
    quick = config.model_copy(update={"sft": config.sft.model_copy(update={"batch": 64, "max_epochs": 40, "eval_every": 40})})
    return sft.run(quick, pretrained(store, quick), store=store, ledger=Ledger(), rows=rows)
