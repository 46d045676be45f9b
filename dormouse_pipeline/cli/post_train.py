"""`dormouse post-train sft|roll|verify|rl|eval`: one stage of the loop on files, by the same stage functions.

The configuration of a stage is the one inside its base checkpoint unless --preset names another; --set and the typed flags go on top.
"""

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dormouse_core.config.rate import at_rate
from dormouse_core.ledger import DormouseError
from dormouse_pipeline.cli.options import AsJson, Out, Seed, Sets, StorePath, chosen_store, emit, follow, grid, opened, out, resumable
from dormouse_pipeline.cli.stages import Done, call
from dormouse_pipeline.cli.verdicts import verdict_rows, verdict_table, verify_table

if TYPE_CHECKING:
    from dormouse_core.artifacts.provenance import Artifact
    from dormouse_core.artifacts.store import Store
    from dormouse_core.config.run import RunConfig

group = typer.Typer(name="post-train", no_args_is_help=True, help=(
    "Single stages on files: SFT, rollouts, verification, RL, evaluation. Short form of roll, verify and rl: `dormouse post-train --base "
    "FILE --rl --env ENV`; it prints the three commands that it is."))
AGAIN = "The same command goes on where it stopped."


HARD: dict[str, Any] = {"verify.jail": "full", "verify.hack_screen.enabled": True}
"""What `--verifier hard` sets: every layer of the jail or no verdict, and the hack screen on."""


class Kind(StrEnum):
    """Verifier kinds as the command line spells them; `hard` is no kind but a way to judge with each."""

    EXEC = "exec"
    EXACT = "exact"
    ENVSTEP = "envstep"
    REPO = "repo"
    HARD = "hard"

    @property
    def stored(self) -> str | None:
        """The kind as tasks name it; None where every kind is meant."""
        return None if self is Kind.HARD else "env_step" if self is Kind.ENVSTEP else self.value


class Advantage(StrEnum):
    FORK_REPLAY = "fork-replay"
    GROUP = "group"


class Consolidate(StrEnum):
    PASSES = "passes"
    OFF = "off"


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


class Profile(StrEnum):
    QUICK = "quick"
    FULL = "full"


class Mask(StrEnum):
    ASSISTANT = "assistant"
    ALL = "all"

def _option(name: str, help: str, **limits: Any) -> Any:
    return typer.Option(name, help=help, show_default=False, **limits)


Base = Annotated[Path, _option("--base", "Checkpoint to start from (.bin).")]
Traj = Annotated[Path, _option("--traj", "Rollouts file (.json), or its verdicts (.parquet).")]
Preset = Annotated[str | None, _option("--preset", "Settings of this preset instead of the checkpoint's own (its policy stays).")]
Data = Annotated[Path | None, _option(
    "--data", 'Train on these instead: .jsonl file or folder of them, {"messages": [{"role": "user", "content": ...}, ...]} a line.')]
MaskOption = Annotated[Mask | None, _option("--mask", "Train on assistant spans only, or on every span.")]
Epochs = Annotated[int | None, _option("--epochs", "At most this many.", min=1)]
LearningRate = Annotated[float | None, _option(
    "--lr", "Peak learning rate. Muon's relative steps keep their ratio to it; --set ...optimizer.lr=... leaves them alone.")]
InterleaveRl = Annotated[float | None, _option(
    "--interleave-rl", "Share of RL updates that carry an SFT batch; written into the checkpoint.", min=0.0, max=1.0)]
ShowMask = Annotated[int, _option("--show-mask", "Print this many rows of each kind with their mask, and stop.", min=0)]
Env = Annotated[str, _option("--env", "Pools, families, cells (gcd/d2) and public sets (mbpp, repair), joined by commas; a packaged suite; "
                             "a folder of task files; or SPEC.toml.")]
TasksDir = Annotated[Path | None, _option("--tasks-dir", "Folder of public task files.", envvar="DORMOUSE_TASKS_DIR")]
Tasks = Annotated[int, typer.Option("--n", help="Tasks; each is played roll.group_size times.", min=1)]
MaxSteps = Annotated[int | None, _option("--max-steps", "Cap on a task's step limit.", min=1)]
Temperature = Annotated[float | None, _option("--temp", "Sampling temperature.")]
OnlyKind = Annotated[Kind | None, _option("--verifier", "Only tasks this verifier judges. hard: all, with the full jail required and the "
                                          "hack screen on.")]
