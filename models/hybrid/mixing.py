"""The sequence part of the recurrent layers in training: the convolution and the delta rule over a `Layout`.

On a GPU with flash-linear-attention (fla-core) and Triton the kernels are theirs and `Convolution` below;
else plain PyTorch (hybrid.py) does the same, slowly.
"""

import torch

import hybrid

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:
    @triton.jit
    def _taps(x, w, before, t, d, ok, T, D: tl.constexpr):
        acc = tl.load(x + t[:, None] * D + d[None, :], mask=ok[:, None], other=0.0).to(tl.float32) * tl.load(w + 3 * D + d)[None, :]
        for j in tl.static_range(3):
            p = tl.load(before + j * T + t, mask=ok, other=-1)
            v = tl.load(x + p[:, None] * D + d[None, :], mask=(p >= 0)[:, None], other=0.0).to(tl.float32)
            acc += v * tl.load(w + (2 - j) * D + d)[None, :]
        return acc

    @triton.jit
    def _forward(x, w, before, y, T, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
        t = tl.program_id(0) * BT + tl.arange(0, BT)
        d = tl.program_id(1) * BD + tl.arange(0, BD)
        ok = t < T
        acc = _taps(x, w, before, t, d, ok, T, D)
        y_ = acc * tl.sigmoid(acc)
        tl.store(y + t[:, None] * D + d[None, :], y_.to(y.dtype.element_ty), mask=ok[:, None])

    @triton.jit
    def _backward_inner(x, w, before, dy, da, dw, T, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
        """da: gradient before the SiLU; dw [blocks, 4, D]: partial sums."""
        block = tl.program_id(0)
        t = block * BT + tl.arange(0, BT)
        d = tl.program_id(1) * BD + tl.arange(0, BD)
        ok = t < T
        acc = _taps(x, w, before, t, d, ok, T, D)
        s = tl.sigmoid(acc)
        grad = tl.load(dy + t[:, None] * D + d[None, :], mask=ok[:, None], other=0.0).to(tl.float32)
        grad = grad * s * (1.0 + acc * (1.0 - s))
        tl.store(da + t[:, None] * D + d[None, :], grad.to(da.dtype.element_ty), mask=ok[:, None])
        own = tl.load(x + t[:, None] * D + d[None, :], mask=ok[:, None], other=0.0).to(tl.float32)
        tl.store(dw + (block * 4 + 3) * D + d, tl.sum(grad * own, 0))
        for j in tl.static_range(3):
            p = tl.load(before + j * T + t, mask=ok, other=-1)
            v = tl.load(x + p[:, None] * D + d[None, :], mask=(p >= 0)[:, None], other=0.0).to(tl.float32)
            tl.store(dw + (block * 4 + 2 - j) * D + d, tl.sum(grad * v, 0))

    @triton.jit
    def _backward_outer(da, w, before, dx, T, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
        t = tl.program_id(0) * BT + tl.arange(0, BT)
        d = tl.program_id(1) * BD + tl.arange(0, BD)
        ok = t < T
        acc = tl.load(da + t[:, None] * D + d[None, :], mask=ok[:, None], other=0.0).to(tl.float32) * tl.load(w + 3 * D + d)[None, :]
        for j in tl.static_range(3):
            n = t + j + 1
            p = tl.load(before + j * T + n, mask=n < T, other=-1)
            v = tl.load(da + n[:, None] * D + d[None, :], mask=((n < T) & (p == t))[:, None], other=0.0).to(tl.float32)
            acc += v * tl.load(w + (2 - j) * D + d)[None, :]
        tl.store(dx + t[:, None] * D + d[None, :], acc.to(dx.dtype.element_ty), mask=ok[:, None])

    @triton.jit
    def _backward_far(da, w, source, source_at, pair, dx, D: tl.constexpr, BD: tl.constexpr):
        """Adds what tokens that are not next neighbours read: questions from the end of the context."""
        i = tl.program_id(0)
        d = tl.program_id(1) * BD + tl.arange(0, BD)
        first, last = tl.load(source_at + i), tl.load(source_at + i + 1)
        acc = tl.zeros([BD], tl.float32)
        for k in range(first, last):
            p = tl.load(pair + k)
            acc += tl.load(da + (p // 4) * D + d).to(tl.float32) * tl.load(w + (2 - p % 4) * D + d)
        to = dx + tl.load(source + i) * D + d
        tl.store(to, (tl.load(to).to(tl.float32) + acc).to(dx.dtype.element_ty))

    class Convolution(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, layout):
            x, w = x.contiguous(), w.contiguous()
            T, D = x.shape
            y = torch.empty_like(x)
            BT, BD = 64, 64
            _forward[(triton.cdiv(T, BT), D // BD)](x, w, layout.before, y, T, D, BT, BD)
            ctx.save_for_backward(x, w)
            ctx.layout = layout
            return y

        @staticmethod
        def backward(ctx, dy):
            x, w = ctx.saved_tensors
            lay = ctx.layout
            T, D = x.shape
            BT, BD = 64, 64
            grid = triton.cdiv(T, BT), D // BD
            da, dx = torch.empty_like(x), torch.empty_like(x)
            dw = torch.empty(grid[0], 4, D, device=x.device, dtype=torch.float32)
            _backward_inner[grid](x, w, lay.before, dy.contiguous(), da, dw, T, D, BT, BD)
            _backward_outer[grid](da, w, lay.before, dx, T, D, BT, BD)
            if len(lay.source):
                _backward_far[(len(lay.source), D // BD)](da, w, lay.source, lay.source_at, lay.source_pair, dx, D, BD)
            return dx, dw.sum(0), None


class Permute(torch.autograd.Function):
    """Rows in another order; both directions are gathers."""

    @staticmethod
    def forward(ctx, x, order, inverse):
        ctx.inverse = inverse
        return x[order]

    @staticmethod
    def backward(ctx, grad):
        return grad[ctx.inverse], None, None


class Plain:
    """PyTorch only."""

    def prepare(self, lay):
        device = lay.ids.device
        lay.plain = dict(ctx=hybrid.Sequences(None, lay.host["cu_ctx"], device),
                         q=hybrid.Sequences(None, lay.host["cu_q"], device))
        if lay.blocks:
            lay.plain["sys"] = hybrid.Sequences(None, lay.host["cu_sys"], device)
            lay.plain["card"] = hybrid.Sequences(None, lay.host["cu_card"], device)

    def conv(self, raw, taps, lay):
        return hybrid.convolve(raw, taps, lay.before.long())

    def delta(self, name, lay, q, k, v, g, beta, state=None, final=False):
        return lay.plain[name].run(q, k, v, g, beta, state)


def _one_config_each():
    """Keeps one tuning candidate of every kernel, with two warps. Tuning costs minutes. With four warps Triton 3.4 to
    3.7 miscompiles a backward kernel on Hopper, where fla refuses to run. `train.py --check` compares the kernels."""
    from triton.runtime.autotuner import Autotuner
    first = Autotuner.__init__

    def init(self, fn, arg_names, configs, *args, **kw):
        def rank(c):
            large = sum(c.kwargs.get(n, 0) for n in ("BK", "BV") if c.kwargs.get(n, 0) <= 64)
            return (c.num_warps != 2, -large, abs((c.num_stages or 2) - 2), str(c.kwargs.get("DOT_PRECISION", "")) != "ieee")
        first(self, fn, arg_names, sorted(configs, key=rank)[:1] if configs else configs, *args, **kw)

    Autotuner.__init__ = init


class Fast:
    """Triton kernels."""

    def __init__(self):
        _one_config_each()
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
        import fla.ops.common.chunk_o
        fla.ops.common.chunk_o.IS_NVIDIA_HOPPER = False
        self.rule = chunk_gated_delta_rule

    def prepare(self, lay):
        pass

    def conv(self, raw, taps, lay):
        return Convolution.apply(raw, taps, lay)

    def delta(self, name, lay, q, k, v, g, beta, state=None, final=False):
        from layout import CHUNK
        o, s = self.rule(q[None].contiguous(), k[None].contiguous(), v[None].contiguous(), g[None].contiguous(),
                         beta[None].contiguous(), initial_state=state, output_final_state=final,
                         use_qk_l2norm_in_kernel=True, cu_seqlens=getattr(lay, "cu_" + name),
                         chunk_indices=getattr(lay, "n_" + name), chunk_size=CHUNK[name])
        return o[0], s


def delta_layer(kernels, lay, q, k, v, g, beta):
    """Outputs of a recurrent layer for all tokens of a layout.

    The context stream as a whole gives the outputs of ordinary contexts and the state that questions start
    from: under the block mask that is the composed state, since the composition of the cards' affine maps
    is the recurrence over their tokens. The cards' own outputs then come from the state after the system text."""
    a, b = lay.ctx_tokens, lay.ctx_tokens + lay.q_tokens
    o, state = kernels.delta("ctx", lay, q[:a], k[:a], v[:a], g[:a], beta[:a], final=True)
    if lay.blocks:
        part = [x.index_select(0, lay.sys) for x in (q, k, v, g, beta)]
        _, start = kernels.delta("sys", lay, *part, final=True)
        part = [x.index_select(0, lay.card) for x in (q, k, v, g, beta)]
        alone, _ = kernels.delta("card", lay, *part, state=start.index_select(0, lay.card_owner))
        o = o.index_copy(0, lay.card, alone.to(o.dtype))
    asked, _ = kernels.delta("q", lay, q[a:b], k[a:b], v[a:b], g[a:b], beta[a:b], state=state.index_select(0, lay.owner))
    return torch.cat([o, asked.to(o.dtype), torch.zeros(len(v) - b, *v.shape[1:], dtype=o.dtype, device=o.device)])
