"""The dispatcher: what cannot run or disagrees falls back, counted and said once, and no wrong number leaves it."""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dormouse_core.kernels import dispatch, engram
from dormouse_core.kernels.dispatch import Op, Results, close, requested, run
from dormouse_core.kernels.seen import SEEN, forget_counts, report
from dormouse_core.ledger import DormouseError, Ledger
from tests.core.kernels.conftest import ON_GPU

ROOT = Path(__file__).resolve().parents[3]


def _double(x: Tensor) -> Results:
    return (x * 2,)


def _double_in_place(x: Tensor) -> Results:
    x.mul_(2)
    return (x.sum(),)


DOUBLE = Op("double", "none.none", _double)
IN_PLACE = Op("double_", "none.none", _double_in_place, mutates=(0,))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    forget_counts()
    dispatch.forget_proofs()
    yield
    forget_counts()
    dispatch.forget_proofs()


def kernel(monkeypatch: pytest.MonkeyPatch, function: object) -> list[int]:
    """Stand `function` in for every kernel; returns a list that grows with its calls."""
    calls: list[int] = []

    def called(*args: Tensor) -> Results:
        calls.append(1)
        return function(*args)  # type: ignore[operator, no-any-return]

    monkeypatch.setattr(dispatch, "_launcher", lambda _: called)
    return calls


def test_a_right_kernel_runs_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = kernel(monkeypatch, lambda x: (x + x,))
    for _ in range(3):
        assert run(DOUBLE, torch.ones(2))[0].tolist() == [2, 2]
    assert len(calls) == 3 and SEEN.arms() == {"kernel.double": "3/3"} and not SEEN.lines


@pytest.mark.parametrize("wrong", [lambda x: (x * 2.1,), lambda x: (x * float("nan"),), lambda x: (x[:1] * 2,)])
def test_a_kernel_that_disagrees_is_out_from_its_first_call_on(monkeypatch: pytest.MonkeyPatch, wrong: object) -> None:
    calls = kernel(monkeypatch, wrong)
    for _ in range(3):
        assert run(DOUBLE, torch.ones(2))[0].tolist() == [2, 2]
    assert len(calls) == 1 and SEEN.arms() == {"kernel.double": "0/3"}
    assert len(SEEN.lines) == 1 and "disagrees" in SEEN.lines[0]


def test_another_width_or_dtype_is_checked_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel(monkeypatch, lambda x: (x * (3 if x.shape[-1] == 5 or x.dtype == torch.float64 else 2),))
    for x in (torch.ones(1, 2), torch.ones(1, 5), torch.ones(1, 2, dtype=torch.float64)):
        assert (run(DOUBLE, x)[0] == 2).all()
    assert SEEN.arms() == {"kernel.double": "1/3"}


def test_one_proof_covers_any_number_of_rows_and_another_shape_of_a_whole_argument_needs_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    proofs: list[int] = []

    def reference(x: Tensor) -> Results:
        proofs.append(1)
        return (x * 2,)

    kernel(monkeypatch, lambda x: (x * 2,))
    for shape in ((4,), (5,), (1, 3), (7, 3), (2, 2, 3)):
        run(Op("rows", "none.none", reference), torch.ones(shape))
    assert len(proofs) == 2  # one dimension, and a last one of 3
    for shape in ((1, 3), (7, 3)):
        run(Op("whole", "none.none", reference, whole=(0,)), torch.ones(shape))
    assert len(proofs) == 4


