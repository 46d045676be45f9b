"""The table of rules: legal or refused, every parameter in one row, and its state through a checkpoint file to the same bits."""

from pathlib import Path

import pytest
import torch
from torch import nn

from dormouse_core.artifacts import checkpoint as container
from dormouse_core.artifacts.checkpoint import Checkpoint
from dormouse_core.artifacts.provenance import Kind, Provenance
from dormouse_core.artifacts.store import Store
from dormouse_core.config.optimizer import ROWS, OptimizerConfig
from dormouse_core.config.resolve import packaged_presets, resolve
from dormouse_core.config.run import RunConfig
from dormouse_core.learning import pretrain
from dormouse_core.ledger import DormouseError, Ledger
from dormouse_core.optim.declared import CLIP_ORDER, Group, declared_groups
from dormouse_core.optim.groups import build_optimizer
from dormouse_core.policy.model import build_policy, meta_policy
from tests.core.optim.made import TINY, muon_config, train

PROVENANCE = Provenance(kind=Kind.CHECKPOINT, stage="test", config_sha256="c", code_version="v", seed=1)


def test_rows_of_the_configuration_are_the_declared_groups() -> None:
    assert set(ROWS) == {g.value for g in Group} == {g.value for family in CLIP_ORDER for g in family}


@pytest.mark.parametrize("preset", packaged_presets())
def test_every_parameter_of_every_preset_is_in_exactly_one_group_of_its_kind(preset: str) -> None:
    policy = meta_policy(resolve(preset).policy)
    groups = declared_groups(policy)
    names = [name for members in groups.values() for name in members]
    assert sorted(names) == sorted(name for name, _ in policy.named_parameters())
    assert all(members for members in groups.values())
    for group in (Group.EXPERTS, Group.FACTORS, Group.QUERY_KEY, Group.MEMORY_KEY):
        assert all(p.dim() >= 2 for p in groups[group].values())
    assert all(p.shape[-2] >= p.shape[-1] for g in (Group.EXPERTS, Group.FACTORS) for p in groups[g].values())


def test_a_new_parameter_is_refused_and_named() -> None:
    policy = build_policy(TINY, 1)
    policy.block.experts.gate = nn.Parameter(torch.zeros(4, 3))
    with pytest.raises(DormouseError, match=r"block\.experts\.gate in no group.*declared\.py"):
        build_optimizer(policy, muon_config(), 5)


def test_a_parameter_declared_twice_is_refused_and_named() -> None:
    policy = build_policy(TINY, 1)
    policy.block.kda.key = policy.block.mem_dense
    with pytest.raises(DormouseError, match=r"(mem_dense|kda\.key) in query_key and matrices"):
        build_optimizer(policy, muon_config(), 5)


@pytest.mark.parametrize(("sets", "why"), [
    (["matrices=muon"], r"matrices = muon: .*choose from experts, factors, query_key, memory_key"),
    (["tables=muon"], "tables = muon"),
    (["rest=muon"], "rest = muon"),
    (["expert_scales=muon"], "expert_scales = muon"),
    (["matrices=adam"], "plain Adam by touched rows is for the tables"),
    (["experts=muon", "idle_experts=move"], "idle_experts = move with experts = muon"),
    (["experts=muon", "experts.weight_decay=0.1"], r"experts\.weight_decay with retraction.*decay the scales"),
    (["factors.weight_decay=0.1", "retract_every=2"], r"factors\.weight_decay with retraction"),
    (["experts=frozen", "factors=frozen", "retract_every=1"], "nothing moves that could be retracted"),
    ([f"{name}=frozen" for name in ROWS], "every group is frozen"),
    (["experts=muon", "experts.relative_step=0.9"], "less than or equal to 0.5"),
    (["experts=muon", "experts.momentum=1.0"], "less than 1"),
    (["experts=muon", "experts.ns_steps=0"], "greater than or equal to 1"),
    (["experts=muon", "experts.lr_scale=2"], "the chosen sft.optimizer.experts has no lr_scale"),
    (["experts=adagrad"], "it is one of adamw, adam, muon, frozen"),
    (["low_precision=int8"], "'masters' or 'stochastic'"),
])  # fmt: skip
def test_illegal_tables_are_refused_with_the_reason(sets: list[str], why: str) -> None:
    with pytest.raises(DormouseError, match=why):
        resolve("tiny", [f"sft.optimizer.{item}" for item in sets])


