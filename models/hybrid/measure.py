#!/usr/bin/env python3
"""Measures how often a hybrid model is right when its contexts are composed of cards computed apart.

An answer counts when every token of it is the greedy choice. The sets of questions are those of
../cardfile/evaluate.py. A mode says four things:

  cards   what a card is computed behind: `full` (everything before it), `anchored` (the system
          text), `independent` (nothing). For attention this is a mask. For a recurrent layer it is
          the state and the convolution's inputs that the card begins with
  state   the recurrent state that a question begins with:
            composed   S = A_n(... A_1 S_sys + B_1 ...) + B_n, as a recurrence over the cards' tokens
            affine     the same by explicit A and B; `affine:float16`: A and B rounded so
            sum        S_sys + B_1 + ... + B_n, without any A
            sys, zero  no card at all
  place   `true`: cards are computed at the positions where they will stand. `stored`: right behind
          the system text, and their keys are rotated when they are composed, as an engine does
  afresh  so many of the first layers have K, V and maps of all tokens as in `full`; the layers above
          reuse what was stored

  measure.py FOLDER [--contexts N] [--modes "exact;anchored"] [--json FILE]
  measure.py FOLDER --golden FILE       eight largest logits of 24 prompts, for other engines
"""

import argparse
import json
import os
import random
import sys
import time
from collections import defaultdict
from dataclasses import dataclass

import torch

import hybrid                    # puts ../cardfile on the path
import cardfile
from evaluate import COLUMNS, EvalSet, parallel_positions
from model import dense_mask
from packing import Example, encode_context, encode_question
from tokenizer import Tokenizer

QUESTION = 64
TOKENIZER = os.path.join(os.path.dirname(os.path.abspath(cardfile.__file__)), "model", "tokenizer.json")


@dataclass(frozen=True)
class Mode:
    cards: str = "full"
    state: str = "composed"
    place: str = "true"
    afresh: int = 0


MODES = {
    "exact": Mode(),
    "anchored": Mode("anchored"),
    "anchored stored": Mode("anchored", place="stored"),
    "independent": Mode("independent"),
    "anchored, A B float16": Mode("anchored", "affine:float16"),
    "anchored, sum of B": Mode("anchored", "sum"),
    "anchored, state of system text": Mode("anchored", "sys"),
    "anchored, no state": Mode("anchored", "zero"),
    # An engine runs layers 0 to n - 1 and takes K, V and maps of layers 0 to n from that.
    "layers 0-2": Mode("anchored", place="stored", afresh=3),
    "layers 0-3": Mode("anchored", place="stored", afresh=4),
    "layers 0-8": Mode("anchored", place="stored", afresh=8),
}


class Pieces:
    """Where the system texts, cards and questions of a padded batch are, over its flat token list."""

    def __init__(self, pos, seg):
        batch, n = seg.shape
        host, device = seg.cpu(), seg.device
        lists = dict(ctx=[], sys=[], card=[], q=[])
        self.cards = []                                # cards of each row, as sequence numbers of `card`
        owner = []
        before = {name: torch.full((3, batch * n), -1, dtype=torch.long) for name in ("full", "anchored", "independent")}
        for r in range(batch):
            s = host[r].tolist()
            borders = [i for i in range(n) if i == 0 or s[i] != s[i - 1]] + [n]
            base = r * n
            ctx_end = sys_end = 0
            mine = []
            for a, b in zip(borders, borders[1:]):
                if s[a] < 0:
                    continue
                here = list(range(base + a, base + b))
                if s[a] == 0:
                    lists["sys"].append(here)
                    sys_end = b
                elif s[a] < QUESTION:
                    mine.append(len(lists["card"]))
                    lists["card"].append(here)
                else:
                    lists["q"].append(here)
                    owner.append(r)
                if s[a] < QUESTION:
                    ctx_end = b
                self._note_before(before, base, a, b, s[a], ctx_end, sys_end)
            lists["ctx"].append(list(range(base, base + ctx_end)))
            self.cards.append(mine)
        self.seq = {}
        for name, parts in lists.items():
            cu = [0]
            for p in parts:
                cu.append(cu[-1] + len(p))
            self.seq[name] = hybrid.Sequences([i for p in parts for i in p], cu, device)
        self.at = {name: self.seq[name].tokens() for name in lists}
        self.owner = torch.tensor(owner, device=device)
        self.card_owner = torch.tensor([r for r, mine in enumerate(self.cards) for _ in mine], device=device)
        self.before = {name: t.to(device) for name, t in before.items()}
        self.pos, self.seg = pos, seg
        self.card_row = (seg > 0) & (seg < QUESTION)
        self.stored = parallel_positions(pos, seg)
        self.mask = {name: dense_mask(seg, name) for name in ("full", "anchored", "independent")}

    @staticmethod
    def _note_before(before, base, a, b, kind, ctx_end, sys_end):
        """Notes the three tokens that the convolution sees before each token of a piece."""
        for i in range(a, min(b, a + 3)):
            for j in (1, 2, 3):
                for name in before:
                    if i - j >= a:
                        p = i - j
                    elif kind == 0 or (kind < QUESTION and name == "independent"):
                        continue
                    elif kind >= QUESTION:
                        p = ctx_end - (j - (i - a))
                    elif name == "full":
                        p = i - j
                    else:
                        p = sys_end - (j - (i - a))
                    before[name][j - 1, base + i] = base + p
        rest = torch.arange(base + a + 3, base + b)
        for j in (1, 2, 3):
            for name in before:
                before[name][j - 1, rest] = rest - j