@pytest.mark.parametrize("error", [NotImplementedError("too wide"), RuntimeError("no device"), ImportError("no triton")])
def test_a_kernel_that_cannot_run_falls_back_and_says_why(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken(x: Tensor) -> Results:
        raise error

    kernel(monkeypatch, broken)
    assert run(DOUBLE, torch.ones(2))[0].tolist() == [2, 2]
    assert SEEN.arms() == {"kernel.double": "0/1"} and str(error) in SEEN.lines[0]


def test_an_error_that_is_not_a_kernels_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (KeyError("a slip in our code"), torch.OutOfMemoryError("full")):
        def broken(x: Tensor, error: Exception = error) -> Results:
            raise error

        kernel(monkeypatch, broken)
        with pytest.raises(type(error)):
            run(DOUBLE, torch.ones(2))


def test_what_a_wrong_or_failing_kernel_wrote_in_place_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_written(x: Tensor) -> Results:
        x[0] = 99
        raise RuntimeError("stopped half way")

    for bad in (half_written, lambda x: (x.mul_(3).sum(),), lambda x: (x.mul_(3).sum() / 1.5,)):
        dispatch.forget_proofs()
        kernel(monkeypatch, bad)
        x = torch.ones(2)
        assert float(run(IN_PLACE, x)[0]) == 4 and x.tolist() == [2, 2]


def test_an_in_place_kernel_that_fails_later_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel(monkeypatch, _double_in_place)
    run(IN_PLACE, torch.ones(2))

    def half_written(x: Tensor) -> Results:
        x[0] = 99
        raise RuntimeError("stopped half way")

    kernel(monkeypatch, half_written)
    with pytest.raises(DormouseError, match="half way"):
        run(IN_PLACE, torch.ones(2))


def test_close_holds_every_result_to_its_dtypes_rounding() -> None:
    x = torch.full((3,), 100.0)
    assert close((x + 0.05,), (x,)) is None and close((x + 0.2,), (x,)) is not None
    assert close((x.bfloat16(),), (x.bfloat16() + 2,)) is None and close((torch.ones(2), x), (torch.ones(2), x + 1)) is not None


def test_nothing_is_asked_of_a_cpu_tensor_without_a_request() -> None:
    rows, table = torch.zeros(2, 3, dtype=torch.int64), torch.ones(4, 2)
    engram.gather(rows, table)
    with requested():
        assert dispatch.wanted(table)
    assert not dispatch.wanted(table) and not SEEN.asked


def test_report_hands_counts_and_lines_over_once() -> None:
    SEEN.ask("kernel.x", True, 3)
    SEEN.ask("kernel.x", False)
    SEEN.loud("kernel x cannot run")
    ledger = Ledger()
    report(ledger)
    report(ledger)
    assert ledger.arms() == {"kernel.x": "3/4"} and ledger.lines == ["kernel x cannot run"] and not ledger.counters()


def alone(code: str, **environment: str) -> str:
    """Run a program in a process where triton is not set to its interpreter."""
    kept = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**kept, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_policy_on_a_cpu_imports_no_triton() -> None:
    alone("import sys, torch; from dormouse_core.config.resolve import resolve; from dormouse_core.policy.model import build_policy\n"
          "p = build_policy(resolve('tiny').policy, 1); p(torch.zeros(2, 9, dtype=torch.int64)).logits_BLV.sum().backward()\n"
          "assert 'triton' not in sys.modules")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to run on")
def test_a_request_without_device_or_interpreter_is_a_counted_fallback() -> None:
    pytest.importorskip("triton")
    out = alone("import torch; from dormouse_core.kernels import dispatch, engram, seen\n"
                "with dispatch.requested():\n    x = engram.gather(torch.ones(2, 3, dtype=torch.int64), torch.arange(6.).view(3, 2))\n"
                "print(x.tolist(), seen.SEEN.arms(), seen.SEEN.lines)")
    assert "[[2.0, 3.0, 2.0, 3.0, 2.0, 3.0], [2.0, 3.0, 2.0, 3.0, 2.0, 3.0]]" in out and "'0/1'" in out and "cannot run" in out


def test_these_tests_ran_on_a_gpu() -> None:
    """Where there is one, the tests of this folder run compiled on it; where there is none, this line says so."""
    if not ON_GPU:
        reason = "no GPU (or TRITON_INTERPRET=1): the kernels were checked in Triton's interpreter only, none ran compiled"
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    assert os.environ.get("TRITON_INTERPRET") != "1"
    engram.gather(torch.zeros(2, 3, dtype=torch.int64, device="cuda"), torch.ones(4, 2, device="cuda"))
    assert SEEN.arms() == {"kernel.engram_gather": "1/1"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("capability", ["80", "120"])
def test_every_kernel_compiles_to_machine_code_of_a_gpu_that_is_not_here(capability: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    out = alone(f"import sys, runpy; sys.argv[1:] = [{capability!r}]; runpy.run_module('tests.core.kernels.compiled', run_name='__main__')",
                TRITON_CACHE_DIR=str(tmp_path))
    assert len({line.split()[0] for line in out.splitlines()}) == 12 and len(out.splitlines()) == 24
