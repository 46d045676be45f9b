"""What a candidate runs under, by name: layers, the isolation level they add up to, and what a missing one means.

Not here: the calls that put the layers in force (child.py, zygote.py), the filter (seccomp.py), the proof (probes.py).
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple


class Isolation(StrEnum):
    """What a candidate is held by. Every verdict on a program carries one."""

    JAIL = "jail"  # seccomp, Landlock and namespaces: two walls each around files, network and other processes
    NO_NAMESPACES = "jail_without_namespaces"  # seccomp and Landlock: one wall each
    NO_LANDLOCK = "jail_without_landlock"  # seccomp and namespaces: one wall around files
    NO_FILES = "jail_without_files"  # seccomp alone: no file may be opened at all
    WEAKENED = "weakened"  # layers were switched off by hand, to test the others


BASE_LAYERS = ("bare_interpreter", "forked_child", "own_session", "empty_environment", "empty_directory", "closed_fds",
               "sealed_job", "rlimit_cpu", "no_core", "no_new_privs", "death_signal", "wall_backstop", "output_limit")
"""In force for every candidate by construction; the zygote adds those it proved."""
MULTI_LAYERS = ("userns", "mountns", "pidns", "netns", "ipcns", "seccomp_multi", "no_caps", "no_new_privs", "empty_environment",
                "closed_fds", "sealed_job", "rlimits", "rlimit_nproc", "no_core", "death_signal", "cpu_watch", "memory_watch",
                "wall_backstop", "output_limit", "disk_limit")
"""In force for a command of several processes (multi.py), beside Landlock."""
NAMESPACES = ("userns", "mountns", "pidns", "netns", "ipcns")
SWITCHES = ("seccomp", "landlock", "namespaces")
"""Layers a test may switch off."""
FORK_BAN = "rlimit_nproc"

MAX_OUTPUT = 1 << 20
"""Bytes a candidate may claim, all frames together."""
OUTPUT_SLACK = 1 << 16
"""What a candidate may claim beyond sixteen times its task's expected values."""


class JailMode(StrEnum):
    BEST = "best"  # every layer this machine allows; what is missing is said aloud, and refused where one wall would be left
    FULL = "full"  # all layers, or no verdicts
    NO_FILES = "no_files"  # as best, and a candidate may open no file at all


class Standing(NamedTuple):
    """What a zygote's report amounts to."""

    layers: tuple[str, ...]
    isolation: Isolation
    refusal: str
    """'' or why no candidate may run here, and the way out."""
    lines: tuple[str, ...]
    """What must be said aloud."""


def isolation_of(layers: Sequence[str]) -> Isolation:
    """The level a set of layers adds up to."""
    landlock, inside = any(name.startswith("landlock") for name in layers), set(NAMESPACES) <= set(layers)
    if "seccomp" not in layers or not (landlock or inside or "no_files" in layers):
        return Isolation.WEAKENED
    if landlock and inside:
        return Isolation.JAIL
    return Isolation.NO_NAMESPACES if landlock else Isolation.NO_LANDLOCK if inside else Isolation.NO_FILES


_NO_NAMESPACES = ("exec verifier: no namespaces here ({why}); candidates are held by seccomp, Landlock and limits: one wall around files, "
                  "network and other processes instead of two. Allow user namespaces (sysctl user.max_user_namespaces; in a container: "
                  "a seccomp profile that permits unshare and mount) for the second.")
_NO_LANDLOCK = ("exec verifier: no Landlock here ({why}); candidates are held by seccomp, namespaces and limits: one wall around files "
                "instead of two. A kernel of 5.13 or later with Landlock among its security modules gives the second.")
_OLD_LANDLOCK = ("exec verifier: Landlock ABI {abi} cannot stop signals and there is no process namespace: the filter's ban of kill is "
                 "the only guard of other processes. Kernel 6.12 or later, or user namespaces, give a second.")