def affine(seq, k, v, g, beta):
    """Returns A [n, v_heads, dk, dk] and B [n, v_heads, dk, dv] of every sequence."""
    hv, dv = v.shape[1:]
    dk = k.shape[-1]
    wide = torch.cat([v, torch.zeros(len(v), hv, dk, dtype=v.dtype, device=v.device)], -1)
    start = torch.cat([torch.zeros(dk, dv), torch.eye(dk)], -1).to(v).expand(seq.count, hv, dk, dv + dk)
    _, s = seq.run(k, k, wide, g, beta, start, need_out=False)
    return s[..., dv:], s[..., :dv]


def compose(pieces, state, how, maps):
    """Returns the states that questions begin with. `state` is that behind each row's system text."""
    A, B = maps
    if ":" in how:
        dtype = getattr(torch, how.split(":")[1])
        A, B = A.to(dtype).float(), B.to(dtype).float()
    out = []
    for r, mine in enumerate(pieces.cards):
        s = state[r]
        for i in mine:
            s = s + B[i] if how == "sum" else A[i] @ s + B[i]
        out.append(s)
    return torch.stack(out)


def run_delta(p, mode, q, k, v, g, beta, maps=None):
    """Returns the outputs of a recurrent layer for all tokens of a batch. Appends A and B of the cards to `maps`."""
    o = torch.zeros_like(v)
    own, state = p.seq["ctx"].run(q, k, v, g, beta)
    if mode.cards == "full":
        o[p.at["ctx"]] = own
    else:
        own, start = p.seq["sys"].run(q, k, v, g, beta)
        o[p.at["sys"]] = own
        begin = start[p.card_owner] if mode.cards == "anchored" else None
        own, _ = p.seq["card"].run(q, k, v, g, beta, begin)
        o[p.at["card"]] = own
    if maps is not None:
        maps.append(affine(p.seq["card"], k, v, g, beta))
    if mode.state != "composed":
        _, start = p.seq["sys"].run(q, k, v, g, beta, need_out=False)
        if mode.state == "sys":
            state = start
        elif mode.state == "zero":
            state = torch.zeros_like(start)
        else:
            state = compose(p, start, mode.state, affine(p.seq["card"], k, v, g, beta))
    own, _ = p.seq["q"].run(q, k, v, g, beta, state[p.owner])
    o[p.at["q"]] = own
    return o


