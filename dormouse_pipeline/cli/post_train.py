"""`dormouse post-train sft|roll|verify|rl|eval`: one stage of the loop on files, by the same stage functions.

The configuration of a stage is the one inside its base checkpoint unless --preset names another; --set and the typed flags go on top.
"""

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dormouse_core.ledger import DormouseError
from dormouse_pipeline.cli.options import AsJson, Out, Seed, Sets, StorePath, chosen_store, emit, follow, grid, opened, out, resumable
from dormouse_pipeline.cli.stages import Done, call
from dormouse_pipeline.cli.verdicts import verdict_rows, verdict_table

if TYPE_CHECKING:
    from dormouse_core.artifacts.provenance import Artifact
    from dormouse_core.artifacts.store import Store
    from dormouse_core.config.run import RunConfig

group = typer.Typer(name="post-train", no_args_is_help=True, help="Single stages on files: SFT, rollouts, verification, RL, evaluation.")
AGAIN = "The same command goes on where it stopped."

Base = Annotated[Path, typer.Option("--base", help="Checkpoint to start from (.bin).", show_default=False)]
Traj = Annotated[Path, typer.Option("--traj", help="Rollouts file (.json), or its verdicts (.parquet).", show_default=False)]
Preset = Annotated[str | None, typer.Option("--preset", help="Settings of this preset instead of the checkpoint's own (its policy stays).",
                                            show_default=False)]


class Kind(StrEnum):
    """Verifier kinds as the command line spells them."""

    EXEC = "exec"
    EXACT = "exact"
    ENVSTEP = "envstep"

    @property
    def stored(self) -> str:
        return "env_step" if self is Kind.ENVSTEP else self.value


class Advantage(StrEnum):
    FORK_REPLAY = "fork-replay"
    GROUP = "group"


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


class Mask(StrEnum):
    ASSISTANT = "assistant"
    ALL = "all"


@group.command("sft")
@resumable(AGAIN)
def sft(base: Base,
        mask: Annotated[Mask | None, typer.Option("--mask", help="Train on assistant spans only, or on every span.", show_default=False)] = None,
        epochs: Annotated[int | None, typer.Option("--epochs", help="At most this many.", min=1, show_default=False)] = None,
        lr: Annotated[float | None, typer.Option("--lr", help="Peak learning rate.", show_default=False)] = None,
        interleave_rl: Annotated[float | None, typer.Option("--interleave-rl", help="Share of RL updates that carry an SFT batch, written into "
                                                            "the checkpoint.", min=0.0, max=1.0, show_default=False)] = None,
        show_mask: Annotated[int, typer.Option("--show-mask", help="Print this many rows of each kind with their mask, and stop.", min=0)] = 0,
        preset: Preset = None, sets: Sets = [], seed: Seed = None, dest: Out = None, store: StorePath = None,  # noqa: B006
        json: AsJson = False) -> None:
    """Supervised fine-tuning on demonstrations of the suite's tasks, stopped when held-out rows no longer get better."""
    from dormouse_core.learning import sft as stage

    held = chosen_store(store)
    parent = opened(held, base, "checkpoint")
    config = follow(parent, held, preset, sets, seed, {
        "sft.mask": mask.value if mask else None, "sft.max_epochs": epochs, "sft.optimizer.lr": lr, "sft.interleave_rl": interleave_rl})
    if show_mask:
        _show_masks(config, show_mask)
        return
    done = call(held, "post-train sft", stage.run, config, parent, out=dest, quiet=json)
    state = held.read_checkpoint(done.artifact).state
    facts = {name: state[name] for name in ("step", "best_step", "best_loss", "ended", "rows", "heldout_rows", "target_bytes")}
    rows = [[int(point["step"]), point["heldout"], point.get("train", "")] for point in state["curve"]]
    emit(done.as_json() | facts | {"curve": state["curve"]}, json, lambda: _print(
        done, grid(f"SFT ended by {state['ended']}; best at step {state['best_step']}", ["step", "held-out nats/byte", "train"], rows)))


def _show_masks(config: "RunConfig", n: int) -> None:
    from dormouse_core.config.suite import load_suite
    from dormouse_core.encoding import render, show_mask
    from dormouse_core.learning.demonstrations import build_rows

    seen: Counter[tuple[str, str]] = Counter()
    for row in build_rows(config, load_suite(config.loop.suite), config.runtime.seed):
        seen[row.pool, row.kind] += 1
        if seen[row.pool, row.kind] <= n:
            stream, mask_L = render(row.segments, config.sft.mask == "all")
            out.print(f"{row.pool} {row.kind} {row.cell}\n{show_mask(stream, mask_L)}\n", markup=False)