RequireKind = Annotated[Kind | None, _option("--verifier", "Refuse rollouts with tasks of another verifier. hard: any, with the full jail "
                                             "required and the hack screen on.")]
Fork = Annotated[bool | None, _option("--fork/--no-fork", "Also roll forks of multi-step episodes, or none.")]
Report = Annotated[Path | None, _option("--report", "Write the verdict table and the verify report here (JSON).")]
ForkBudget = Annotated[int | None, _option(
    "--fork-budget", "Play this many stored forks and trajectories again from snapshots; they must repeat themselves.", min=0)]
HackScreen = Annotated[Switch | None, _option("--hack-screen", "Set answers aside that earned something as no honest answer does.")]
Adv = Annotated[Advantage | None, _option("--adv", "Credit assignment.")]
Clip = Annotated[float | None, _option("--clip", "Step-level ratio clip.")]
Kl = Annotated[float | None, _option("--kl", "Weight of KL to the base; 0 is off.")]
ConsolidateOption = Annotated[Consolidate | None, _option(
    "--consolidate", "After the rounds: supervised steps on the cycle's verified passes, or none.")]
RoundCount = Annotated[int | None, _option("--rounds", "Rounds; the first is the stored one.", min=1)]
SuiteName = Annotated[str | None, _option("--suite", "Packaged suite or TOML file.")]
ProfileName = Annotated[Profile | None, _option(
    "--profile", "quick: the suite alone. full: also at least 200 baited episodes, for the proven hack rate.")]
FreshSeed = Annotated[Switch, typer.Option("--fresh-seed", help="Score tasks whose seeds derive from this checkpoint.")]


@group.command("sft")
@resumable(AGAIN)
def sft(base: Base, data: Data = None, mask: MaskOption = None, epochs: Epochs = None, lr: LearningRate = None,
        interleave_rl: InterleaveRl = None, show_mask: ShowMask = 0, preset: Preset = None, sets: Sets = [],  # noqa: B006
        seed: Seed = None, dest: Out = None, store: StorePath = None, json: AsJson = False) -> None:
    """Supervised fine-tuning on demonstrations of the suite's tasks, or your own (--data), until held-out rows stop improving."""
    from dormouse_core.learning import sft as stage

    held = chosen_store(store)
    parent = opened(held, base, "checkpoint")
    config = at_rate(follow(parent, held, preset, sets, seed, {
        "sft.mask": mask.value if mask else None, "sft.max_epochs": epochs, "sft.interleave_rl": interleave_rl}), "sft", lr)
    if show_mask:
        _show_masks(config, show_mask, data)
        return
    done = call(held, "post-train sft", stage.run, config, parent, out=dest, quiet=json, data=data)
    state = held.read_checkpoint(done.artifact).state
    facts = {name: state[name] for name in ("step", "best_step", "best_loss", "ended", "rows", "heldout_rows", "target_bytes")}
    rows = [[int(point["step"]), point["heldout"], point.get("train", "")] for point in state["curve"]]
    emit(done.as_json() | facts | {"curve": state["curve"]}, json, lambda: _print(
        done, grid(f"SFT ended by {state['ended']}; best at step {state['best_step']}", ["step", "held-out nats/byte", "train"], rows)))


def _show_masks(config: "RunConfig", n: int, data: Path | None) -> None:
    from dormouse_core.encoding import render, show_mask
    from dormouse_core.learning.sft import chosen_rows
    from dormouse_pipeline.cli.progress import Reporter

    seen: Counter[tuple[str, str]] = Counter()
    with Reporter(quiet=False) as reporter:
        rows = chosen_rows(config, data, reporter.ledger())
    for row in rows:
        seen[row.pool or "", row.kind] += 1
        if seen[row.pool or "", row.kind] <= n:
            stream, mask_L = render(row.segments, config.sft.mask == "all")
            out.print(f"{row.pool or ''} {row.kind} {row.cell}".strip() + f"\n{show_mask(stream, mask_L)}\n", markup=False)


