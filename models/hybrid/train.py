#!/usr/bin/env python3
"""Trains the hybrid card-file model: the stages of the neighbour folder's train.py, shortened.

  train.py --out DIR --keep FOLDER --minutes 9          start; leaves its state in FOLDER
  train.py --out DIR --keep FOLDER --resume --minutes 9 go on

Stages: 0 and 1 end at a gate or after their steps; 2 (falling rate) leaves full/; 3 (cards apart in
60 % of the contexts: attention masked, recurrent state from the system text, questions from the
composed state) leaves dual/.
"""

import argparse
import json
import math
import os
import sys
import time

START = time.time()


def rate(stage, at, length):
    x = min(1.0, at / max(1, length))
    if stage < 2:
        return 1.0
    if stage == 2:
        y = max(0.0, (x - 0.3) / 0.7)
        return 0.04 + 0.96 * 0.5 * (1 + math.cos(math.pi * y))
    return 0.01 + 0.32 * 0.5 * (1 + math.cos(math.pi * x))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="main")
    parser.add_argument("--out", required=True)
    parser.add_argument("--keep", required=True, help="folder of the state between runs")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--steps", default="1500,7000,4500", help="steps of the stages; a fourth computes cards apart")
    parser.add_argument("--gate", type=float, default=0.95)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--eval-every", type=int, default=1000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--stage", type=int, help="begin in this stage")
    parser.add_argument("--check", action="store_true", help="compare the kernels with plain PyTorch first")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--plain", action="store_true", help="no kernels, no compilation, float32 (tests on a CPU)")
    args = parser.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (args.out, args.keep):
        os.makedirs(folder, exist_ok=True)
    deadline = START + 60 * args.minutes

    import numpy as np
    sys.path.append(os.path.join(here, "..", "cardfile"))
    import cardfile
    import layout
    from tokenizer import Tokenizer
    tok = Tokenizer(os.path.join(here, "..", "cardfile", "model", "tokenizer.json"))
    state = dict(step=0, stage=args.stage or 0, stage_step=0, tokens=0, seconds=0.0, runs=0, scale={})
    if args.resume:
        with open(os.path.join(args.keep, "state.json")) as f:
            state = json.load(f)
        if args.stage is not None and args.stage != state["stage"]:
            state.update(stage=args.stage, stage_step=0)
    feeder = layout.Feeder(tok, args.rows, args.length, args.workers, f"{args.seed}/{state['runs']}", state["stage"])
    for kind, x in state["scale"].items():
        feeder.scale[cardfile.ALL_TYPES.index(kind)] = x

    import torch
    import torch.nn.functional as F
    import hybrid
    import measure
    import mixing
    from model import allowed
    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    config = hybrid.PRESETS[args.preset]
    model = hybrid.Model(config).to(device)
    params = list(model.parameters())
    light = lambda name, p: p.dim() == 1 or name.endswith("conv")
    groups = [dict(params=[p for n, p in model.named_parameters() if not light(n, p)], weight_decay=args.decay),
              dict(params=[p for n, p in model.named_parameters() if light(n, p)], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-8, **({} if args.plain else dict(fused=True)))
    log_file = open(os.path.join(args.keep, "log.jsonl"), "a")

    def log(**kw):
        kw = dict(t=round(state["seconds"] + time.time() - START, 1), step=state["step"], stage=state["stage"], **kw)
        log_file.write(json.dumps(kw) + "\n")
        log_file.flush()
        print(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in kw.items()), flush=True)

    def save_state():
        torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict()), os.path.join(args.keep, "state.pt.new"))
        os.replace(os.path.join(args.keep, "state.pt.new"), os.path.join(args.keep, "state.pt"))
        with open(os.path.join(args.keep, "state.json"), "w") as out:
            json.dump(dict(state, runs=state["runs"] + 1, seconds=state["seconds"] + time.time() - START), out)

    def save_small():
        """Files that come back from the machine: float32 weights in halves, second moment in bfloat16."""
        flat = torch.cat([p.detach().flatten() for p in params]).cpu()
        if optimizer.state:
            second = torch.cat([optimizer.state[p]["exp_avg_sq"].flatten() for p in params]).bfloat16().cpu()
            torch.save(second, os.path.join(args.out, "small-2.pt"))
        half = flat.numel() // 2
        for i, t in enumerate((flat[:half], flat[half:])):
            torch.save(t.clone(), os.path.join(args.out, f"small-{i}.pt"))
        with open(os.path.join(args.out, "state.json"), "w") as out:
            json.dump(dict(state, runs=state["runs"] + 1, seconds=state["seconds"] + time.time() - START), out)
        with open(os.path.join(args.out, "log.jsonl"), "w") as out, open(os.path.join(args.keep, "log.jsonl")) as f:
            out.write(f.read())

    def load_small():
        flat = torch.cat([torch.load(os.path.join(args.keep, f"small-{i}.pt")) for i in (0, 1)]).to(device)
        path = os.path.join(args.keep, "small-2.pt")
        second = torch.load(path).float().to(device) if os.path.exists(path) else None
        at = 0
        with torch.no_grad():
            for p in params:
                n = p.numel()
                p.copy_(flat[at:at + n].view_as(p))
                if second is not None:
                    optimizer.state[p] = dict(step=torch.tensor(float(max(1, state["step"])), device=device),
                                              exp_avg=torch.zeros_like(p),
                                              exp_avg_sq=second[at:at + n].view_as(p).clone())
                at += n

    if args.resume:
        if os.path.exists(os.path.join(args.keep, "state.pt")):
            saved = torch.load(os.path.join(args.keep, "state.pt"), map_location=device)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        else:
            load_small()

    # ---- one step ----
    rows, length = args.rows, args.length
    dtype = torch.float32 if args.plain else torch.bfloat16
    kernels = mixing.Plain() if args.plain else mixing.Fast()
    meta = torch.zeros(rows, length, dtype=torch.int32, device=device)
    compiled = (lambda f: f) if args.plain else (lambda f: torch.compile(f, dynamic=False))
    if not args.plain:
        torch.set_float32_matmul_precision("high")
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        flex = torch.compile(flex_attention, dynamic=False)
        build = torch.compile(create_block_mask, dynamic=False)

        def rule(b, h, q, k):
            return allowed(q, k, meta[b, q], meta[b, k])

    def make_mask():
        if not args.plain:
            return build(rule, rows, None, length, length, device=device)
        n = torch.arange(length, device=device)
        return allowed(n[None, :, None], n[None, None, :], meta[:, :, None], meta[:, None, :])[:, None]

    @compiled
    def delta_in(layer, x):
        return layer.project(x)

    @compiled
    def delta_out(layer, x, o, z):
        return layer.finish(x, o, z)

    @compiled
    def full_in(layer, x, cos, sin):
        q, k, v, gate = layer.project(x)
        return hybrid.rotate(q, cos, sin), hybrid.rotate(k, cos, sin), v, gate

    @compiled
    def full_out(layer, x, a, gate):
        return layer.finish(x, a, gate)

    @compiled
    def head(x, ids, weight):
        logits = model.logits(hybrid.rms_norm(x, model.norm, config.eps))
        ce = F.cross_entropy(logits.float(), ids.roll(-1), reduction="none")
        word = (weight > 0.99).float()
        return (ce * weight).sum() / weight.sum(), (ce * word).sum() / word.sum()

    def attend(q, k, v, mask, lay):
        def to_rows(x):
            return mixing.Permute.apply(x, lay.inverse, lay.perm).view(rows, length, *x.shape[1:]).transpose(1, 2)
        q, k, v = to_rows(q), to_rows(k), to_rows(v)
        if args.plain:
            from model import attend_dense
            a = attend_dense(q, k, v, mask)
        else:
            a = flex(q, k, v, block_mask=mask, enable_gqa=True)
        return mixing.Permute.apply(a.transpose(1, 2).flatten(0, 1), lay.perm, lay.inverse)

    def losses(lay, mask, kernels):
        x = F.embedding(lay.ids, model.embed).to(dtype)
        cos, sin = model.angles(lay.pos)
        for layer in model.layers:
            if isinstance(layer, hybrid.FullLayer):
                q, k, v, gate = full_in(layer, x, cos, sin)
                x = full_out(layer, x, attend(q, k, v, mask, lay), gate)
            else:
                raw, z, g, beta = delta_in(layer, x)
                q, k, v = layer.heads(kernels.conv(raw, layer.conv, lay))
                x = delta_out(layer, x, mixing.delta_layer(kernels, lay, q, k, v, g, beta), z)
        return head(x, lay.ids, lay.weight)

    pinned = [torch.zeros(feeder.room, dtype=torch.int32) for _ in range(3)]
    pinned_meta = [torch.zeros(rows * length, dtype=torch.int32) for _ in range(3)]
    if device.type == "cuda":
        pinned, pinned_meta = [p.pin_memory() for p in pinned], [p.pin_memory() for p in pinned_meta]
        events = [torch.cuda.Event() for _ in pinned]
    turn = [0]

    def next_batch():
        data, sizes, m, stage = feeder.next()
        i = turn[0] = (turn[0] + 1) % len(pinned)
        if device.type == "cuda":
            events[i].synchronize()
        pinned[i].numpy()[:len(data)] = data
        pinned_meta[i].numpy()[:] = m
        lay = layout.Layout(pinned[i][:len(data)], sizes, device)
        meta.view(-1).copy_(pinned_meta[i], non_blocking=True)
        if device.type == "cuda":
            events[i].record()
        kernels.prepare(lay)
        return lay, stage

    if args.check:
        check_kernels(model, tok, device, log)

    # ---- evaluation ----
    small = cardfile.Spec(chunks=(2, 4), splits=False, relations=0, updates=False, mix=dict(one_hop=1, who=1))
    middle = cardfile.Spec(chunks=(4, 10))
    count = 64 if not args.plain else 4
    sets = [measure.Set(tok, count, 5, 32, device, small), measure.Set(tok, count, 6, 32, device, middle),
            measure.Set(tok, count, 7, 16, device)]
    sets.append(sets[2])

    def quick(which, names=("exact",)):
        out = None
        for name in names:
            got = measure.accuracy(model, sets[which], measure.MODES[name])
            got = {k: round(r / n, 3) for k, (r, n) in got.items()}
            log(eval=f"{('small', 'middle', 'large', 'large')[which]}/{name}", **got)
            out = out or got
        return out

    def adapt(got):
        for i, kind in enumerate(cardfile.ALL_TYPES):
            scale = min(1.5 if kind == "read" else 3, 0.3 + 2.5 * (1 - got.get(kind, 0.7)))
            feeder.scale[i] = state["scale"][kind] = round(scale, 3)

    def export(name):
        for base in (args.keep, args.out):
            hybrid.export(model, os.path.join(base, name))

    # ---- loop ----
    plan = [int(x) for x in args.steps.split(",")]
    window, window_start, waited = 0, time.time(), 0.0
    first, saved = state["step"], time.time()
    while state["stage"] < len(plan):
        now = time.time()
        if now > deadline:
            break
        if now > saved + 120:
            save_state()
            save_small()
            saved = now
        share = rate(state["stage"], state["stage_step"], plan[state["stage"]])
        share *= min(1.0, (state["step"] + 1) / args.warmup)
        if args.resume:
            share *= min(1.0, (state["step"] - first + 1) / 150)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * share
        if args.profile and state["step"] - first == 60:
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            profiler.start()
        if args.profile and state["step"] - first == 65:
            torch.cuda.synchronize()
            profiler.stop()
            print(profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=30, max_name_column_width=60))
            window, window_start, waited = 0, time.time(), 0.0
        before = time.time()
        lay, stage = next_batch()
        waited += time.time() - before
        loss, word = losses(lay, make_mask(), kernels)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        state["step"] += 1
        state["stage_step"] += 1
        state["tokens"] += rows * length
        window += 1
        step = state["step"]
        if step - first in (1, 20, 50) or step % 250 == 0:
            values = loss.item(), word.item(), float(norm)
            took = time.time() - window_start
            log(loss=values[0], answer_loss=values[1], norm=values[2], lr=args.lr * share, data_stage=stage,
                ktok_s=window * rows * length / took / 1e3, waited=waited / took)
            if not math.isfinite(values[0]):
                log(event="loss is not finite; the last saved state stands")
                feeder.close()
                return 1
            window, window_start, waited = 0, time.time(), 0.0
        on, at = state["stage"], state["stage_step"]
        if (on < 2 and step % 500 == 0) or step % args.eval_every == 0:
            got = quick(on, ("exact",) + (("anchored",) if on > 1 else ()))
            if on:
                adapt(got)
            if on < 2 and min(x for kind, x in got.items() if kind != "read") >= args.gate and at >= 0.4 * plan[on]:
                log(event=f"gate {on} passed")
                state["stage"], state["stage_step"] = on + 1, 0
            window_start = time.time()
        if state["stage_step"] >= plan[state["stage"]]:
            if state["stage"] == 2:
                export("full")
                save_state()
            if state["stage"] == 3:
                export("dual")
            state["stage"] += 1
            state["stage_step"] = 0
            log(event="next stage")
            window_start = time.time()
        feeder.stage.value = min(3, state["stage"])
    save_state()
    save_small()
    if state["stage"] < len(plan):
        export("now")
    log(event="end", tokens=state["tokens"], minutes=(time.time() - START) / 60)
    save_small()
    feeder.close()


