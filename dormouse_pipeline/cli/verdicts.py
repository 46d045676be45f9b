"""Verdict tables: what `verify` and `smoke` print."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from dormouse_pipeline.cli.options import grid

if TYPE_CHECKING:
    from dormouse_core.artifacts.provenance import Artifact
    from dormouse_core.artifacts.store import Store
    from dormouse_core.verifiers.report import SmokeRow, VerifyReport


def verdict_rows(store: "Store", verdicts: "Artifact") -> list[dict[str, Any]]:
    """Verdicts counted by (verifier, class, who decided, isolation), commonest first."""
    from dormouse_core.verifiers.report import verdicts_from_table

    counts: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for v in verdicts_from_table(store.read_table(verdicts)):
        counts[v.kind.value, v.verdict.value, v.decided_by, v.isolation] += 1
    return [{"verifier": kind, "class": verdict, "decided_by": by, "isolation": isolation, "n": n}
            for (kind, verdict, by, isolation), n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def verdict_table(rows: Sequence[dict[str, Any]]) -> Table:
    return grid("verdicts", ["verifier", "class", "decided by", "isolation", "n"],
                [[r["verifier"], r["class"], r["decided_by"], r["isolation"], r["n"]] for r in rows])


def verify_table(report: "VerifyReport") -> Table:
    """What the verify stage says of itself, one fact a line."""
    shares = "  ".join(f"{name} {share:.3f}" for name, share in report.shares.items() if share)
    rows = [["verifier calls", ", ".join(f"{kind} {n}" for kind, n in report.verifier_kind.items())], ["shares", shares],
            ["a rollout", f"{report.seconds_per_rollout * 1e3:.2f} ms wall, {report.cpu_seconds_per_rollout * 1e3:.2f} ms CPU"],
            ["canaries", f"{report.canaries} judged, {report.canary_failures} batches voided"],
            ["re-executed", f"{report.replayed}/{report.fork_budget}, {report.replay_differences} do not repeat themselves"],
            ["hack screen", f"{report.hack_screen}, {report.screened} set aside"], ["layers", " ".join(report.layers) or "nothing was run"]]
    if report.before is not None:
        changed = ", ".join(f"{how} {n}" for how, n in report.before.changed.items()) or "none changed its class"
        rows.append(["before", f"{report.before.stale}/{report.before.verdicts} were stale; {changed}"])
    return grid("verify", ["", ""], rows)


def smoke_table(rows: "Sequence[SmokeRow]") -> Table:
    """One line a decision: task, candidate, class, cases, and who decided."""
    return grid("verifier decisions", ["task", "prompt", "candidate", "class", "cases", "decided by", "reason"],
                [[r.task, r.prompt, r.candidate, r.verdict, r.cases, r.decided_by, r.reason] for r in rows])