def attend(m, p, q, k, v, mask, stored):
    """Returns dense attention of a padded batch. With `stored`, cards stand where they were stored."""
    batch, n = p.seg.shape
    shape = lambda x: x.view(batch, n, *x.shape[1:])

    def scores(angles):
        turned = shape(hybrid.rotate(k, *angles)).repeat_interleave(q.shape[1] // k.shape[1], 2)
        return torch.einsum("bnhd,bmhd->bhnm", shape(hybrid.rotate(q, *angles)), turned) * q.shape[-1] ** -0.5

    w = scores(m.angles(p.pos.flatten()))
    if stored:
        w = torch.where(p.card_row[:, None, :, None], scores(m.angles(p.stored.flatten())), w)
    w = w.masked_fill(~mask, float("-inf")).softmax(-1)
    v = shape(v).repeat_interleave(q.shape[1] // v.shape[1], 2)
    return torch.einsum("bhnm,bmhd->bnhd", w, v).flatten(0, 1)


def walk(m, ids, p, mode, keep=None, reuse=None, maps=None):
    """Returns the last hidden states [batch * n, dim].

    Appends to `keep` what each layer stores of a token. From layer `mode.afresh` on, cards have what `reuse` holds
    in its place; their hidden states mean nothing from then on.
    """
    card = p.card_row.flatten()
    x = m.embed[ids.flatten()]
    for i, layer in enumerate(m.layers):
        old = reuse[i] if reuse is not None and i >= mode.afresh else None
        mix = lambda now, n: now if old is None else torch.where(card.view(-1, *[1] * (now.dim() - 1)), old[n], now)
        if isinstance(layer, hybrid.FullLayer):
            q, k, v, gate = layer.project(x)
            k, v = mix(k, 0), mix(v, 1)
            stored = (k, v)
            x = layer.finish(x, attend(m, p, q, k, v, p.mask[mode.cards], mode.place == "stored"), gate)
        else:
            raw, z, g, beta = layer.project(x)
            raw, g, beta = mix(raw, 0), mix(g, 2), mix(beta, 3)
            mixed = mix(hybrid.convolve(raw, layer.conv, p.before[mode.cards]), 1)
            stored = (raw, mixed, g, beta)
            q, k, v = layer.heads(mixed)
            x = layer.finish(x, run_delta(p, mode, q, k, v, g, beta, maps), z)
        if keep is not None:
            keep.append(stored)
    return hybrid.rms_norm(x, m.norm, m.c.eps)


@torch.no_grad()
def run(m, ids, p, mode, maps=None):
    """Returns the last hidden states [batch * n, dim] in a mode. With `afresh`, those of questions alone count."""
    if not mode.afresh:
        return walk(m, ids, p, mode, maps=maps)
    stored = []
    walk(m, ids, p, Mode(mode.cards, place=mode.place), keep=stored)
    return walk(m, ids, p, Mode(afresh=mode.afresh), reuse=stored)


class Set:
    """An EvalSet with its pieces, which are made once."""

    def __init__(self, *args, **kw):
        self.batches = []
        for tensors, questions in EvalSet(*args, **kw).batches:
            self.batches.append((tensors, questions, Pieces(tensors[1], tensors[2])))


@torch.no_grad()
def accuracy(m, evalset, mode):
    """Returns (right, asked) by question type."""
    right, asked = defaultdict(int), defaultdict(int)
    for (ids, _, _, rows, cols, owner), questions, pieces in evalset.batches:
        h = run(m, ids, pieces, mode).view(*ids.shape, -1)[rows, cols]
        good = m.logits(h).argmax(-1) == ids[rows, cols + 1]
        ok = torch.ones(len(questions), dtype=torch.int32, device=ids.device)
        ok.scatter_reduce_(0, owner, good.int(), "amin")
        for q, g in zip(questions, ok.tolist()):
            right[q.type] += g
            asked[q.type] += 1
    return {k: (right[k], asked[k]) for k in asked}


def table(m, evalset, names):
    results = {}
    print(f"{'mode':32s}" + "".join(f"{c:>14s}" for c in COLUMNS))
    for name in names:
        got = accuracy(m, evalset, MODES[name])
        results[name] = {k: list(v) for k, v in got.items()}
        cells = [f"{100 * got[c][0] / got[c][1]:13.1f}%" if c in got else f"{'-':>14s}" for c in COLUMNS]
        print(f"{name:32s}" + "".join(cells), flush=True)
    return results


@torch.no_grad()
def golden(m, tok, path, prompts=24):
    """Writes one JSON line a prompt: its pieces as ids, and the eight largest logits behind them in each mode."""
    stream, rng = cardfile.contexts(300, cardfile.Spec(chunks=(4, 12))), random.Random(0)
    names = {"exact": "exact", "anchored": "anchored stored", "independent": "independent", "layers 0-3": "layers 0-3"}
    with open(path, "w") as out:
        for n in range(prompts):
            c = next(stream)
            q = rng.choice(c.questions)
            e = Example(tok, cardfile.Context(c.system, c.chunks, [q]))
            ask = encode_question(tok, q)[0]
            last = e.context_len + len(ask) - 1
            pieces = Pieces(torch.tensor(e.pos)[None], torch.tensor(e.seg)[None])
            line = dict(id=n, type=q.type, pieces=encode_context(tok, c) + [ask], answer=q.answer)
            for name, mode in names.items():
                top = m.logits(run(m, torch.tensor(e.ids)[None], pieces, MODES[mode])[last]).topk(8)
                line[name] = dict(ids=top.indices.tolist(), logits=[round(x, 5) for x in top.values.tolist()])
            out.write(json.dumps(line) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--contexts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--modes", default="", help="separated by ;")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json")
    parser.add_argument("--golden", help="write reference logits to this file, and no table")
    args = parser.parse_args()
    tok = Tokenizer(TOKENIZER)
    m = hybrid.load(args.folder, args.device)
    if args.golden:
        golden(m, tok, args.golden)
        return
    start = time.time()
    results = table(m, Set(tok, args.contexts, args.seed, args.batch, args.device),
                    args.modes.split(";") if args.modes else list(MODES))
    print(f"{args.contexts} contexts, {time.time() - start:.0f} s")
    if args.json:
        with open(args.json, "w") as out:
            json.dump(results, out, indent=1)


if __name__ == "__main__":
    sys.exit(main())