@group.command("roll")
@resumable(AGAIN)
def roll(base: Base,
         env: Annotated[str, typer.Option("--env", help="Pool, pools (code,math), family, cell (gcd/d2), packaged suite, or SPEC.toml.",
                                          show_default=False)],
         n: Annotated[int, typer.Option("--n", help="Tasks; each is played roll.group_size times.", min=1)] = 16,
         max_steps: Annotated[int | None, typer.Option("--max-steps", help="Cap on a task's step limit.", min=1, show_default=False)] = None,
         temp: Annotated[float | None, typer.Option("--temp", help="Sampling temperature.", show_default=False)] = None,
         verifier: Annotated[Kind | None, typer.Option("--verifier", help="Only tasks this verifier judges.", show_default=False)] = None,
         fork: Annotated[bool | None, typer.Option("--fork/--no-fork", help="Also roll forks of multi-step episodes, or none.",
                                                   show_default=False)] = None,
         preset: Preset = None, sets: Sets = [], seed: Seed = None, dest: Out = None, store: StorePath = None,  # noqa: B006
         json: AsJson = False) -> None:
    """Roll training tasks from a checkpoint and store every trajectory."""
    from dormouse_core.rollouts import stage
    from dormouse_core.tasks.spec import load_spec, task_set

    held = chosen_store(store)
    parent = opened(held, base, "checkpoint")
    flags: dict[str, Any] = {"roll.temperature": temp}
    if fork is not None:
        flags |= {"rl.advantage": "fork-replay"} if fork else {"roll.fork_share": 0.0}
    config = follow(parent, held, preset, sets, seed, flags)
    tasks = task_set(load_spec(env), n, config, store=held, max_steps=max_steps, verifier=verifier.stored if verifier else None)
    done = call(held, "post-train roll", stage.run, config, tasks, parent, out=dest, quiet=json, cycle=f"roll-{tasks.identity[:12]}")
    made = held.read_record(done.artifact, stage.RolloutSet)
    facts = {"trajectories": made.trajectories, "forks": made.forks, "bytes": made.bytes, "shards": len(made.shards)}
    emit(done.as_json() | facts, json, lambda: _print(done, grid("rollouts", ["", "n"], [[k, v] for k, v in facts.items()])))


@group.command("verify")
@resumable(AGAIN)
def verify(traj: Traj,
           verifier: Annotated[Kind | None, typer.Option("--verifier", help="Refuse rollouts with tasks of another verifier.",
                                                         show_default=False)] = None,
           report: Annotated[Path | None, typer.Option("--report", help="Write the verdict table here (JSON).", show_default=False)] = None,
           preset: Annotated[str, typer.Option("--preset", help="Where the verifier's limits come from.")] = "nano",
           sets: Sets = [], dest: Out = None, store: StorePath = None, json: AsJson = False) -> None:  # noqa: B006
    """Judge stored rollouts. Rollouts never change; a changed verifier makes new verdicts of them."""
    from json import dumps

    held = chosen_store(store)
    rollouts = opened(held, traj, "rollouts")
    tasks = _tasks_of(held, rollouts)
    config = _config_of_policy(held, rollouts, preset, sets)
    if verifier:
        _require_kind(held, tasks, verifier)
    done = _judge(held, config, rollouts, tasks, dest, json)
    rows = verdict_rows(held, done.artifact)
    if report:
        report.write_text(dumps({"verdicts": done.artifact.identity, "rows": rows}, indent=1) + "\n")
    emit(done.as_json() | {"rows": rows}, json, lambda: _print(done, verdict_table(rows)))


@group.command("rl")
@resumable(AGAIN)
def rl(base: Base, traj: Traj,
       adv: Annotated[Advantage | None, typer.Option("--adv", help="Credit assignment.", show_default=False)] = None,
       clip: Annotated[float | None, typer.Option("--clip", help="Step-level ratio clip.", show_default=False)] = None,
       kl: Annotated[float | None, typer.Option("--kl", help="Weight of KL to the base; 0 is off.", show_default=False)] = None,
       lr: Annotated[float | None, typer.Option("--lr", help="Peak learning rate.", show_default=False)] = None,
       rounds: Annotated[int | None, typer.Option("--rounds", help="Rounds; the first is the stored one.", min=1, show_default=False)] = None,
       preset: Preset = None, sets: Sets = [], seed: Seed = None, dest: Out = None, store: StorePath = None,  # noqa: B006
       json: AsJson = False) -> None:
    """Learn from judged trajectories, then from further rounds rolled and judged from the weights as they change."""
    from dormouse_core.learning import rl as stage

    held = chosen_store(store)
    parent = opened(held, base, "checkpoint")
    config = follow(parent, held, preset, sets, seed, {
        "rl.advantage": adv.value if adv else None, "rl.clip": clip, "rl.kl": kl, "rl.optimizer.lr": lr, "rl.rounds": rounds})
    named = opened(held, traj, "rollouts", "verdicts")
    rollouts = named if named.kind.value == "rollouts" else _parent(held, named, "rollouts")
    tasks = _tasks_of(held, rollouts)
    verdicts = named if named.kind.value == "verdicts" else _judge(held, config, rollouts, tasks, None, json).artifact
    done = call(held, "post-train rl", stage.run, config, parent, rollouts, verdicts, tasks, out=dest, quiet=json,
                source=_source(config, rollouts, held))
    state = held.read_checkpoint(done.artifact).state
    shown = {k: v for k, v in state.items() if isinstance(v, int | float | str)}
    emit(done.as_json() | shown, json, lambda: _print(done, grid("RL", ["", ""], [[k, v] for k, v in shown.items()])))