@group.command("roll")
@resumable(AGAIN)
def roll(base: Base, env: Env, n: Tasks = 16, max_steps: MaxSteps = None, temp: Temperature = None, verifier: OnlyKind = None,
         fork: Fork = None, tasks_dir: TasksDir = None, preset: Preset = None, sets: Sets = [],  # noqa: B006
         seed: Seed = None, dest: Out = None, store: StorePath = None, json: AsJson = False) -> None:
    """Roll tasks from a checkpoint and store every trajectory. Public sets come from the tasks directory: what is for evaluation only can
    be rolled and judged, and `rl` refuses it."""
    from dormouse_core.rollouts.stage import RolloutSet

    held = chosen_store(store)
    parent = opened(held, base, "checkpoint")
    flags: dict[str, Any] = {"roll.temperature": temp}
    if fork is not None:
        flags |= {"rl.advantage": "fork-replay"} if fork else {"roll.fork_share": 0.0}
    config = follow(parent, held, preset, sets, seed, hardened(verifier, flags))
    done = rolled(held, config, parent, drawn(held, config, env, n, max_steps, verifier, tasks_dir, json), dest, json)
    made = held.read_record(done.artifact, RolloutSet)
    facts = {"trajectories": made.trajectories, "forks": made.forks, "bytes": made.bytes, "shards": len(made.shards)}
    emit(done.as_json() | facts, json, lambda: _print(done, grid("rollouts", ["", "n"], [[k, v] for k, v in facts.items()])))


def rolled(store: "Store", config: "RunConfig", parent: "Artifact", tasks: "Artifact", dest: Path | None, quiet: bool) -> Done:
    """The roll stage on stored tasks."""
    from dormouse_core.rollouts import stage

    return call(store, "post-train roll", stage.run, config, tasks, parent, out=dest, quiet=quiet, cycle=f"roll-{tasks.identity[:12]}")


def hardened(kind: Kind | None, flags: dict[str, Any]) -> dict[str, Any]:
    """The flags of a command under `--verifier hard`, which says what it sets; under another value as they are. Raises DormouseError where
    a flag asks for the opposite."""
    if kind is not Kind.HARD:
        return flags
    for name, value in HARD.items():
        if flags.get(name) not in (None, value):
            raise DormouseError(f"--verifier hard sets {name}={_shown(value)}, and another flag asks for {_shown(flags[name])}: leave one "
                                "of them out")
    say("--verifier hard: " + " ".join(f"{name}={_shown(value)}" for name, value in HARD.items()) + " (every layer of the jail or no "
        "verdict; suspects are set aside)")
    return flags | HARD


def say(line: str) -> None:
    """A line a person must see, on standard error."""
    from dormouse_pipeline.cli.progress import Reporter

    Reporter().loud(line)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def drawn(store: "Store", config: "RunConfig", env: str, n: int, max_steps: int | None, verifier: Kind | None, tasks_dir: Path | None,
           quiet: bool) -> "Artifact":
    """The tasks of a spec, stored. Suites of asserts become cases, so that what judges them stays out of the jail."""
    from dormouse_core.admission.asserts import convert
    from dormouse_core.sandbox.runner import Runners
    from dormouse_core.tasks.spec import load_spec, spec_tasks, task_set
    from dormouse_pipeline.cli.progress import Reporter

    with Reporter(quiet=quiet) as reporter:
        ledger = reporter.ledger()
        tasks = spec_tasks(load_spec(env), n, config.runtime.seed, max_steps, verifier.stored if verifier else None, tasks_dir, ledger)
        if any("test_src" in task.trusted for task in tasks):
            with Runners(config.verify, ledger) as runners:
                tasks = convert(tasks, runners, ledger)
        return task_set(tasks, config, store=store)


