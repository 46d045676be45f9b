"""Resolving a configuration: schema defaults -> preset -> `--set k=v` -> typed flags -> validate -> one frozen RunConfig.

What may be set is read off the schema, never off a table kept by hand, so no field can be forgotten.
"""

import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from dormouse_core.config.drift import flatten
from dormouse_core.config.run import RunConfig
from dormouse_core.ledger import DormouseError

_PACKAGED = files("dormouse_core.config") / "presets"

DELETED = {
    "msa_budget": "sparse attention was removed upstream together with its budget; there is no such parameter",
    "msa_topk": "sparse attention was removed upstream; there is no such parameter",
    "msa_block": "sparse attention was removed upstream; there is no such parameter",
    "msa": "sparse attention was removed upstream; there is no such parameter",
    "attention_budget": "there is no sparse-attention arm, so nothing could keep to a budget",
    "use_halt": "a depth arm is chosen by one key, for halting policy.depth=ponder",
    "halt": "a depth arm is chosen by one key, for halting policy.depth=ponder",
    "use_mor": "a depth arm is chosen by one key, here policy.depth=mor",
    "mor_k": "a depth arm is chosen by one key; its slots are policy.depth=mor with policy.depth.slots",
    "rand_depth": "a depth arm is chosen by one key, here policy.depth=random",
    "capacity": "choosing positions by their rank in a sequence looks at later bytes; policy.depth=skip decides each byte by a threshold",
}
"""Names that once meant something. They are refused with the reason, not ignored."""


def packaged_presets() -> list[str]:
    """Names of the presets that come with dormouse."""
    return sorted(f.name.removesuffix(".toml") for f in _PACKAGED.iterdir() if f.name.endswith(".toml"))