_NO_WALL = ("neither Landlock ({landlock}) nor a mount namespace ({why}) works here, so nothing would keep a candidate from this user's "
            "files. Allow user namespaces or use a kernel with Landlock (5.13 or later); or set verify.jail = \"no_files\": candidates "
            "then open no file at all, and import only what is loaded beforehand.")
_ONLY_FILTER = "exec verifier: neither Landlock nor a mount namespace here; candidates may open no file at all (verify.jail = no_files)."
_UNPROVEN = ("a layer did not hold when it was tried alone ({seen}), so nothing is judged here. The kernel or the container lets through "
             "what it says it forbids: see docs/verifier.md, layers.")
_KEPT_ROOT = "this process is root and cannot become another user (no CAP_SETUID): run as an ordinary user, or give that capability."
_NOT_FULL = ("the full jail was asked for (verify.jail = full) and this machine gives less: {missing}. Take verify.jail = best to judge "
             "with what there is.")
_NO_FORK_BAN = ("exec verifier: RLIMIT_NPROC has no effect for this user; that a candidate cannot fork rests on the filter alone. Run as "
                "an ordinary user for the second guard.")
_SWITCHED_OFF = "exec verifier: switched off by hand, to test the other layers: {off}. Verdicts carry isolation `weakened`."


def stand(told: Mapping[str, Any], mode: JailMode, without: frozenset[str], no_namespaces: str) -> Standing:
    """The zygote's report -> layers, level, refusal, loud lines. told: `proven` layer -> '' or what was seen instead; `missing`
    layer -> why; `abi` of Landlock; `root`: the layer root was dropped by, `kept` where it could not be. no_namespaces: why
    there are none."""
    held = {name for name, seen in told["proven"].items() if not seen}
    missing = {name: why for name, why in (("Landlock", _why(told, held)), ("namespaces", no_namespaces)) if why}
    refusal = _refusal(told, mode, without, missing)
    lines = []
    if without:
        lines.append(_SWITCHED_OFF.format(off=", ".join(sorted(without))))
    elif len(missing) == 2:
        lines.append(_ONLY_FILTER)
    elif "namespaces" in missing:
        lines.append(_NO_NAMESPACES.format(why=no_namespaces))
        lines += [_OLD_LANDLOCK.format(abi=told["abi"])] if told["abi"] < 6 else []
    elif "Landlock" in missing:
        lines.append(_NO_LANDLOCK.format(why=missing["Landlock"]))
    lines += [_NO_FORK_BAN] if FORK_BAN not in held else []
    names = [f"landlock{told['abi']}" if name == "landlock" else name for name in told["proven"] if name in held and name != "honest"]
    layers = (*BASE_LAYERS, *names, *([told["root"]] if told["root"] else []), *(["no_files"] if mode is JailMode.NO_FILES else []))
    return Standing(layers, isolation_of(layers), refusal, tuple(lines))


def _why(told: Mapping[str, Any], held: set[str]) -> str:
    return "" if "landlock" in held else str(told["missing"].get("landlock") or "switched off")


def _refusal(told: Mapping[str, Any], mode: JailMode, without: frozenset[str], missing: Mapping[str, str]) -> str:
    failed = {name: seen for name, seen in told["proven"].items() if seen and name != FORK_BAN}
    if failed or not told["proven"]:
        return _UNPROVEN.format(seen="; ".join(f"{name}: {seen}" for name, seen in sorted(failed.items())) or "none was tried")
    if told["root"] == "kept":
        return _KEPT_ROOT
    if without:
        return ""
    if len(missing) == 2 and mode is not JailMode.NO_FILES:
        return _NO_WALL.format(landlock=missing["Landlock"], why=missing["namespaces"])
    if "seccomp" not in told["proven"]:
        return _UNPROVEN.format(seen="seccomp: not in force")
    if mode is JailMode.FULL and missing:
        return _NOT_FULL.format(missing=", ".join(f"no {name} ({why})" for name, why in missing.items()))
    return ""