def check_kernels(model, tok, device, log):
    """The kernels against plain PyTorch in float32, outputs and gradients, on a batch with cards apart."""
    import random
    import numpy as np
    import torch
    import hybrid
    import layout
    import mixing
    import packing
    packing.STAGES[:] = layout.STAGES
    arrays = [np.zeros((4, 2048), t) for t in (np.int16, np.int16, np.int32, np.float16)]
    packing.fill(packing.examples(tok, lambda: 3, random.Random(1)), [], 4, 2048, *arrays)
    parts = layout.build(*arrays)
    lay = layout.Layout(torch.tensor(np.concatenate(parts)), [len(p) for p in parts], device)
    plain, fast = mixing.Plain(), mixing.Fast()
    plain.prepare(lay)
    c = model.c
    torch.manual_seed(0)
    n = len(lay.ids)
    width = 2 * c.k_heads * c.dk + c.v_heads * c.dv
    raw = torch.randn(n, width, device=device)
    taps = torch.rand(4, width, device=device) - 0.5
    g = -torch.rand(n, c.v_heads, device=device) * torch.tensor([0.001, 0.01, 0.1, 1.0], device=device)[:c.v_heads]
    beta = torch.rand(n, c.v_heads, device=device)
    grad = torch.randn(n, c.v_heads, c.dv, device=device)
    layer = next(x for x in model.layers if isinstance(x, hybrid.DeltaLayer))
    out = {}
    for name, kernels, dtype in (("plain", plain, torch.float32), ("fast", fast, torch.bfloat16)):
        leaves = [raw.detach().clone().to(dtype).requires_grad_(), taps.clone().requires_grad_(), g.clone().requires_grad_(),
                  beta.clone().requires_grad_()]
        q, k, v = layer.heads(kernels.conv(leaves[0], leaves[1], lay))
        o = mixing.delta_layer(kernels, lay, q, k, v, leaves[2], leaves[3])
        o.backward(grad.to(o.dtype))
        out[name] = [o.detach().float()] + [x.grad.float() for x in leaves]
    for what, a, b in zip(("out", "d raw", "d taps", "d g", "d beta"), out["plain"], out["fast"]):
        error = float((a - b).norm() / a.norm())
        log(check=what, error=error)
        if not error < 0.03:
            raise SystemExit("the kernels are wrong here")


if __name__ == "__main__":
    sys.exit(main())
