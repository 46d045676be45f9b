"""WorkerPool: processes that hold a copy of the live weights and apply module-level functions to items.

The pool starts once (a fork server that has torch loaded) and lives as long as its owner; new weights travel through shared
memory, results come back in item order, and which process did what changes nothing. One worker means this process itself.
A function that is a generator hands over what it yields at once, and goes on: its owner works on the part meanwhile.
What a worker's kernels were asked and ran, and what they said aloud, is counted here (kernels/seen.py).
A worker that dies, or an interrupt, ends the pool with an error that says what to do; no child outlives its owner.
Not here: what is mapped (rollouts, gradients, evaluation).
"""

import ctypes
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.shared_memory import SharedMemory
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.kernels.seen import add, taken
from dormouse_core.ledger import DormouseError
from dormouse_core.policy.model import Policy, build_policy

Job = Callable[..., Any]
Tell = Callable[[int, Any], None]
_PRELOAD = ["torch", "dormouse_core.policy.model", "dormouse_core.rollouts.workers"]
_SET_PARENT_DEATH_SIGNAL = 1
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the weights are: shared block, and (name, dtype, shape, offset) of each tensor."""

    block: str
    config: PolicyConfig
    tensors: tuple[tuple[str, torch.dtype, tuple[int, ...], int], ...]
    size: int


_Ticket = tuple[_Layout, int]
"""Which weights an item is for: where they are, and how often they have changed."""


class _Said(StrEnum):
    """What a worker's message is."""

    PART = "part"  # a yielded value; the item goes on
    DONE = "done"  # the result, and what the kernels were asked on the way
    FAILED = "failed"  # an exception and its trace


@dataclass(slots=True)
class _Worker:
    process: ForkServerProcess
    connection: Connection
    lifeline: Connection  # never written to: it closes when this process dies, however it dies
    item: int = -1  # index it works on; -1: idle