def resolve(preset: str | Path, sets: Sequence[str] = (), flags: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of a preset (packaged name or TOML file) with `section.key=value` overrides, then typed flags on top.

    flags: dotted key -> value; None means the flag was not given. Raises DormouseError naming an unknown preset or key (with the
    nearest known ones) or every value that is out of bounds.
    """
    name, table = _read_preset(preset)
    tree = RunConfig().model_dump()
    tree["preset"] = name
    for key, value in sorted(flatten(table).items(), key=lambda item: not item[0].endswith(".kind")):
        _set(tree, key, value, f"preset {name}")
    return _settle(tree, f"preset {name}", sets, flags)


def resolve_from(start: RunConfig, sets: Sequence[str] = (), flags: Mapping[str, Any] | None = None) -> RunConfig:
    """The same changes on top of a configuration that stands already, such as the one inside a checkpoint."""
    return _settle(start.model_dump(), f"from preset {start.preset}", sets, flags)


def _settle(tree: dict[str, Any], source: str, sets: Sequence[str], flags: Mapping[str, Any] | None) -> RunConfig:
    """Apply `--set` items, then typed flags, and validate."""
    for item in sets:
        key, mark, raw = item.partition("=")
        if not mark:
            raise DormouseError(f"--set {item!r} has no value; write it as --set section.key=value, e.g. --set rl.clip=0.3")
        _set(tree, key.strip(), _Raw(raw.strip()), f"--set {item}")
    for key, value in (flags or {}).items():
        if value is not None:
            _set(tree, key, value, f"--{key.rsplit('.', 1)[-1].replace('_', '-')}")
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        rows = "\n".join(f"  {_location(e['loc'])}: {e['msg'].removeprefix('Value error, ')}" + _got(e["input"]) for e in error.errors())
        raise DormouseError(f"the configuration ({source}) is not legal:\n{rows}\n"
                            "Correct these keys in the preset or with --set.") from error


def known_keys() -> list[str]:
    """Every dotted key that can be set, whatever member of a union is chosen."""
    return sorted(_keys(RunConfig))


class _Raw(str):
    """A value as typed after `--set key=`: its type is still to be read from the schema."""


def _read_preset(preset: str | Path) -> tuple[str, dict[str, Any]]:
    text = str(preset)
    if text.endswith(".toml"):
        path = Path(text)
        if not path.is_file():
            raise DormouseError(f"no preset file at {text}; give a TOML file or one of: {', '.join(packaged_presets())}")
        name, raw = path.stem, path.read_bytes()
    elif text in packaged_presets():
        name, raw = text, (_PACKAGED / f"{text}.toml").read_bytes()
    else:
        near = get_close_matches(text, packaged_presets(), n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known presets: {', '.join(packaged_presets())}."
        raise DormouseError(f"no preset {text!r}; {hint} A file of your own is named by its path, ending in .toml")
    try:
        return name, tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DormouseError(f"preset {text} is not readable TOML: {error}") from error


def _set(tree: dict[str, Any], key: str, value: Any, source: str) -> None:
    """Write one dotted key into the tree of all sections. Raises DormouseError when the schema has no such key."""
    if key == "preset":
        raise DormouseError(f"{source}: the preset is chosen with --preset NAME, not set")
    sections = key.split(".")
    node: dict[str, Any] = tree
    model: type[BaseModel] = RunConfig
    for depth, section in enumerate(sections):
        if section not in model.model_fields:
            raise _unknown(key, source, model, sections[:depth])
        annotation = model.model_fields[section].annotation
        members = _members(annotation)
        last = depth == len(sections) - 1
        if last and section == "kind" and len(sections) > 1:
            _choose(tree, sections[:-1], str(value), source)
        elif last and members:
            if len(members) == 1 or not isinstance(value, str):
                raise DormouseError(f"{source}: {key} is a section, not a value; its keys are {', '.join(members[0].model_fields)}")
            _choose(tree, sections, str(value), source)
        elif last:
            node[section] = _parse(value, annotation)
        elif not members:
            raise _unknown(key, source, model, sections[:depth])
        else:
            node = node[section]
            model = next((m for m in members if _kind(m) == node.get("kind")), members[0])


def _choose(tree: dict[str, Any], sections: list[str], kind: str, source: str) -> None:
    """Choose the member of a discriminated union: its other keys go back to that member's defaults."""
    *above, last = sections
    node: dict[str, Any] = tree
    model: type[BaseModel] = RunConfig
    for section in above:
        node, model = node[section], _members(model.model_fields[section].annotation)[0]
    members = {_kind(m): m for m in _members(model.model_fields[last].annotation)}
    if kind not in members:
        raise DormouseError(f"{source}: {'.'.join(sections)} has no kind {kind!r}; it is one of {', '.join(map(str, members))}")
    if node[last].get("kind") != kind:
        node[last] = members[kind]().model_dump()


def _members(annotation: Any) -> list[type[BaseModel]]:
    """The models an annotation can hold: one for a section, several for a discriminated union, none for a value."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [m for part in get_args(annotation) for m in _members(part)]


def _kind(model: type[BaseModel]) -> Any:
    return model.model_fields["kind"].default if "kind" in model.model_fields else None


def _parse(value: Any, annotation: Any) -> Any:
    """A typed value as it stands; a raw one read as TOML where the field is not text, `none` where the field may be None."""
    if not isinstance(value, _Raw):
        return value
    options = set(get_args(annotation)) or {annotation}
    if NoneType in options and value.lower() in ("none", ""):
        return None
    if str in options:
        return str(value)
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return str(value)


def _unknown(key: str, source: str, model: type[BaseModel], above: list[str]) -> DormouseError:
    leaf = key.rsplit(".", 1)[-1]
    if leaf in DELETED:
        return DormouseError(f"{source}: {key} is refused: {DELETED[leaf]}. Take it out.")
    known = known_keys()
    if key in known:
        return DormouseError(f"{source}: the chosen {'.'.join(above)} has no {leaf}; keys of this one: {', '.join(model.model_fields)}. "
                             f"Choose the other first: --set {'.'.join(above)}=KIND")
    near = get_close_matches(key, known, n=3) or [k for k in known if k.rsplit(".", 1)[-1] == leaf][:3]
    near = near or get_close_matches(leaf, [k.rsplit(".", 1)[-1] for k in known], n=3)
    place = f"section {'.'.join(above)}" if above else "the configuration"
    hint = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else f"keys of {place}: {', '.join(model.model_fields)}"
    return DormouseError(f"{source}: {key} is not a setting; {hint}")


def _keys(model: type[BaseModel], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        members = _members(field.annotation)
        found |= set().union(*(_keys(m, f"{prefix}{name}.") for m in members)) if members else {f"{prefix}{name}"}
    return found


def _got(value: Any) -> str:
    return "" if isinstance(value, dict) else f" (got {value!r})"


def _location(path: tuple[int | str, ...]) -> str:
    """A pydantic location as a dotted key (union tags left out)."""
    tags = {"fork-replay", "group", "off", "passes"}
    return ".".join(str(p) for p in path if p not in tags) or "configuration"