@group.command("eval")
@resumable("Nothing is half-written; the same command starts the evaluation again.")
def evaluate(base: Base,
             suite: Annotated[str | None, typer.Option("--suite", help="Packaged suite or TOML file.", show_default=False)] = None,
             fresh_seed: Annotated[Switch, typer.Option("--fresh-seed", help="Score tasks whose seeds derive from this checkpoint.")] = Switch.ON,
             preset: Preset = None, sets: Sets = [], seed: Seed = None, dest: Out = None, store: StorePath = None,  # noqa: B006
             json: AsJson = False) -> None:
    """Score a checkpoint: pass@1 and pass@k with intervals, correct@budget, and the policies that bound the suite."""
    from dormouse_core.evaluation import evaluate as stage
    from dormouse_core.evaluation.report import EvalReport
    from dormouse_pipeline.cli.scores import split_tables

    held = chosen_store(store)
    parent = opened(held, base, "checkpoint")
    config = follow(parent, held, preset, sets, seed, {"eval.suite": suite})
    done = call(held, "post-train eval", stage.run, config, parent, out=dest, quiet=json, fresh=fresh_seed is Switch.ON)
    report = held.read_record(done.artifact, EvalReport)
    emit(done.as_json() | {"report": report.model_dump(mode="json")}, json, lambda: _print(done, *split_tables(report)))
    if report.verdict != "VALID":
        raise DormouseError(f"the evaluation is {report.verdict}. Its numbers are not to be trusted: check the suite with `dormouse tasks check`.")


def _print(done: Done, *tables: Any) -> None:
    for table in tables:
        out.print(table, markup=False)
        out.print()
    for line in done.lines():
        out.print(line, markup=False)


def _parent(store: "Store", artifact: "Artifact", role: str) -> "Artifact":
    link = next((p for p in artifact.provenance.parents if p.role == role), None)
    found = store.find(link.kind, link.identity) if link else None
    if found is None:
        raise DormouseError(f"the {role} that {artifact.path} was made from are not in the store {store.root}; name the store that holds them "
                            "with --store")
    return found


def _tasks_of(store: "Store", rollouts: "Artifact") -> "Artifact":
    return _parent(store, rollouts, "tasks")


def _config_of_policy(store: "Store", rollouts: "Artifact", preset: str, sets: list[str]) -> "RunConfig":
    from dormouse_pipeline.cli.options import resolved

    link = next((p for p in rollouts.provenance.parents if p.role == "policy"), None)
    policy = store.find(link.kind, link.identity) if link else None
    return follow(policy, store, None, sets, None) if policy else resolved(preset, sets)


def _require_kind(store: "Store", tasks: "Artifact", kind: Kind) -> None:
    others = Counter(v for v in store.read_table(tasks)["verifier"].to_pylist() if v != kind.stored)
    if others:
        raise DormouseError(f"--verifier {kind}: the rollouts also hold tasks of {', '.join(f'{k} ({n})' for k, n in others.items())}; leave the "
                            "flag out to judge each task by its own verifier, or roll with --verifier")


def _judge(store: "Store", config: "RunConfig", rollouts: "Artifact", tasks: "Artifact", dest: Path | None, quiet: bool) -> Done:
    from dormouse_core.rollouts import verify as stage

    return call(store, "post-train verify", stage.run, config, rollouts, tasks, out=dest, quiet=quiet)


def _source(config: "RunConfig", rollouts: "Artifact", store: "Store") -> Any:
    from dormouse_core.evolution.curriculum import suite_source
    from dormouse_core.rollouts.stage import RolloutSet

    return suite_source(config, store.read_record(rollouts, RolloutSet).cycle)