class WorkerPool:
    """`workers` processes of `threads` torch threads each; a context manager."""

    def __init__(self, workers: int, threads: int = 1) -> None:
        self.workers, self.threads = workers, threads
        self._policy: Policy | None = None
        self._reference: Policy | None = None
        self._blocks = (_Block(), _Block())  # of the policy, of the reference
        self._crew: list[_Worker] = []
        self._closed = False
        if workers == 1:
            torch.set_num_threads(threads)
        else:
            self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether it can no longer be mapped over: closed by its owner, or by a failure."""
        return self._closed

    def set_weights(self, policy: Policy) -> None:
        """Every later `map` uses these weights (a copy of them as they are now, unless this process is the worker)."""
        self._open()
        self._policy = policy
        if self.workers > 1:
            self._blocks[0].put(policy)

    def set_reference(self, policy: Policy) -> None:
        """A second policy, for functions that compare: a later `map` with `reference` hands it over behind the item."""
        self._open()
        self._reference = policy
        if self.workers > 1:
            self._blocks[1].put(policy)

    def map(self, function: Job, items: Iterable[Any], on_done: Tell | None = None, on_part: Tell | None = None,
            reference: bool = False) -> list[Any]:
        """[function(policy, item) for item in items], shared out; `on_done(index, result)` is called as each arrives, and
        `on_part(index, value)` for what a generator function yields (its result is what it returns).

        `function` must be module-level. With `reference` it is called as function(policy, item, reference). An exception of `function`
        is raised here (other items are abandoned). Raises DormouseError when a worker dies.
        """
        self._open()
        policies = [p for p in (self._policy, self._reference if reference else None) if p is not None]
        if len(policies) != 1 + reference:
            raise ValueError("set_weights, and set_reference where it is asked for, come before map")
        owed = list(items)
        if self.workers == 1:
            return [_told(on_done, i, _carry_out(function, policies, item, _teller(on_part, i))) for i, item in enumerate(owed)]
        try:
            return self._share_out(function, owed, [b.ticket() for b in self._blocks[: len(policies)]], on_done, on_part)
        except BaseException:
            self.close(kill=True)
            raise

    def close(self, kill: bool = False) -> None:
        """End the workers. Nothing can be mapped afterwards."""
        self._closed = True
        crew, self._crew = self._crew, []
        for worker in crew:
            if kill:
                worker.process.kill()
            worker.connection.close()
            worker.lifeline.close()
        for worker in crew:
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        for block in self._blocks:
            block.drop()

    # --- inside

    def _open(self) -> None:
        if self._closed:
            raise DormouseError("the worker pool is closed (a worker died, or the stage was interrupted); start the stage again, it "
                                "resumes where it stopped")

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        for number in range(self.workers):
            ours, theirs = context.Pipe()
            listens, lifeline = context.Pipe(duplex=False)
            process = context.Process(target=_serve, args=(theirs, listens, self.threads), name=f"dormouse-worker-{number}", daemon=True)
            process.start()
            theirs.close()
            listens.close()
            self._crew.append(_Worker(process, ours, lifeline))

    def _share_out(self, function: Job, items: list[Any], tickets: list[_Ticket], on_done: Tell | None, on_part: Tell | None) -> list[Any]:
        results: list[Any] = [None] * len(items)
        following = iter(range(len(items)))
        for worker in self._crew:
            self._hand(worker, function, items, tickets, following)
        while busy := [w for w in self._crew if w.item >= 0]:
            ready = wait([w.connection for w in busy] + [w.process.sentinel for w in busy])
            for worker in busy:
                if worker.connection in ready:
                    i = worker.item
                    said, value = self._receive(worker)
                    if said is _Said.PART:
                        _told(on_part, i, value)
                        continue
                    self._hand(worker, function, items, tickets, following)
                    result, counts = value
                    add(counts)
                    results[i] = _told(on_done, i, result)
                elif worker.process.sentinel in ready:
                    self._receive(worker)
        return results

    def _hand(self, worker: _Worker, function: Job, items: list[Any], tickets: list[_Ticket], following: Iterable[int]) -> None:
        worker.item = next(iter(following), -1)
        if worker.item >= 0:
            try:
                worker.connection.send((tickets, function, items[worker.item]))
            except (BrokenPipeError, ConnectionResetError) as error:
                raise self._dead(worker) from error

    def _receive(self, worker: _Worker) -> tuple[_Said, Any]:
        try:
            said, value = worker.connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise self._dead(worker) from error
        if said is not _Said.FAILED:
            return said, value
        failure, trace = value
        failure.add_note(f"in {worker.process.name}:\n{trace}")
        raise failure

    def _dead(self, worker: _Worker) -> DormouseError:
        worker.process.join(1)
        code = worker.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with exit code {code}"
        return DormouseError(f"{worker.process.name} (pid {worker.process.pid}) {how} while it worked on item {worker.item}. If memory ran "
                             "out, lower roll.lanes or set roll.workers=1. Start the stage again: what was finished is kept, the rest is "
                             "redone.")


def _told(tell: Tell | None, index: int, value: Any) -> Any:
    if tell is not None:
        tell(index, value)
    return value


def _teller(tell: Tell | None, index: int) -> Callable[[Any], None]:
    return lambda value: _told(tell, index, value)


def _carry_out(function: Job, policies: Sequence[Policy], item: Any, tell: Callable[[Any], None]) -> Any:
    """The result of one item; what a generator yields on the way is told."""
    made = function(policies[0], item, *policies[1:])
    if not isinstance(made, Generator):
        return made
    while True:
        try:
            part = next(made)
        except StopIteration as end:
            return end.value
        tell(part)


class _Block:
    """The weights of one policy in shared memory, as their owner writes them."""

    def __init__(self) -> None:
        self.layout: _Layout | None = None
        self.memory: SharedMemory | None = None
        self.version = 0

    def put(self, policy: Policy) -> None:
        """Write the weights. Equal ones are left alone, so that workers need not read them again."""
        state = {name: tensor.detach() for name, tensor in policy.state_dict().items()}
        fresh = self.layout is None or self.layout.config != policy.config
        if fresh:
            self._lay_out(policy.config, state)
        assert self.memory is not None and self.layout is not None
        views = _views(self.memory, self.layout)
        if fresh or not all(torch.equal(views[name], tensor) for name, tensor in state.items()):
            for name, tensor in state.items():
                views[name].copy_(tensor)
            self.version += 1

    def ticket(self) -> _Ticket:
        assert self.layout is not None
        return self.layout, self.version

    def drop(self) -> None:
        if self.memory is not None:
            self.memory.close()
            self.memory.unlink()
            self.memory = None

    def _lay_out(self, config: PolicyConfig, state: dict[str, Tensor]) -> None:
        tensors, offset = [], 0
        for name, tensor in state.items():
            tensors.append((name, tensor.dtype, tuple(tensor.shape), offset))
            offset += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        self.drop()
        try:
            self.memory = SharedMemory(create=True, size=max(offset, 1))
            os.posix_fallocate(self.memory._fd, 0, max(offset, 1))  # type: ignore[attr-defined]
        except OSError as error:
            raise DormouseError(f"no shared memory for {offset:,} bytes of weights ({error.strerror}); make /dev/shm larger, or use one "
                                "worker: --set roll.workers=1") from error
        self.layout = _Layout(self.memory.name, config, tuple(tensors), offset)


def _views(memory: SharedMemory, layout: _Layout) -> dict[str, Tensor]:
    """Tensors that lie in the shared block."""
    out = {}
    for name, dtype, shape, offset in layout.tensors:
        count = 1
        for n in shape:
            count *= n
        flat = torch.frombuffer(memory.buf, dtype=dtype, count=count, offset=offset) if count else torch.empty(0, dtype=dtype)
        out[name] = flat.view(shape)
    return out


class _Holder:
    """A worker's own policy, brought up to date from the shared block."""

    def __init__(self) -> None:
        self.layout: _Layout | None = None
        self.memory: SharedMemory | None = None
        self.policy: Policy | None = None
        self.version = -1

    def at(self, layout: _Layout, version: int) -> Policy:
        if self.policy is None or self.layout != layout:
            if self.memory is not None:
                self.memory.close()
            self.memory = SharedMemory(layout.block)
            self.policy = build_policy(layout.config, 0)
            self.layout, self.version = layout, -1
        if self.version != version:
            assert self.memory is not None
            self.policy.load_state_dict(_views(self.memory, layout))
            self.version = version
        return self.policy