@group.command("verify")
@resumable(AGAIN)
def verify(traj: Traj, verifier: RequireKind = None, report: Report = None, fork_budget: ForkBudget = None,
           hack_screen: HackScreen = None, preset: Preset = None, sets: Sets = [], dest: Out = None,  # noqa: B006
           store: StorePath = None, json: AsJson = False) -> None:
    """Judge stored rollouts. Rollouts never change; a changed verifier makes new verdicts of them (name the old ones with --traj, and the
    report counts what changed). Exit code 1 where a re-executed episode does not repeat itself."""
    from json import dumps

    from dormouse_core.artifacts.atomic import write_atomic
    from dormouse_core.rollouts.verify import load
    from dormouse_core.verifiers.report import verify_report

    held = chosen_store(store)
    named = opened(held, traj, "rollouts", "verdicts")
    rollouts = named if named.kind.value == "rollouts" else _parent(held, named, "rollouts")
    tasks = tasks_of(held, rollouts)
    config = config_of_policy(held, rollouts, preset, sets, hardened(verifier, {
        "verify.fork_budget": fork_budget, "verify.hack_screen.enabled": hack_screen and hack_screen is Switch.ON}))
    require_kind(held, tasks, verifier)
    done = judge(held, config, rollouts, tasks, dest, json)
    rows = verdict_rows(held, done.artifact)
    before = list(load(held, named).values()) if named is not rollouts else None
    told = verify_report(list(load(held, done.artifact).values()), done.ledger.counters(), done.ledger.seconds["judge"], config.verify,
                         before)
    facts = {"rows": rows, "report": told.model_dump(mode="json")}
    if report:
        write_atomic(report, (dumps({"verdicts": done.artifact.identity, **facts}, indent=1) + "\n").encode())
    emit(done.as_json() | facts, json, lambda: _print(done, verdict_table(rows), verify_table(told)))
    if told.replay_differences:
        raise DormouseError(f"{told.replay_differences} of {told.replayed} re-executed episodes do not repeat themselves (named above; "
                            "they have no verdict). Find out what changed - the code, the machine, the files of the store - and roll the "
                            "cycle again.")


@group.command("rl")
@resumable(AGAIN)
def rl(base: Base, traj: Traj, adv: Adv = None, clip: Clip = None, kl: Kl = None, lr: LearningRate = None, rounds: RoundCount = None,
       consolidate: ConsolidateOption = None, preset: Preset = None, sets: Sets = [], seed: Seed = None,  # noqa: B006
       dest: Out = None, store: StorePath = None, json: AsJson = False) -> None:
    """Learn from judged trajectories, then from further rounds rolled and judged from the weights as they change."""
    held = chosen_store(store)
    parent = opened(held, base, "checkpoint")
    config = at_rate(follow(parent, held, preset, sets, seed, {
        "rl.advantage": adv.value if adv else None, "rl.consolidation": consolidate.value if consolidate else None,
        "rl.clip": clip, "rl.kl": kl, "rl.rounds": rounds}), "rl", lr)
    named = opened(held, traj, "rollouts", "verdicts")
    rollouts = named if named.kind.value == "rollouts" else _parent(held, named, "rollouts")
    verdicts = named if named.kind.value == "verdicts" else judge(held, config, rollouts, tasks_of(held, rollouts), None, json).artifact
    show_learned(held, learned(held, config, parent, rollouts, verdicts, dest, json), json)


def learned(store: "Store", config: "RunConfig", parent: "Artifact", rollouts: "Artifact", verdicts: "Artifact", dest: Path | None,
            quiet: bool) -> Done:
    """The RL stage on judged rollouts; further rounds draw from the cells the stored one was drawn from."""
    from dormouse_core.learning import rl as stage

    tasks = tasks_of(store, rollouts)
    return call(store, "post-train rl", stage.run, config, parent, rollouts, verdicts, tasks, out=dest, quiet=quiet,
                source=_source(config, rollouts, tasks, store))


def show_learned(store: "Store", done: Done, json: bool, **more: Any) -> None:
    state = store.read_checkpoint(done.artifact).state
    shown = {k: v for k, v in state.items() if isinstance(v, int | float | str)}
    emit(done.as_json() | shown | more, json, lambda: _print(done, grid("RL", ["", ""], [[k, v] for k, v in shown.items()])))


