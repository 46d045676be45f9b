"""`dormouse post-train --base F --rl --env E`: roll, verify and rl in one line. It prints the three commands that it is.

Each of them is run as that command runs, so the printed lines give the same artifacts again, and one of them can be changed.
"""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from dormouse_core.ledger import DormouseError
from dormouse_pipeline.cli.options import AsJson, Out, Seed, Sets, StorePath, chosen_store, follow, opened, resumable
from dormouse_pipeline.cli.post_train import (
    AGAIN,
    HARD,
    Kind,
    MaxSteps,
    OnlyKind,
    Preset,
    RoundCount,
    TasksDir,
    config_of_policy,
    drawn,
    hardened,
    judge,
    learned,
    require_kind,
    rolled,
    say,
    show_learned,
    tasks_of,
)

Base = Annotated[Path | None, typer.Option("--base", help="Short form: checkpoint to start from (.bin).", show_default=False)]
Rl = Annotated[bool, typer.Option("--rl", help="Short form: roll, verify and rl, one after the other.", show_default=False)]
Env = Annotated[str | None, typer.Option("--env", help="Short form: what `post-train roll --env` takes.", show_default=False)]
Tasks = Annotated[int, typer.Option("--n", help="Short form: tasks; each is played roll.group_size times.", min=1)]


@resumable(AGAIN)
def short_form(ctx: typer.Context, base: Base = None, rl: Rl = False, env: Env = None, n: Tasks = 16, max_steps: MaxSteps = None,
               verifier: OnlyKind = None, rounds: RoundCount = None, tasks_dir: TasksDir = None, preset: Preset = None,
               sets: Sets = [], seed: Seed = None, dest: Out = None, store: StorePath = None, json: AsJson = False) -> None:  # noqa: B006
    """Without the name of a stage: roll, verify and rl."""
    if ctx.invoked_subcommand is not None:
        if base is not None or rl or env is not None:
            raise DormouseError(f"options of the short form stand before `{ctx.invoked_subcommand}`: put them behind it, or leave it out")
        return
    if base is None or not rl or env is None:
        raise DormouseError("the short form is `dormouse post-train --base FILE --rl --env ENV`; single stages are in "
                            "`dormouse post-train --help`")
    held = chosen_store(store)
    common = [*_words("--preset", preset), *(word for text in sets for word in ("--set", text))]
    seeded = [*common, *_words("--seed", seed)]
    where = _words("--store", store)
    strict = [word for name, value in HARD.items() for word in ("--set", f"{name}={str(value).lower()}")] if verifier is Kind.HARD else []
    flags = hardened(verifier, {})
    said = [_command("roll", "--base", base, "--env", env, "--n", n, *_words("--max-steps", max_steps), *_words("--verifier", verifier),
                     *_words("--tasks-dir", tasks_dir), *seeded, *where)]
    parent = opened(held, base, "checkpoint")
    config = follow(parent, held, preset, sets, seed, flags)
    rollouts = rolled(held, config, parent, drawn(held, config, env, n, max_steps, verifier, tasks_dir, json), None, json).artifact
    said.append(_command("verify", "--traj", held.path(rollouts), *_words("--verifier", verifier), *common, *where))
    require_kind(held, tasks_of(held, rollouts), verifier)
    verdicts = judge(held, config_of_policy(held, rollouts, preset, sets, flags), rollouts, tasks_of(held, rollouts), None, json).artifact
    said.append(_command("rl", "--base", base, "--traj", held.path(verdicts), *_words("--rounds", rounds), *seeded, *strict,
                         *_words("--out", dest), *where))
    done = learned(held, follow(parent, held, preset, sets, seed, flags | {"rl.rounds": rounds}), parent, rollouts, verdicts, dest, json)
    show_learned(held, done, json, commands=said)


def _words(option: str, value: Any) -> list[str]:
    return [] if value is None else [option, str(value)]


def _command(stage: str, *words: Any) -> str:
    """The long form of one stage, said before it runs."""
    line = shlex.join(["dormouse", "post-train", stage, *map(str, words)])
    say(f"runs: {line}")
    return line
