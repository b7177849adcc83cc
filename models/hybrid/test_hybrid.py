#!/usr/bin/env python3
"""Tests of the hybrid model's code, no GPU needed: transformers agrees, the two ways to compose agree,
and the walk used in training gives what the evaluation gives. A tiny model with random weights."""

import os
import random
import sys
import tempfile
import unittest

import numpy as np
import torch

import hybrid
import cardfile
import layout
import measure
import mixing
import packing
from tokenizer import Tokenizer

TOK = Tokenizer(os.path.join(os.path.dirname(os.path.abspath(cardfile.__file__)), "model", "tokenizer.json"))
SPEC = cardfile.Spec(chunks=(3, 5), questions=4)


def tiny():
    torch.manual_seed(3)
    m = hybrid.Model(hybrid.PRESETS["tiny"]).eval()
    with torch.no_grad():
        for name, p in m.named_parameters():       # louder than at the start of training, so that differences show
            if p.dim() > 1:
                p.mul_(4)
            elif "norm" in name:
                p.add_(torch.randn_like(p) * 0.1)
    return m


class Test(unittest.TestCase):
    @torch.no_grad()
    def test_transformers(self):
        try:
            from transformers import Qwen3_5ForCausalLM
        except ImportError:
            self.skipTest("no Qwen3_5ForCausalLM")
        m = tiny()
        with tempfile.TemporaryDirectory() as folder:
            hybrid.export(m, folder)
            m = hybrid.load(folder)
            net = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        s = measure.Set(TOK, 2, 1, 2, "cpu", SPEC)
        (ids, pos, seg, *_), _, pieces = s.batches[0]
        ours = m.logits(measure.run(m, ids, pieces, measure.MODES["exact"])).view(*ids.shape, -1)
        for r in range(2):
            asked = [int(i) for i in seg[r].unique() if i >= 64]
            for a in asked[:2]:
                keep = ((seg[r] >= 0) & (seg[r] < 64)) | (seg[r] == a)
                theirs = net(ids[r, keep][None]).logits[0]
                self.assertLess(float((theirs - ours[r, keep]).norm() / theirs.norm()), 2e-5)

    @torch.no_grad()
    def test_affine_is_composed(self):
        m = tiny()
        s = measure.Set(TOK, 2, 1, 2, "cpu", SPEC)
        (ids, pos, seg, *_), _, pieces = s.batches[0]
        for cards in ("anchored", "independent"):
            a = measure.run(m, ids, pieces, measure.Mode(cards))
            b = measure.run(m, ids, pieces, measure.Mode(cards, "affine:float32"))
            c = measure.run(m, ids, pieces, measure.Mode(cards, "sum"))
            live = seg.flatten() >= 0
            self.assertLess(float((a - b)[live].norm() / a[live].norm()), 1e-5)
            self.assertGreater(float((a - c)[live].norm() / a[live].norm()), 1e-3)

    @torch.no_grad()
    def test_maps_do_not_depend_on_the_order(self):
        """Cards computed where they are stored have the same maps, whatever comes before them."""
        m = tiny()
        context = next(cardfile.contexts(4, SPEC))
        got = []
        for order in (range(len(context.chunks)), reversed(range(len(context.chunks)))):
            order = list(order)
            e = packing.Example(TOK, cardfile.Context(context.system, [context.chunks[i] for i in order], context.questions[:1]))
            seg = torch.tensor(e.seg)[None]
            pieces = measure.Pieces(torch.tensor(e.pos)[None], seg)
            maps = []
            measure.run(m, torch.tensor(e.ids)[None], pieces, measure.MODES["anchored stored"], maps)
            back = torch.tensor([order.index(i) for i in range(len(order))])
            got.append([(A[back], B[back]) for A, B in maps])
        for (a, b), (c, d) in zip(*got):
            self.assertLess(float((a - c).norm() / a.norm()), 1e-5)
            self.assertLess(float((b - d).norm() / b.norm()), 1e-5)

    @torch.no_grad()
    def test_all_layers_afresh_are_exact(self):
        m = tiny()
        s = measure.Set(TOK, 2, 1, 2, "cpu", SPEC)
        (ids, pos, seg, *_), _, pieces = s.batches[0]
        a = measure.run(m, ids, pieces, measure.MODES["exact"])
        b = measure.run(m, ids, pieces, measure.Mode("anchored", afresh=len(m.layers)))
        live = seg.flatten() >= 0
        self.assertLess(float((a - b)[live].norm() / a[live].norm()), 1e-5)

    @torch.no_grad()
    def test_training_walk(self):
        """One row with an ordinary context and one with cards apart, as the trainer walks them."""
        m = tiny()
        context = next(cardfile.contexts(9, SPEC))
        for block in (False, True):
            arrays = [np.zeros((1, 1024), t) for t in (np.int16, np.int16, np.int32, np.float16)]
            ids, pos, meta, weight = arrays
            meta[:] = packing.PAD_META
            e = packing.Example(TOK, context, 1024)
            n = len(e.ids)
            ids[0, :n], pos[0, :n] = e.ids, e.pos
            meta[0, :n] = np.array(e.seg) * 2 + (0 if block else 1)
            parts = layout.build(*arrays)
            lay = layout.Layout(torch.tensor(np.concatenate(parts)), [len(p) for p in parts], "cpu")
            kernels = mixing.Plain()
            kernels.prepare(lay)
            from model import allowed, attend_dense
            k = torch.arange(1024)
            flat = torch.tensor(meta)
            mask = allowed(k[None, :, None], k[None, None, :], flat[:, :, None], flat[:, None, :])[:, None]
            x = m.embed[lay.ids]
            cos, sin = m.angles(lay.pos)
            for layer in m.layers:
                if isinstance(layer, hybrid.FullLayer):
                    q, kk, v, gate = layer.project(x)
                    q, kk = hybrid.rotate(q, cos, sin), hybrid.rotate(kk, cos, sin)
                    row = lambda t: t[lay.inverse][None].transpose(1, 2)
                    a = attend_dense(row(q), row(kk), row(v), mask)[0].transpose(0, 1)[lay.perm]
                    x = layer.finish(x, a, gate)
                else:
                    raw, z, g, beta = layer.project(x)
                    q, kk, v = layer.heads(kernels.conv(raw, layer.conv, lay))
                    x = layer.finish(x, mixing.delta_layer(kernels, lay, q, kk, v, g, beta), z)
            ours = hybrid.rms_norm(x, m.norm, m.c.eps)[lay.inverse][:n]
            tensors = torch.tensor(e.ids)[None], torch.tensor(e.pos)[None], torch.tensor(e.seg)[None]
            pieces = measure.Pieces(tensors[1], tensors[2])
            want = measure.run(m, tensors[0], pieces, measure.MODES["anchored" if block else "exact"])
            self.assertLess(float((ours - want).norm() / want.norm()), 1e-5)

    def test_layout(self):
        """Every token that is read from afar is in the list for the backward pass."""
        packing.STAGES[:] = layout.STAGES
        arrays = [np.zeros((2, 2048), t) for t in (np.int16, np.int16, np.int32, np.float16)]
        packing.fill(packing.examples(TOK, lambda: 3, random.Random(1)), [], 2, 2048, *arrays)
        d = dict(zip(layout.NAMES, layout.build(*arrays)))
        n = len(d["ids"])
        want = set()
        for j in range(3):
            b = d[f"before{j + 1}"]
            want |= {(int(b[t]), t, j) for t in range(n) if b[t] >= 0 and b[t] != t - j - 1}
        got = set()
        for i, s in enumerate(d["source"]):
            for p in d["source_pair"][d["source_at"][i]:d["source_at"][i + 1]]:
                got.add((int(s), int(p) // 4, int(p) % 4))
        self.assertEqual(want, got)


if __name__ == "__main__":
    unittest.main()
