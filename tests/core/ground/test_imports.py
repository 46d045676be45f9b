"""The house stands on its order: no room imports a room above it, and the core keeps to its promises about the outside."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("encoding", "ledger", "seeding", "config", "artifacts", "kernels", "policy", "optim", "tasks", "sandbox", "envs", "verifiers",
         "admission", "rollouts", "monitors", "learning", "evaluation", "evolution")
PACKAGES = ("dormouse_core", "assets", "dormouse_pipeline")
NODE_TOOLS = {"dormouse_pipeline.stage_runner", "dormouse_pipeline.checks"}
"""What an asset is declared with. They stand below the assets, and so may not lead back up to them."""
SIDEWAYS = {("encoding", "ledger", "seeding")}
"""Ground floor modules have no order among themselves."""


def sources(*packages: str) -> list[Path]:
    return [p for package in packages for p in sorted((ROOT / package).rglob("*.py"))]


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of every import statement, at any depth of the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import at line {node.lineno}: write the whole name"
            module = node.module or ""
            yield from ((node.lineno, f"{module}.{alias.name}" if module == "dormouse_core" else module) for alias in node.names)


def wrong_imports(module: str, text: str) -> list[str]:
    """Imports of `module` (dotted name) that run up the house."""
    parts = module.split(".")
    wrong = []
    for line, name in imported(ast.parse(text)):
        target = name.split(".")
        if target[0] not in PACKAGES:
            continue
        if parts[0] == "assets" and ".".join(target[:2]) in NODE_TOOLS:
            continue
        if PACKAGES.index(target[0]) > PACKAGES.index(parts[0]) or (target[0] == parts[0] == "dormouse_core" and _above(parts, target)):
            wrong.append(f"{module}:{line} imports {name}")
    return wrong


def _above(parts: list[str], target: list[str]) -> bool:
    if len(parts) < 2 or len(target) < 2 or target[1] not in ROOMS:
        return False
    return ROOMS.index(target[1]) > ROOMS.index(parts[1])


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_every_room_of_the_core_has_its_place_in_the_order() -> None:
    rooms = {p.stem for p in (ROOT / "dormouse_core").iterdir() if (p.is_dir() or p.suffix == ".py") and not p.name.startswith("_")}
    assert rooms <= set(ROOMS), "a new room needs its place in the order"


def test_no_import_runs_up_the_house() -> None:
    wrong = [w for path in sources(*PACKAGES) for w in wrong_imports(dotted(path), path.read_text())]
    assert not wrong, "\n".join(wrong)


def test_what_an_asset_is_declared_with_does_not_lead_back_to_the_assets() -> None:
    reached, pending = set[str](), set(NODE_TOOLS)
    while pending:
        module = pending.pop()
        reached.add(module)
        path = ROOT / (module.replace(".", "/") + ".py")
        pending |= {name for _, name in imported(ast.parse(path.read_text())) if name.startswith("dormouse_pipeline.")} - reached
    found = {module for module in reached for _, name in imported(ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text()))
             if name.split(".")[0] == "assets"}
    assert not found


@pytest.mark.parametrize(("module", "text"), [
    ("dormouse_core.config.x", "from dormouse_core.tasks.task import Task"),
    ("dormouse_core.policy.x", "import dormouse_core.learning.sft"),
    ("dormouse_core.artifacts.x", "def f():\n    from dormouse_core import policy"),
    ("dormouse_core.evolution.x", "import assets.rollouts"),
    ("assets.x", "from dormouse_pipeline.resources import Y"),
])
def test_an_import_that_runs_up_is_caught(module: str, text: str) -> None:
    assert wrong_imports(module, text)


def test_the_core_never_imports_dagster() -> None:
    found = [f"{dotted(p)}:{line}" for p in sources("dormouse_core") for line, name in imported(ast.parse(p.read_text()))
             if name.split(".")[0].startswith("dagster")]
    assert not found


GLOBAL_RNG = {"random": None, "numpy.random": {"Generator", "Philox", "default_rng"}, "np.random": {"Generator", "Philox", "default_rng"}}
TORCH_DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "manual_seed", "seed", "rand_like",
               "randn_like", "randint_like"}
IN_PLACE_DRAWS = {"normal_", "uniform_", "bernoulli_", "random_", "exponential_"}


def unkeyed_draws(text: str) -> list[str]:
    """Calls in a source that draw from (or seed) a generator nobody named."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = ast.unparse(node.func.value), node.func.attr
        keyed = any(k.arg == "generator" for k in node.keywords)
        legal = GLOBAL_RNG.get(owner, ())
        if owner in GLOBAL_RNG and (name not in (legal or {"Random"}) or not (node.args or node.keywords)):
            found.append(f"line {node.lineno}: {owner}.{name}")
        elif owner == "torch" and name in TORCH_DRAWS and not keyed:
            found.append(f"line {node.lineno}: torch.{name} without generator=")
        elif name in IN_PLACE_DRAWS and not keyed:
            found.append(f"line {node.lineno}: .{name}() without generator=")
    return found


@pytest.mark.parametrize("text", [
    "random.random()", "random.Random()", "np.random.rand(3)", "np.random.default_rng()", "torch.randn(3)", "x.normal_()",
    "torch.manual_seed(1)"])
def test_an_unkeyed_draw_is_caught(text: str) -> None:
    assert unkeyed_draws(text)


@pytest.mark.parametrize("text", ["np.random.Generator(bits)", "torch.randn(3, generator=g)", "x.normal_(generator=g)", "random.Random(7)"])
def test_a_keyed_draw_is_legal(text: str) -> None:
    assert not unkeyed_draws(text)


def test_the_core_draws_from_no_global_generator() -> None:
    found = [f"{dotted(p)} {draw}" for p in sources("dormouse_core") for draw in unkeyed_draws(p.read_text())]
    assert not found, "\n".join(found)


def test_the_core_prints_nothing() -> None:
    found = [f"{dotted(p)}:{node.lineno}" for p in sources("dormouse_core") for node in ast.walk(ast.parse(p.read_text()))
             if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "sys.stdout.write", "sys.stderr.write"}]
    assert not found, "\n".join(found)
