"""Computes compositions of chunks on the tiny checkpoints whose layers carry a state.

    python make_compositions.py [NAME ...]      # torch 2.15.0, transformers 5.23.0; seconds

Adds composition.json to a folder. Each chunk runs through transformers once: behind the system chunk (anchored) or
alone (independent). The inputs of the recurrence of each layer are recorded. A composition runs them through the
recurrence again, chunk after chunk, from the state that the chunks before have left. Keys and values stand behind
each other. A convolution begins with the last inputs of the last chunk.

    pieces       ids of the system chunk, the contexts and the query
    anchored, independent      float32 logits of the query's rows
"""

import copy
import json
import pathlib
import sys

import torch
import transformers

HERE = pathlib.Path(__file__).parent
NAMES = ["lfm2", "granitemoehybrid", "nemotron_h", "qwen3_5", "qwen3_5_moe", "qwen3_next"]
LENGTHS = [21, 40, 2, 11, 5]  # the system chunk, contexts, the query
RECURRENCES = {  # function: (keyword of the state before, place of the state behind)
    "torch_chunk_gated_delta_rule": "initial_state",
    "torch_recurrent_gated_delta_rule": "initial_state",
    "mamba2_chunk_scan": "initial_states",
}


def ids_of(count, seed):
    """The seeded ids of the C++ tests (small_ids)."""
    ids = []
    for _ in range(count):
        seed = (seed * 1664525 + 1013904223) % 2**32
        ids.append(3 + (seed >> 8) % 190)
    return ids


class Reference:
    def __init__(self, folder):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.calls = []
        module = sys.modules[type(self.model).__module__]
        for name, keyword in RECURRENCES.items():
            if hasattr(module, name):
                setattr(module, name, self.recorded(getattr(module, name), keyword))

    def recorded(self, function, keyword):
        def call(*args, **kwargs):
            self.calls.append(lambda state: function(*args, **{**kwargs, keyword: state})[1])
            return function(*args, **kwargs)

        return call

    def run(self, ids, first, cache=None):
        """Returns logits, the cache behind the ids and the recurrences of the layers as functions of the state."""
        cache = copy.deepcopy(cache) or transformers.DynamicCache(config=self.model.config)
        self.calls = []
        positions = torch.arange(first, first + len(ids))[None]
        out = self.model(torch.tensor([ids]), past_key_values=cache, position_ids=positions, use_cache=True)
        return out.logits[0], cache, self.calls

    def compose(self, pieces, anchored):
        parts, first, anchor = [], 0, pieces[0]
        for index, ids in enumerate(pieces[:-1]):
            before = None
            if anchored and index > 0:
                _, before, _ = self.run(anchor, first - len(anchor))
            _, cache, calls = self.run(ids, first, before)
            parts.append((cache, calls, len(ids)))
            first += len(ids)
        whole = copy.deepcopy(parts[-1][0])
        recurrent = 0
        for index, layer in enumerate(whole.layers):
            if getattr(layer, "keys", None) is not None:
                for kind in ("keys", "values"):
                    own = [getattr(cache.layers[index], kind)[:, :, -count:] for cache, _, count in parts]
                    setattr(layer, kind, torch.cat(own, dim=2))
            elif any(getattr(layer, "is_recurrent_states_initialized", {}).values()):
                state = None
                for _, calls, _ in parts:
                    state = calls[recurrent](state)
                layer.recurrent_states[0] = state
                recurrent += 1
        return self.run(pieces[-1], first, whole)[0]


@torch.no_grad()
def main():
    for name in sys.argv[1:] or NAMES:
        reference = Reference(HERE / name)
        pieces = [ids_of(count, 60 + index) for index, count in enumerate(LENGTHS)]
        plain = reference.run(sum(pieces, []), 0)[0][-LENGTHS[-1]:]
        golden = {"pieces": pieces}
        for mode in ("anchored", "independent"):
            logits = reference.compose(pieces, mode == "anchored")
            golden[mode] = [[round(x, 6) for x in row] for row in logits.tolist()]
            far = (logits - plain).abs().max() / plain.std()
            one = reference.compose([pieces[0], pieces[1], pieces[-1]], mode == "anchored")
            same = reference.run(pieces[0] + pieces[1] + pieces[-1], 0)[0][-LENGTHS[-1]:]
            print(name, mode, f"plain prompt {far:.3f} away, one context {(one - same).abs().max() / same.std():.1e}")
        (HERE / name / "composition.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