def test_nano_and_tiny_keep_adamw_everywhere_and_the_large_presets_take_muon() -> None:
    for preset in ("nano", "tiny"):
        config = resolve(preset)
        assert {section.optimizer.row(name).kind for section in (config.train, config.sft, config.rl) for name in ROWS} == {"adamw"}
    for preset in ("small", "b1"):
        config = resolve(preset)
        assert {config.train.optimizer.row(n).kind for n in ("experts", "factors", "query_key", "memory_key")} == {"muon"}
        assert config.train.optimizer.tables.kind == "adam"


def test_rates_show_what_each_group_gets() -> None:
    optimizer = build_optimizer(build_policy(TINY, 1), muon_config(warmup=2, rest={"kind": "frozen"}), 5)
    rates = optimizer.rates()
    assert rates["experts"] == pytest.approx(0.005) and rates["matrices"] == pytest.approx(0.005)
    assert rates["tables"] == pytest.approx(0.025) and rates["rest"] == 0.0 and set(rates) == set(ROWS)


def test_metrics_count_the_updates_of_each_expert() -> None:
    policy = build_policy(TINY, 1)
    optimizer = build_optimizer(policy, muon_config(), 5)
    assert "expert_updates_cv" not in optimizer.metrics()
    optimizer.expert_updates_E.copy_(torch.tensor([4, 0, 4, 0]))
    found = optimizer.metrics()
    assert (found["expert_updates_min"], found["expert_updates_max"], found["experts_never_updated"]) == (0, 4, 2)
    assert found["expert_updates_cv"] == pytest.approx(1.0) and found["rate.rest"] == optimizer.rates()["rest"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["masters", "stochastic"])
def test_state_goes_through_a_checkpoint_file_to_the_same_bits(dtype: str, mode: str) -> None:
    shape = TINY.model_copy(update={"dtype": dtype})
    rows = {name: {"kind": "muon", "momentum_dtype": "bfloat16"} for name in ("experts", "query_key")}
    config = muon_config(low_precision=mode, retract_every=3, **rows)
    straight = build_policy(shape, 1)
    optimizer = build_optimizer(straight, config, 8, seed=3)
    train(straight, optimizer, range(6))
    first = build_policy(shape, 1)
    before = build_optimizer(first, config, 8, seed=3)
    train(first, before, range(4))
    data, _ = container.encode(Checkpoint(RunConfig(), dict(first.state_dict()), before.state()), PROVENANCE)
    read, _, _ = container.decode(data, "here")
    resumed = build_policy(shape, 99)
    resumed.load_state_dict(read.model)
    after = build_optimizer(resumed, config, 8, seed=3)
    after.load(read.optimizer)
    train(resumed, after, range(4, 6))
    want, got = straight.state_dict() | optimizer.state(), resumed.state_dict() | after.state()
    assert want.keys() == got.keys() and [name for name in want if not torch.equal(want[name], got[name])] == []


def test_state_of_another_rule_is_refused_by_name() -> None:
    policy = build_policy(TINY, 1)
    adamw = build_optimizer(policy, OptimizerConfig(), 5)
    train(policy, adamw, range(1))
    with pytest.raises(DormouseError, match=r"state step/block\.experts\.up_u .*does not fit this policy and its optimizer table"):
        build_optimizer(policy, muon_config(), 5).load(adamw.state())


class Killed(Exception):
    pass


@pytest.mark.parametrize("sets", [[], ["policy.dtype=bfloat16", "train.optimizer.low_precision=stochastic"]])
def test_a_muon_run_that_was_stopped_ends_as_if_it_never_was(sets: list[str], tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for i in range(12):
        (tmp_path / "text" / f"{i}.txt").write_text("".join(f"{i * j % 97}: the quick brown fox {j}\n" for j in range(60)))
    table = [f"train.optimizer.{name}=muon" for name in ("experts", "factors", "query_key", "memory_key")]
    config = resolve("tiny", ["train.batch=2", "train.seq_len=24", "train.steps=5", "train.ckpt_every=2", "train.log_every=1",
                              f"train.data={tmp_path / 'text'}", "train.optimizer.tables=adam", *table, *sets])  # fmt: skip

    def stop(stage: str, done: int, total: int, unit: str, **facts: object) -> None:
        if done == 3:
            raise Killed

    with pytest.raises(Killed):
        pretrain.run(config, store=Store(tmp_path / "cut"), ledger=Ledger(progress=stop))
    cut = pretrain.run(config, store=Store(tmp_path / "cut"), ledger=Ledger())
    assert cut.identity == pretrain.run(config, store=Store(tmp_path / "whole"), ledger=Ledger()).identity
