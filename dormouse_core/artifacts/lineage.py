"""Lineage: from any artifact back to the pretrained base, from the files alone."""

from dataclasses import dataclass, field

from dormouse_core.artifacts.provenance import Artifact, Parent
from dormouse_core.artifacts.store import Store
from dormouse_core.ledger import DormouseError


@dataclass(frozen=True)
class Lineage:
    """An artifact and all its ancestors; shared ones stand once."""

    root: Artifact
    found: dict[str, Artifact] = field(default_factory=dict)
    """Identity -> artifact, the root included; children before parents."""
    problems: dict[str, str] = field(default_factory=dict)
    """Identity -> why an ancestor's file could not be read (missing or damaged)."""

    @property
    def complete(self) -> bool:
        """Whether every ancestor was found and verified."""
        return not self.problems

    @property
    def origins(self) -> list[Artifact]:
        """The artifacts without parents: the pretrained base, and task sets drawn from seeds alone."""
        return [a for a in self.found.values() if not a.provenance.parents]


def walk(store: Store, artifact: Artifact) -> Lineage:
    """Every ancestor of an artifact. Missing or damaged files are recorded as problems; nothing raises for them."""
    tree = Lineage(artifact, {artifact.identity: artifact})
    pending = [artifact]
    while pending:  # a loop, not recursion: a line of many cycles is deep
        for parent in pending.pop().provenance.parents:
            if parent.identity in tree.found or parent.identity in tree.problems:
                continue
            try:
                found = store.find(parent.kind, parent.identity)
            except DormouseError as error:
                tree.problems[parent.identity] = str(error)
                continue
            if found is None:
                tree.problems[parent.identity] = f"not in the store {store.root}"
            else:
                tree.found[parent.identity] = found
                pending.append(found)
    return tree


def render(tree: Lineage) -> str:
    """The tree as indented lines, each child above its parents. What stands above already is named, not unfolded again."""
    root = Parent(role="", kind=tree.root.kind, identity=tree.root.identity)
    lines: list[str] = []
    shown: set[str] = set()
    stack = [(root, 0)]
    while stack:
        link, depth = stack.pop()
        artifact = tree.found.get(link.identity)
        parents = artifact.provenance.parents if artifact else ()
        again = link.identity in shown and bool(parents)
        shown.add(link.identity)
        lines.append(f"{'  ' * depth}{'<- ' if depth else ''}{_line(tree, link)}{'  (unfolded above)' if again else ''}")
        if not again:
            stack.extend((parent, depth + 1) for parent in reversed(parents))
    return "\n".join(lines)


def _line(tree: Lineage, link: Parent) -> str:
    head = f"{link.role}: " if link.role else ""
    artifact = tree.found.get(link.identity)
    if artifact is None:
        return f"{head}{link.kind} {link.identity[:16]}  MISSING: {tree.problems[link.identity]}"
    made = artifact.provenance
    run = f" run {made.run_id}" if made.run_id else ""
    return f"{head}{link.kind} {link.identity[:16]}  by {made.stage} seed {made.seed}{run}  {artifact.path}"