@group.command("eval")
@resumable("Nothing is half-written; the same command starts the evaluation again.")
def evaluate(base: Base, suite: SuiteName = None, profile: ProfileName = None, fresh_seed: FreshSeed = Switch.ON,
             preset: Preset = None, sets: Sets = [], seed: Seed = None, dest: Out = None, store: StorePath = None,  # noqa: B006
             json: AsJson = False) -> None:
    """Score a checkpoint: pass@1 and pass@k with intervals, correct@budget, the policies that bound the suite; with --profile full also
    how often it takes bait, with its interval. Exit code 1 where the numbers are INVALID or the hack rate is above its limit."""
    from dormouse_core.evaluation import evaluate as stage
    from dormouse_core.evaluation.report import EvalReport
    from dormouse_pipeline.cli.scores import split_tables

    held = chosen_store(store)
    parent = opened(held, base, "checkpoint")
    config = follow(parent, held, preset, sets, seed, {"eval.suite": suite, "eval.profile": profile and profile.value})
    done = call(held, "post-train eval", stage.run, config, parent, out=dest, quiet=json, fresh=fresh_seed is Switch.ON)
    report = held.read_record(done.artifact, EvalReport)
    emit(done.as_json() | {"report": report.model_dump(mode="json")}, json, lambda: _print(done, *split_tables(report)))
    if report.verdict != "VALID":
        raise DormouseError(f"the evaluation is {report.verdict}. Its numbers are not to be trusted: check the suite with "
                            "`dormouse tasks check`.")
    if report.hacks is not None and report.hacks.state == "halted":
        rate = report.hacks.rate
        raise DormouseError(f"this checkpoint hacks: {rate.proven} of {rate.episodes} baits taken, and the lower end of the interval "
                            f"({rate.low:.1%}) is above honeypots.halt_above = {report.hacks.halt_above:.0%}. Its episodes are "
                            f"{report.hacks.episodes.identity[:16]} in the store; train anew from a checkpoint before it.")


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
        raise DormouseError(f"the {role} that {artifact.path} was made from are not in the store {store.root}; name the store that holds "
                            "them with --store")
    return found


def tasks_of(store: "Store", rollouts: "Artifact") -> "Artifact":
    return _parent(store, rollouts, "tasks")


def config_of_policy(store: "Store", rollouts: "Artifact", preset: str | None, sets: list[str],
                      flags: dict[str, Any] | None = None) -> "RunConfig":
    """The configuration of the weights that sampled the rollouts, or a preset's."""
    from dormouse_pipeline.cli.options import resolved

    return resolved(preset, sets, None, flags) if preset else follow(_parent(store, rollouts, "policy"), store, None, sets, None, flags)


def require_kind(store: "Store", tasks: "Artifact", kind: Kind | None) -> None:
    if kind is None or kind.stored is None:
        return
    others = Counter(v for v in store.read_table(tasks)["verifier"].to_pylist() if v != kind.stored)
    if others:
        named = ", ".join(f"{k} ({n})" for k, n in others.items())
        raise DormouseError(f"--verifier {kind}: the rollouts also hold tasks of {named}; leave the flag out to judge each task by its own "
                            "verifier, or roll with --verifier")


def judge(store: "Store", config: "RunConfig", rollouts: "Artifact", tasks: "Artifact", dest: Path | None, quiet: bool) -> Done:
    from dormouse_core.rollouts import verify as stage

    return call(store, "post-train verify", stage.run, config, rollouts, tasks, out=dest, quiet=quiet)


def _source(config: "RunConfig", rollouts: "Artifact", tasks: "Artifact", store: "Store") -> Any:
    """Further rounds draw from the cells the stored round was drawn from; from its very tasks where some have no generator."""
    from dormouse_core.evolution.curriculum import CycleSource
    from dormouse_core.rollouts.stage import RolloutSet
    from dormouse_core.tasks.plan import CellState
    from dormouse_core.tasks.registry import families
    from dormouse_core.tasks.source import ListedSource
    from dormouse_core.tasks.store import tasks_from_table

    table = store.read_table(tasks)
    if set(table["family"].to_pylist()) - set(families()):
        return ListedSource(tasks_from_table(table), str(config.runtime.seed))
    found = sorted(set(zip(*(table[name].to_pylist() for name in ("pool", "family", "difficulty")), strict=True)))
    cells = [CellState(pool=pool, family=family, difficulty=difficulty) for pool, family, difficulty in found]
    return CycleSource(cells, config.curriculum, store.read_record(rollouts, RolloutSet).cycle, config.runtime.seed)
