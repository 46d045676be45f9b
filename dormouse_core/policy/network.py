"""Policy: bytes in, logits over bytes out; a window at a time (training, scoring) or a byte at a time (decoding).

hidden = mean over iterations of the readout (constant weights only), logits = head(RMSNorm(hidden)), fp32. There is one
head path: what samples is what trains. Equations, shapes and what goes wrong: docs/policy.md.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dormouse_core.config.policy import PolicyConfig
from dormouse_core.encoding import VOCABULARY
from dormouse_core.policy.block import Fused, LoopBlock, controller_width, fuse, iterate_byte, iterate_window, narrow
from dormouse_core.policy.depth import Course, Trace, knob_values, open_rows
from dormouse_core.policy.entrance import Entrance, Memory
from dormouse_core.policy.experts import Route, Tsct
from dormouse_core.policy.heads import LinearHead
from dormouse_core.policy.native import NativeByte
from dormouse_core.policy.native_window import native_window
from dormouse_core.policy.pages import keep_freed_pages
from dormouse_core.policy.products import BYTE_TILE, WINDOW_TILE
from dormouse_core.policy.readout import Readout
from dormouse_core.policy.recompute import recomputed
from dormouse_core.policy.state import CONTEXT, MIN_ROWS, State


class PolicyOutput(NamedTuple):
    """logits_BLV fp32; hidden_BLD the mean readout before its norm; state after the window; deep_TBLV when asked for; depth, [T, B, L]
    each, where a depth arm runs."""

    logits_BLV: Tensor
    hidden_BLD: Tensor
    state: State
    deep_TBLV: Tensor | None = None
    depth: Trace | None = None


class _Packed(NamedTuple):
    """Weights as decoding uses them, with the versions of the parameters they were made from."""

    entrance: Entrance
    fused: Fused
    readout: Readout
    parameters: tuple[Tensor, ...]
    versions: tuple[int, ...]
    native: NativeByte | None = None


class Policy(nn.Module):
    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        d = config.d_model
        self.embedding = nn.Parameter(torch.empty(VOCABULARY, d))
        self.block = LoopBlock(config)
        self.readout = Tsct(d, d, config.readout_rank or config.rank)
        self.final_norm = nn.Parameter(torch.empty(d))
        self.head = Tsct(d, VOCABULARY, min(d, VOCABULARY))
        self.value_head = LinearHead(d)
        self.q_head = LinearHead(d)
        self.mor_router = LinearHead(d)
        self.register_buffer("balance_bias_E", torch.zeros(config.n_experts))
        self.register_buffer("load_E", torch.zeros(config.n_experts, dtype=torch.int64))
        self.register_buffer("balance_version", torch.zeros((), dtype=torch.int64))
        knobs_K = knob_values(config)
        if knobs_K is not None:
            self.register_buffer("depth_knobs", knobs_K)
        self.trace: Trace | None = None
        """What the depth arm did with the last decoded bytes, [T, B] each; None without an arm."""
        if config.dtype != "float32":
            for p in self.parameters():
                p.data = torch.empty_like(p, dtype=getattr(torch, config.dtype))
        self.count_load = False
        """While True, forwards in train mode add the experts' hard-selection counts to `load_E`."""
        self._packed: _Packed | None = None

    @property
    def lfb_version(self) -> int:
        """How often the selection bias has moved. Log-probs of two versions are not comparable."""
        return int(cast(Tensor, self.balance_version))

    @property
    def computes_natively(self) -> bool:
        """Whether compiled calls are asked for: the setting is for a CPU."""
        return self.config.compute == "native" and self.embedding.device.type == "cpu"

    def initial_state(self, batch: int) -> State:
        c = self.config
        return State.zeros(batch, c.max_iter, c.n_heads, c.head_dim, self.embedding.device)

    def state_from_bytes(self, rows: list[bytes]) -> State:
        c = self.config
        return State.from_bytes(rows, c.max_iter, c.n_heads, c.head_dim, self.embedding.device)

    def value(self, hidden_XD: Tensor) -> Tensor:
        return cast(Tensor, self.value_head(hidden_XD))

    def head_weight(self) -> Tensor:
        """[V, d], fp32: the factored head multiplied out, the final norm's weight folded in."""
        return self.head.scaled_v().float() @ (self.head.u * self.final_norm.unsqueeze(1)).float().t()

    def _entrance(self, fused: Fused) -> Entrance:
        return Entrance(self.embedding, self.block.engram.rows, fused.w_start_PD, fused.w_engram_XM)

    def _readout(self) -> Readout:
        return Readout(self.readout.u, self.readout.scaled_v(), self.head_weight())

    def forward(self, ids_BL: Tensor, state: State | None = None, deep: bool = False, length_B: Tensor | None = None,
                depth: int | None = None) -> PolicyOutput:
        """ids_BL: int64 bytes. Row b, position j of the logits predicts byte j + 1 from bytes 0..j and the state before.

        length_B: where rows end; the final state is then the one behind each row's own last byte, with the bits it has when the
        row runs alone. What is computed at positions past a row's end means nothing.
        depth: iterations to run in place of the knob's, under random depth only (ValueError elsewhere, and outside the trained ones).
        """
        batch, length = ids_BL.shape
        if batch * length < MIN_ROWS:
            return self._forward_few(ids_BL, state, deep, length_B, depth)
        config, block = self.config, self.block
        if torch.is_grad_enabled() and ids_BL.device.type == "cpu":
            keep_freed_pages()
        state = state if state is not None else self.initial_state(batch)
        fused, readout = fuse(block, config), self._readout()
        entrance, context_BX = self._entrance(fused), torch.cat((state.tail_B3, ids_BL), 1)
        past_BL = None if length_B is None else torch.arange(length, device=ids_BL.device) >= length_B.unsqueeze(1)
        course, bias_E = Course(self, config, depth), cast(Tensor, self.balance_bias_E)
        before_TBHKV = state.kda_TBHKV_padded[:, :batch]
        native = native_window(entrance, block, fused, readout, config, bias_E, length_B) if self.computes_natively else None
        if native is not None:
            mean_BLD, after_TBLD, final_TBHKV, chosen_TNk = native.iterate(native.enter(context_BX), block.iter_embed, before_TBHKV)
            self._count(chosen_TNk)
        else:
            iterate = _recomputed if config.recompute and torch.is_grad_enabled() else iterate_window
            after, streams = [], list(before_TBHKV)
            h_BLD, start_NP, memory = entrance.of(context_BX, config.engram_rows, config.norm_eps, WINDOW_TILE)
            for n in range(course.iterations):
                gate_N1 = course.gate_N1
                h_BLD, streams[n], choice = iterate(
                    h_BLD, n, start_NP, memory, streams[n], bias_E, block, fused, config, past_BL, gate_N1
                )  # fmt: skip
                self._count(choice.index_Nk if gate_N1 is None else choice.index_Nk[gate_N1[:, 0] > 0])
                course.after(h_BLD)
                after.append(h_BLD)
            after_TBLD, final_TBHKV = torch.stack(after), torch.stack(streams)
            mean_BLD = course.mean(after_TBLD)
        read_out = native.read_out if native is not None else partial(readout.of, eps=config.norm_eps, tile=WINDOW_TILE)
        hidden_BLD, logits_BLV = read_out(mean_BLD)
        deep_TBLV = torch.stack([read_out(h_BLD)[1] for h_BLD in after_TBLD]) if deep or course.blends else None
        if course.blends:
            assert deep_TBLV is not None
            logits_BLV = course.blended(deep_TBLV)
        return PolicyOutput(logits_BLV, hidden_BLD, _state(final_TBHKV, context_BX, batch, length_B), deep_TBLV if deep else None,
                            course.trace(batch, length))

    def _count(self, chosen: Tensor) -> None:
        """Add a training forward's choices of experts, of any shape, to the load, where they are counted."""
        if self.count_load and self.training:
            cast(Tensor, self.load_E).add_(torch.bincount(chosen.flatten(), minlength=self.config.n_experts))

    def _forward_few(self, ids_BL: Tensor, state: State | None, deep: bool, length_B: Tensor | None, depth: int | None) -> PolicyOutput:
        """Windows of fewer than 16 bytes in all: run with padding rows, so that their bits are those of a larger batch.
        What they select is not counted as load."""
        batch = len(ids_BL)
        state = state if state is not None else self.initial_state(batch)
        padded = State(state.kda_TBHKV_padded, state.tail_B3_padded, len(state.tail_B3_padded))
        counting, self.count_load = self.count_load, False
        try:
            ends_B = None if length_B is None else F.pad(length_B, (0, padded.batch - batch))
            out = self.forward(F.pad(ids_BL, (0, 0, 0, padded.batch - batch)), padded, deep, ends_B, depth)
        finally:
            self.count_load = counting
        final = State(out.state.kda_TBHKV_padded, out.state.tail_B3_padded, batch)
        deep_TBLV = None if out.deep_TBLV is None else out.deep_TBLV[:, :batch]
        trace = None if out.depth is None else out.depth.first(batch)
        return PolicyOutput(out.logits_BLV[:batch], out.hidden_BLD[:batch], final, deep_TBLV, trace)

    def refresh(self) -> None:
        """Rebuild the weights decoding uses. Changes made in this process are noticed by themselves; call this when
        another process wrote into shared parameters."""
        self._packed = None

    def _pack(self) -> _Packed:
        packed = self._packed
        if packed is not None and packed.versions == tuple([p._version for p in packed.parameters]):
            return packed
        return self._packed_anew()

    @torch.inference_mode()
    def _packed_anew(self) -> _Packed:
        parameters = tuple(self.parameters())
        fused, readout, native = fuse(self.block, self.config), self._readout(), None
        if self.computes_natively:
            native = NativeByte(self, fused, readout, controller_width(self.config), narrow(self.config))
        packed = _Packed(self._entrance(fused), fused, readout, parameters, tuple([p._version for p in parameters]), native)
        self._packed = packed
        return packed

    def decode(self, ids_B: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """One byte for each row of the state: (logits_BV for the next byte, hidden_BD). Updates the state in place."""
        if ids_B.shape != (state.batch,):
            raise ValueError(f"decode got {tuple(ids_B.shape)} bytes for a state of {state.batch} rows")
        packed = self._pack()
        if packed.native is not None:
            return packed.native.step(ids_B, state, lambda ids_B, state: self._decode(ids_B, state, packed))
        return self._decode(ids_B, state, packed)

    @torch.inference_mode()
    def _decode(self, ids_B: Tensor, state: State, packed: _Packed) -> tuple[Tensor, Tensor]:
        """`decode` in torch."""
        config, batch = self.config, state.batch
        if batch < MIN_ROWS:
            ids_B = F.pad(ids_B, (0, MIN_ROWS - batch))
        context_B4 = torch.cat((state.tail_B3_padded, ids_B.unsqueeze(1)), 1)
        h_B1D, start_BP, memory = packed.entrance.of(context_B4, config.engram_rows, config.norm_eps, BYTE_TILE)
        h_BD = h_B1D.squeeze(1)
        state.tail_B3_padded.copy_(context_B4[:, 1:])
        if config.depth.kind != "fixed":
            logits_BV, hidden_BD = self._decode_course(h_BD, start_BP, memory, state, packed)
            return logits_BV[:batch], hidden_BD[:batch]
        total_BD = torch.zeros_like(h_BD, dtype=torch.float32)
        for n in range(config.max_iter):
            h_BD = iterate_byte(
                h_BD, n, start_BP, memory, state.kda_TBHKV_padded[n], cast(Tensor, self.balance_bias_E), self.block, packed.fused, config
            )
            total_BD += h_BD
        hidden_BD, logits_BV = packed.readout.of((total_BD / config.max_iter).to(h_BD.dtype), config.norm_eps, BYTE_TILE)
        return logits_BV[:batch], hidden_BD[:batch]

    def _decode_course(self, h_BD: Tensor, start_BP: Tensor, memory: Memory, state: State, packed: _Packed) -> tuple[Tensor, Tensor]:
        """The loop of `decode` under a depth arm: (logits, hidden) of all rows, padding included."""
        config, readings, course = self.config, list[Tensor](), Course(self, self.config)
        bias_E = cast(Tensor, self.balance_bias_E)
        for n in range(course.iterations):
            stream_BHKV, gate_B1 = state.kda_TBHKV_padded[n], course.gate_N1
            some = None if gate_B1 is None else open_rows(gate_B1, MIN_ROWS)
            if some is None:
                h_BD = iterate_byte(h_BD, n, start_BP, memory, stream_BHKV, bias_E, self.block, packed.fused, config, gate_B1)
            elif len(some):
                assert gate_B1 is not None
                part_BHKV = stream_BHKV.index_select(0, some)
                part_BD = iterate_byte(h_BD[some], n, start_BP[some], Memory(*(m[some] for m in memory)), part_BHKV, bias_E, self.block,
                                       packed.fused, config, gate_B1[some])
                stream_BHKV.index_copy_(0, some, part_BHKV)
                h_BD = h_BD.index_copy(0, some, part_BD)
            readings.append(h_BD)
            course.after(h_BD)
        after_TBD = torch.stack(readings)
        hidden_BD, logits_BV = packed.readout.of(course.mean(after_TBD), config.norm_eps, BYTE_TILE)
        trace = course.trace(len(h_BD))
        self.trace = None if trace is None else trace.first(state.batch)
        if course.blends:
            deep_TBV = torch.stack([packed.readout.of(h_BD, config.norm_eps, BYTE_TILE)[1] for h_BD in after_TBD])
            logits_BV = course.blended(deep_TBV)
        return logits_BV, hidden_BD


def _recomputed(*arguments: Any) -> tuple[Tensor, Tensor, Route]:
    """`iterate_window` that keeps its arguments for the backward and nothing else."""
    return recomputed(iterate_window, *arguments)


def _state(kda_TBHKV: Tensor, context_BX: Tensor, batch: int, length_B: Tensor | None) -> State:
    """The state after a window (after each row's own end where lengths are given), with its storage padded to MIN_ROWS rows."""
    tail_B3 = context_BX[:, -CONTEXT:]
    if length_B is not None:
        tail_B3 = context_BX.gather(1, length_B.unsqueeze(1) + torch.arange(CONTEXT, device=length_B.device))
    short = MIN_ROWS - batch
    if short > 0:
        kda_TBHKV = F.pad(kda_TBHKV, (0, 0, 0, 0, 0, 0, 0, short))
        tail_B3 = F.pad(tail_B3, (0, 0, 0, short))
    return State(kda_TBHKV, tail_B3.contiguous(), batch)
