"""Nets on sequences, sets and graphs: modulation, experts, scans, message passing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tests.model.nets import CLASSES, Entry, Net, entry, mlp, weight


def _modulated(m: Any, x: Tensor, c: Tensor) -> Any:
    """A block of a diffusion transformer, whose norms are scaled and shifted by a condition."""
    shift, scale, gate, shift2, scale2, gate2 = m.modulate(c).chunk(6, dim=1)
    b, n, width = x.shape
    y = m.norm1(x) * (1 + scale[:, None]) + shift[:, None]
    q, k, v = m.qkv(y).reshape(b, n, 3, m.heads, width // m.heads).permute(2, 0, 3, 1, 4)
    y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, width)
    x = x + gate[:, None] * m.out(y)
    y = m.norm2(x) * (1 + scale2[:, None]) + shift2[:, None]
    return x + gate2[:, None] * m.mlp(y)


def _diffusion(m: Any, x: Tensor, times: Tensor) -> Any:
    c = m.time(torch.cat([times.sin(), times.cos()], 1))
    x = m.lift(x) + m.positions
    for block in m.blocks:
        x = block(x, c)
    shift, scale = m.modulate(c).chunk(2, dim=1)
    return m.out(m.norm(x) * (1 + scale[:, None]) + shift[:, None])


def diffusion_transformer(width: int = 24) -> nn.Module:
    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(width, elementwise_affine=False)

    def block() -> nn.Module:
        return Net(
            _modulated,
            norm1=norm(),
            norm2=norm(),
            qkv=nn.Linear(width, 3 * width),
            out=nn.Linear(width, width),
            mlp=mlp(width, 2 * width, width),
            modulate=nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width)),
            heads=4,
        )

    return Net(
        _diffusion,
        lift=nn.Linear(9, width),
        positions=weight(1, 5, width),
        time=mlp(8, width, width),
        blocks=nn.ModuleList([block() for _ in range(2)]),
        norm=norm(),
        modulate=nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width)),
        out=nn.Linear(width, 9),
    )


def _mixture(m: Any, x: Tensor) -> Any:
    shares, chosen = m.gate(x).flatten(0, 1).softmax(-1).topk(m.experts_per_token)
    x = m.embed(x).flatten(0, 1)
    mixed = torch.zeros_like(x)
    for number, expert in enumerate(m.experts):
        rows, places = torch.where(chosen == number)
        if len(rows):
            mixed.index_add_(0, rows, expert(x[rows]) * shares[rows, places, None])
    return m.out(x + mixed)


def experts() -> nn.Module:
    """Experts in a list, selected by the input; ten tokens leave some of them unused."""
    return Net(
        _mixture,
        embed=nn.Linear(9, 12),
        gate=nn.Linear(9, 8),
        experts=nn.ModuleList([mlp(12, 20, 12) for _ in range(8)]),
        out=nn.Linear(12, CLASSES),
        experts_per_token=1,
    )


def _stacked(m: Any, x: Tensor) -> Any:
    x = m.embed(x).flatten(0, 1)
    ends = torch.tensor([3, 3, 7, 10], dtype=torch.int32)
    gate, up = torch._grouped_mm(x, m.up, offs=ends).chunk(2, dim=-1)
    return m.out(x + torch._grouped_mm(functional.silu(gate) * up, m.down, offs=ends))


def stacked_experts() -> nn.Module:
    """Experts in one tensor, multiplied group by group."""
    return Net(
        _stacked,
        embed=nn.Linear(9, 16),
        up=weight(4, 16, 40),
        down=weight(4, 20, 16),
        out=nn.Linear(16, CLASSES),
    )


def _temporal(m: Any, x: Tensor) -> Any:
    for layer, skip in zip(m.layers, m.skips, strict=True):
        x = torch.relu(torch.relu(layer(x)[..., : x.shape[-1]]) + skip(x))
    return m.out(x[..., -1])


def temporal_convolutions() -> nn.Module:
    """Dilated, causal, with weight norm."""
    norm = parametrizations.weight_norm
    return Net(
        _temporal,
        layers=nn.ModuleList(
            [
                norm(nn.Conv1d(9, 12, 3, padding=2)),
                norm(nn.Conv1d(12, 16, 3, padding=4, dilation=2, groups=2)),
            ]
        ),
        skips=nn.ModuleList([nn.Conv1d(9, 12, 1), nn.Conv1d(12, 16, 1)]),
        out=nn.Linear(16, CLASSES),
    )


def _wavenet(m: Any, x: Tensor) -> Any:
    x, total = m.lift(x), torch.zeros(())
    for dilated, back, skip in zip(m.dilated, m.back, m.skips, strict=True):
        value, gate = dilated(x).chunk(2, 1)
        z = value.tanh() * gate.sigmoid()
        total = total + skip(z[..., -1:])
        x = back(z) + x[..., -z.shape[-1] :]
    return m.out(torch.relu(total)).squeeze(-1)


def wavenet() -> nn.Module:
    return Net(
        _wavenet,
        lift=nn.Conv1d(9, 12, 1),
        dilated=nn.ModuleList([nn.Conv1d(12, 24, 2, dilation=d) for d in (1, 2)]),
        back=nn.ModuleList([nn.Conv1d(12, 12, 1) for _ in range(2)]),
        skips=nn.ModuleList([nn.Conv1d(12, 10, 1) for _ in range(2)]),
        out=nn.Conv1d(10, CLASSES, 1),
    )


def _spatially_gated(m: Any, x: Tensor) -> Any:
    x = m.lift(x)
    value, gate = functional.gelu(m.up(m.norm(x))).chunk(2, -1)
    return m.out((x + m.down(value * m.over_steps(m.of_gate(gate)))).mean(1))


def gmlp() -> nn.Module:
    return Net(
        _spatially_gated,
        lift=nn.Linear(9, 16),
        norm=nn.LayerNorm(16),
        up=nn.Linear(16, 40),
        of_gate=nn.LayerNorm(20),
        over_steps=nn.Conv1d(5, 5, 1),
        down=nn.Linear(20, 16),
        out=nn.Linear(16, CLASSES),
    )


def _affine(m: Any, x: Tensor) -> Any:
    x = m.lift(x)
    x = x + m.scale * m.over_steps((x * m.a + m.b).transpose(1, 2)).transpose(1, 2)
    return m.out((x + m.mlp(x)).mean(1))


def resmlp() -> nn.Module:
    return Net(
        _affine,
        lift=nn.Linear(9, 16),
        a=weight(16),
        b=weight(16),
        scale=weight(16),
        over_steps=nn.Linear(5, 5),
        mlp=mlp(16, 40, 16),
        out=nn.Linear(16, CLASSES),
    )


def _scan(m: Any, x: Tensor) -> Any:
    value, gate = m.lift(x).split([m.width, m.width], -1)
    value = functional.silu(m.conv(value.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
    step, write, read = m.of_value(value).split([m.rank, m.states, m.states], -1)
    step = functional.softplus(m.of_step(step))
    decay = torch.exp(torch.einsum("bld,dn->bldn", step, -m.decay.exp()))
    written = torch.einsum("bld,bln,bld->bldn", step, write, value)
    state, outs = torch.zeros(len(x), m.width, m.states), []
    for t in range(x.shape[1]):
        state = decay[:, t] * state + written[:, t]
        outs.append(torch.einsum("bdn,bn->bd", state, read[:, t]))
    return m.out((torch.stack(outs, 1) + value * m.through) * functional.silu(gate))


def selective_scan() -> nn.Module:
    """Mamba by hand."""
    return Net(
        _scan,
        lift=nn.Linear(9, 24),
        conv=nn.Conv1d(12, 12, 3, padding=2, groups=12),
        of_value=nn.Linear(12, 3 + 8, bias=False),
        of_step=nn.Linear(3, 12),
        decay=weight(12, 4),
        through=weight(12),
        out=nn.Linear(12, CLASSES),
        width=12,
        states=4,
        rank=3,
    )


def _pointer(m: Any, x: Tensor) -> Any:
    keys, (h, c) = m.encode(x)
    h, c, chosen, outs = h[0], c[0], x.mean(1), []
    for _ in range(2):
        h, c = m.decode(chosen, (h, c))
        scores = m.score((m.of_keys(keys) + m.of_state(h)[:, None]).tanh()).squeeze(-1)
        chosen = (scores.softmax(1)[..., None] * x).sum(1)
        outs.append(scores)
    return torch.stack(outs, 1)


def pointer() -> nn.Module:
    """Attention of a recurrent decoder over its own input."""
    return Net(
        _pointer,
        encode=nn.LSTM(9, 14, batch_first=True),
        decode=nn.LSTMCell(9, 14),
        of_keys=nn.Linear(14, 10, bias=False),
        of_state=nn.Linear(14, 10, bias=False),
        score=nn.Linear(10, 1, bias=False),
    )


def _translated(m: Any, x: Tensor, y: Tensor) -> Any:
    keys, h = m.encode(x)
    h, outs = m.bridge(torch.cat([h[0], h[1]], 1)).tanh(), []
    for t in range(y.shape[1]):
        pairs = torch.cat([h[:, None].expand(-1, keys.shape[1], -1), keys], 2)
        context = (m.score(m.attend(pairs).tanh()).softmax(1) * keys).sum(1)
        h = m.decode(torch.cat([y[:, t], context], 1), h)
        outs.append(m.out(torch.cat([h, context], 1)))
    return torch.stack(outs, 1)


def translator() -> nn.Module:
    """A bidirectional encoder, and a decoder with additive attention."""
    return Net(
        _translated,
        encode=nn.GRU(9, 12, batch_first=True, bidirectional=True),
        bridge=nn.Linear(24, 12),
        attend=nn.Linear(36, 10),
        score=nn.Linear(10, 1),
        decode=nn.GRUCell(4 + 24, 12),
        out=nn.Linear(36, CLASSES),
    )


def _tagger(m: Any, x: Tensor) -> Any:
    scores = m.out(m.recur(x)[0])
    best = scores[:, 0]
    for t in range(1, x.shape[1]):
        best = torch.logsumexp(best[:, :, None] + m.between + scores[:, t][:, None], 1)
    return scores, best


def tagger() -> nn.Module:
    """A bidirectional LSTM and the forward sums of a conditional random field."""
    recur = nn.LSTM(9, 10, batch_first=True, bidirectional=True)
    return Net(_tagger, recur=recur, out=nn.Linear(20, CLASSES), between=weight(CLASSES, CLASSES))


def _graph(m: Any, x: Tensor) -> Any:
    return m.out(torch.relu(m.near @ m.second(torch.relu(m.near @ m.first(x)))).mean(1))


def graph_convolution() -> nn.Module:
    near = (torch.rand(5, 5) > 0.5).float() + torch.eye(5)
    return Net(
        _graph,
        near=near / near.sum(1, keepdim=True),
        first=nn.Linear(9, 14),
        second=nn.Linear(14, 10),
        out=nn.Linear(10, CLASSES),
    )


def _messages(m: Any, x: Tensor) -> Any:
    h = m.lift(x)
    for _ in range(2):
        sent = m.message(torch.cat([h[m.source], h[m.target]], 1))
        h = m.update(torch.zeros_like(h).index_add_(0, m.target, sent), h)
    return m.out(h.sum(0))


def message_passing() -> nn.Module:
    return Net(
        _messages,
        source=torch.randint(7, (12,)),
        target=torch.arange(12) % 7,
        lift=nn.Linear(9, 10),
        message=mlp(20, 16, 10),
        update=nn.GRUCell(10, 10),
        out=nn.Linear(10, CLASSES),
    )


def _graph_attention(m: Any, x: Tensor) -> Any:
    z = m.lift(x).view(-1, m.heads, m.size)
    score = (z * m.left).sum(-1)[m.source] + (z * m.right).sum(-1)[m.target]
    score = functional.leaky_relu(score, 0.2).exp()
    total = torch.zeros(len(x), m.heads).index_add_(0, m.target, score)
    sent = (score / total[m.target])[..., None] * z[m.source]
    mixed = torch.zeros(len(x), m.heads, m.size).index_add_(0, m.target, sent)
    return m.out(functional.elu(mixed.flatten(1)))


def graph_attention() -> nn.Module:
    return Net(
        _graph_attention,
        source=torch.randint(7, (14,)),
        target=torch.arange(14) % 7,
        lift=nn.Linear(9, 18),
        left=weight(1, 3, 6),
        right=weight(1, 3, 6),
        out=nn.Linear(18, CLASSES),
        heads=3,
        size=6,
    )


def _radiance(m: Any, x: Tensor) -> Any:
    waves = torch.cat([x, *(f(x * 2.0**k) for k in range(2) for f in (torch.sin, torch.cos))], -1)
    h = torch.relu(m.second(torch.relu(m.first(waves))))
    h = torch.relu(m.third(torch.cat([waves, h], -1)))
    return torch.cat([m.colour(torch.relu(m.seen(torch.cat([h, x], -1)))), m.density(h)], -1)


def radiance_field() -> nn.Module:
    return Net(
        _radiance,
        first=nn.Linear(15, 20),
        second=nn.Linear(20, 20),
        third=nn.Linear(35, 18),
        seen=nn.Linear(21, 10),
        colour=nn.Linear(10, 3),
        density=nn.Linear(18, 1),
    )


def _hyper(m: Any, x: Tensor) -> Any:
    made = m.weights(torch.relu(m.lift(x)))
    matrices = made[:, : m.inputs * m.outputs].view(-1, m.outputs, m.inputs)
    hidden = torch.bmm(matrices, x[..., None]).squeeze(-1) + made[:, m.inputs * m.outputs :]
    return m.out(torch.relu(hidden))


def hypernetwork() -> nn.Module:
    """A net that makes the weights of another."""
    return Net(
        _hyper,
        lift=nn.Linear(9, 12),
        weights=nn.Linear(12, 9 * 6 + 6),
        out=nn.Linear(6, CLASSES),
        inputs=9,
        outputs=6,
    )


def _autoencoder(m: Any, x: Tensor) -> Any:
    h = torch.relu(m.encode(x))
    mean, spread = m.mean(h), m.spread(h)
    return m.decode(mean), (mean.square() + spread.exp() - spread).sum(-1)


def autoencoder() -> nn.Module:
    return Net(
        _autoencoder,
        encode=nn.Linear(9, 20),
        mean=nn.Linear(20, 6),
        spread=nn.Linear(20, 6),
        decode=mlp(6, 18, 9),
    )


def _folded_heads(m: Any, x: Tensor) -> Any:
    x = m.lift(x).transpose(1, 2)
    b, _, steps = x.shape
    qkv = m.qkv(m.norm(x))
    size = qkv.shape[1] // (3 * m.heads)
    q, k, v = qkv.reshape(b * m.heads, size * 3, steps).split(size, dim=1)
    share = (torch.einsum("bct,bcs->bts", q, k) / math.sqrt(size)).softmax(-1)
    mixed = torch.einsum("bts,bcs->bct", share, v).reshape(b, -1, steps)
    return m.out((x + m.project(mixed)).mean(-1))


def folded_heads() -> nn.Module:
    """The attention of diffusion U-Nets: heads in the batch, determined by arithmetic only."""
    return Net(
        _folded_heads,
        lift=nn.Linear(9, 16),
        norm=nn.GroupNorm(1, 16),
        qkv=nn.Conv1d(16, 48, 1),
        project=nn.Conv1d(16, 16, 1),
        out=nn.Linear(16, CLASSES),
        heads=2,
    )


def _curves(m: Any, x: Tensor) -> Any:
    bumps = torch.exp(-(x.unsqueeze(-1) - m.grid).square()).flatten(1)
    curved = functional.linear(bumps, m.curves.view(len(m.curves), -1))
    return functional.linear(functional.silu(x), m.base) + curved


def splines() -> nn.Module:
    """A Kolmogorov-Arnold net: a learned curve on every edge."""

    def layer(inputs: int, outputs: int) -> nn.Module:
        grid = torch.linspace(-2, 2, 4)
        base, curves = weight(outputs, inputs), weight(outputs, inputs, 4)
        return Net(_curves, grid=grid, base=base, curves=curves)

    return nn.Sequential(layer(9, 12), layer(12, 10), layer(10, 3))


def _prototypes(m: Any, x: Tensor) -> Any:
    return torch.cdist(m.pair(torch.relu(m.one(x)), torch.tanh(m.other(x))).relu(), m.points)


def prototypes() -> nn.Module:
    """A bilinear layer, and distances to learned points."""
    return Net(
        _prototypes,
        one=nn.Linear(9, 8),
        other=nn.Linear(9, 10),
        pair=nn.Bilinear(8, 10, 12),
        points=weight(CLASSES, 12),
    )


def _graph_of_states(m: Any, x: Tensor) -> Any:
    u = m.lift(x).transpose(1, 2)
    steps = u.shape[-1]
    rates = -m.decay.exp() + 1j * m.turn
    kernel = (rates[..., None] * 0.1 * torch.arange(steps)).exp()
    kernel = torch.einsum("hn,hnl->hl", torch.view_as_complex(m.read), kernel).real
    mixed = torch.fft.rfft(u, n=2 * steps) * torch.fft.rfft(kernel, n=2 * steps)
    y = torch.fft.irfft(mixed, n=2 * steps)[..., :steps] + u * m.through[:, None]
    return m.out(functional.gelu(y).mean(-1))


def state_space() -> nn.Module:
    """S4 with diagonal states: a long convolution by Fourier transforms."""
    return Net(
        _graph_of_states,
        lift=nn.Linear(9, 12),
        decay=weight(12, 4),
        turn=weight(12, 4),
        read=weight(12, 4, 2),
        through=weight(12),
        out=nn.Linear(12, CLASSES),
    )


SEQUENCE, STEPS, VECTOR = (2, 5, 9), (2, 9, 12), (3, 9)

ENTRIES: tuple[Entry, ...] = (
    entry("diffusion-transformer", diffusion_transformer, SEQUENCE, (2, 4), mixes=True),
    entry("experts", experts, SEQUENCE),
    entry("stacked-experts", stacked_experts, SEQUENCE),
    entry("temporal-convolutions", temporal_convolutions, STEPS, mixes=True),
    entry("wavenet", wavenet, STEPS),
    entry("gmlp", gmlp, SEQUENCE, mixes=True),
    entry("resmlp", resmlp, SEQUENCE),
    entry("selective-scan", selective_scan, SEQUENCE, mixes=True),
    entry("pointer", pointer, SEQUENCE),
    entry("translator", translator, SEQUENCE, (2, 3, 4)),
    entry("tagger", tagger, SEQUENCE),
    entry("graph-convolution", graph_convolution, SEQUENCE),
    entry("message-passing", message_passing, (7, 9)),
    entry("graph-attention", graph_attention, (7, 9), mixes=True),
    entry("radiance-field", radiance_field, (4, 3)),
    entry("hypernetwork", hypernetwork, VECTOR),
    entry("autoencoder", autoencoder, VECTOR, mixes=True),
    entry("folded-heads", folded_heads, SEQUENCE, mixes=True),
    entry("splines", splines, VECTOR),
    entry("prototypes", prototypes, VECTOR, mixes=True),
    entry("state-space", state_space, SEQUENCE, mixes=True),
)