def _end_with_owner(lifeline: Connection) -> None:
    """Wait for the owner's end of the lifeline to close, then end this process, whatever it is doing."""
    try:
        lifeline.recv()
    except (EOFError, OSError):
        os._exit(1)


def _serve(connection: Connection, lifeline: Connection, threads: int) -> None:
    """A worker's whole life: items until the pipe closes. An interrupt is the owner's business.

    The parent of this process is the fork server, which a dead owner leaves running while it has children: so the kernel's
    parent-death signal covers the server, and the lifeline covers the owner.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    threading.Thread(target=_end_with_owner, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(threads)
    holders = (_Holder(), _Holder())
    while True:
        try:
            tickets, function, item = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            policies = [holder.at(*ticket) for holder, ticket in zip(holders, tickets, strict=False)]
            result = _carry_out(function, policies, item, lambda part: _send(connection, (_Said.PART, part)))
            reply: tuple[_Said, Any] = (_Said.DONE, (result, taken()))
        except Exception as error:  # noqa: BLE001 - any failure of an item is raised again where the item came from
            reply = (_Said.FAILED, (error, traceback.format_exc()))
        _send(connection, reply)


def _send(connection: Connection, reply: tuple[_Said, Any]) -> None:
    try:
        connection.send(reply)
    except (BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:  # noqa: BLE001 - a result that cannot be pickled is an error of the item
        connection.send((_Said.FAILED, (RuntimeError(f"the result cannot travel: {error}"), traceback.format_exc())))
