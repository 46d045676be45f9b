"""Bounds of the claim and the page made of stored records."""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made import HALF, around, seed_result

from benchmarks.claim import as_json, parse_seeds, show
from benchmarks.results import Held, judge_claim, load_results, main, markdown, mean_of, mixtures, result_rows
from dormouse_core.evaluation.statistics import Interval, Ratio
from dormouse_core.ledger import DormouseError


def held(results: list, part: str) -> Held:  # type: ignore[type-arg]
    (found,) = [h for h in judge_claim(results) if part in h.bound]
    return found


def three(**changed: float) -> list:  # type: ignore[type-arg]
    return [seed_result(seed, **changed) for seed in (1, 2, 3)]


def test_three_good_seeds_hold_every_bound() -> None:
    assert all(h.holds for h in judge_claim(three())), judge_claim(three())


@pytest.mark.parametrize(("promoted", "word"), [(0.40, "HOLDS"), (0.399, "FALLS SHORT")])
def test_a_mean_ratio_of_exactly_two_holds_and_less_falls_short(promoted: float, word: str) -> None:
    assert held(three(base=0.2, promoted=promoted), "mean of seeds, at least 2.0x").word == word


@pytest.mark.parametrize(("promoted", "word"), [(0.35, "HOLDS"), (0.349, "FALLS SHORT")])
def test_fifteen_points_exactly_hold_and_less_falls_short(promoted: float, word: str) -> None:
    assert held(three(base=0.2, promoted=promoted), "at least 15 points").word == word


@pytest.mark.parametrize(("promoted", "word"), [(0.30, "HOLDS"), (0.299, "FALLS SHORT")])
def test_one_seed_below_one_and_a_half_falls_short_whatever_the_mean(promoted: float, word: str) -> None:
    results = [seed_result(1, base=0.2, promoted=0.8), seed_result(2, base=0.2, promoted=0.8), seed_result(3, base=0.2, promoted=promoted)]
    assert held(results, "no seed below").word == word
    assert held(results, "mean of seeds, at least 2.0x").holds


@pytest.mark.parametrize(("wall", "word"), [(480.0, "HOLDS"), (480.5, "FALLS SHORT")])
def test_the_slowest_loop_decides_the_time(wall: float, word: str) -> None:
    assert held([seed_result(1), seed_result(2, wall=wall)], "wall").word == word


def test_dagster_share_is_of_cycles_and_not_of_the_base() -> None:
    assert held(three(), "Dagster").number == "5.0 %"
    assert not held(three(overhead=0.11), "Dagster").holds


def test_a_control_is_beaten_in_the_mean_and_in_every_seed_or_it_is_said() -> None:
    results = [seed_result(1, control=0.3), seed_result(2, control=0.3), seed_result(3, control=0.48)]
    assert held(results, "own passes, mean of seeds").holds
    weakest = held(results, "own passes, every seed")
    assert weakest.word == "FALLS SHORT" and "+2.0 points [-1.0, 5.0]" in weakest.number


def test_a_lower_bound_of_exactly_zero_does_not_beat_a_control() -> None:
    exact = seed_result(1, promoted=0.5, control=0.25, half=0.25)
    assert exact.gain("more_sft").difference.low == 0
    assert not held([exact], "same rows, every seed").holds


@pytest.mark.parametrize(("base", "invalid"), [(0.15, False), (0.40, False), (0.149, True), (0.401, True)])
def test_a_base_outside_its_range_makes_the_seed_invalid(base: float, invalid: bool) -> None:
    assert bool(seed_result(base=base).invalid) is invalid


def test_a_suite_whose_oracle_fails_makes_the_seed_invalid() -> None:
    assert "oracle" in seed_result(oracle=0.99).invalid[0]


def test_an_invalid_seed_is_printed_and_counted_and_lends_its_ratio_to_no_bound() -> None:
    results = [seed_result(1, base=0.2, promoted=0.3), seed_result(2, base=0.05, promoted=0.9), seed_result(3, base=0.2, promoted=0.3)]
    counted = judge_claim(results)[0]
    assert (counted.number, counted.word) == ("2 of 3 seeds valid", "FALLS SHORT")
    assert held(results, "mean of seeds, at least 2.0x").number == "1.50x"
    claims = [row.claim for row in result_rows(results)]
    assert "seed 2 INVALID: base pass@1 0.050 is outside 0.15-0.40" in claims
    assert any(c.startswith("mean of 2 valid seeds") for c in claims)
    assert any(c.startswith("mean of all 3 seeds, INVALID ones included") for c in claims)


def test_without_a_valid_seed_nothing_holds_and_nothing_breaks() -> None:
    results = three(base=0.0)
    assert not any(h.holds for h in judge_claim(results) if "pass@1" in h.bound or "promoted" in h.bound)
    assert "no valid seed" in markdown(results)
    show(results)


def test_fewer_than_three_seeds_fall_short() -> None:
    assert not judge_claim([seed_result(1), seed_result(2)])[0].holds


def test_the_mean_of_seeds_adds_their_errors_in_squares() -> None:
    mean = mean_of([around(0.1), around(0.3), around(0.5)])
    assert isinstance(mean, Interval)
    assert mean.value == pytest.approx(0.3)
    assert mean.high - mean.value == pytest.approx(HALF / math.sqrt(3))
    assert mean_of([]) is None
    unbounded = mean_of([Ratio(value=2.0, low=1.0, high=None), Ratio(value=4.0, low=1.0, high=5.0)])
    assert isinstance(unbounded, Ratio) and unbounded.high is None and unbounded.value == 3.0


def test_the_page_is_printed_from_the_records_alone_and_twice_alike(tmp_path: Path) -> None:
    for result in three():
        (tmp_path / f"seed-{result.seed}.json").write_text(result.model_dump_json())
    main(tmp_path, tmp_path / "docs" / "results.md")
    page = (tmp_path / "docs" / "results.md").read_text()
    assert page == markdown(load_results(tmp_path)) == markdown(three())
    assert "| promoted / base, mean of seeds, at least 2.0x | 2.50x | HOLDS |" in page
    assert "`python -m benchmarks.claim --preset nano --seeds 2`" in page and "promoted 2-promoted-00000 |" in page
    widths = {line.count("|") for line in page.splitlines() if line.startswith("| seed")}
    assert widths == {6}, "every row has five cells"


def test_seeds_of_different_code_are_said_aloud() -> None:
    results = [seed_result(1), seed_result(2).model_copy(update={"code_version": "w" * 64})]
    assert "code_version" in mixtures(results)[0] and mixtures(three()) == []
    assert "do not share one code_version" in markdown(results)


def test_an_empty_folder_names_the_command_that_fills_it(tmp_path: Path) -> None:
    with pytest.raises(DormouseError, match="make claim"):
        load_results(tmp_path)


def test_json_carries_the_verdicts() -> None:
    said = as_json(three())
    assert {b["verdict"] for b in said["bounds"]} == {"HOLDS"}  # type: ignore[attr-defined]
    assert [s["invalid"] for s in said["seeds"]] == [[], [], []]  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["", "1,", "1,1", "a", "1;2", "-1"])
def test_seeds_that_are_no_list_of_numbers_are_refused(text: str) -> None:
    with pytest.raises(DormouseError, match="--seeds 1,2,3"):
        parse_seeds(text)


def test_seeds_keep_their_order() -> None:
    assert parse_seeds("3, 1") == [3, 1]
