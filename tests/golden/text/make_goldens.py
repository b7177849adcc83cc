"""Writes the golden files of this folder: small tokenizers of every kind, and what Hugging Face
`tokenizers` makes of awkward texts with them.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3
    python make_goldens.py            # rewrites tokenizers/*.json beside this file

Each golden is {"name", "tokenizer": <tokenizer.json>, "cases": [[text, ids, ids without special
tokens, ids with specials as text, decode, decode skipping specials], ...]}; the last two decode the
first ids. Training is on the text below, and vocabularies stay under 500 tokens. The trainers break ties in
random order, so that each run writes other, equally good files.
"""
import base64
import io
import json
import pathlib
import random
import tempfile

import sentencepiece
import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

from awkward_texts import AWKWARD

assert tokenizers.__version__ == "0.23.3", tokenizers.__version__

TEXT = """The quick brown fox jumps over the lazy dog. She sells sea shells by the sea shore; the shells
she sells are surely seashells. It's what we've said, isn't it? They'll say I'm wrong, but I'd rather be
here. In 2024 there were 365 days, 52 weeks and 12 months; pi is 3.14159. A tokenizer cuts text into pieces
and gives every piece a number. The pieces that occur often become longer, and the others are spelled out.
def main(argc, argv): return [x ** 2 for x in range(10) if x % 2 == 0]  # numbers
Die Würde des Menschen ist unantastbar. Où est le café? El niño comió piñata. 你好，世界！你好世界。
Привет, мир! こんにちは世界。 안녕하세요. مرحبا بالعالم. naïve coöperation résumé."""
LINES = TEXT.split("\n") * 4

GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
CL100K = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
          "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
O200K = ("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
DEEPSEEK = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
            "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def special(content: str, **flags) -> AddedToken:
    return AddedToken(content, special=True, normalized=False, **flags)


def train_bpe(tok: Tokenizer, size: int, **options) -> Tokenizer:
    tok.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=size, show_progress=False, **options))
    return tok


def byte_level(pre, size=400, **model) -> Tokenizer:
    tok = Tokenizer(models.BPE(**model))
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    return train_bpe(tok, size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def split_then_bytes(pattern: str):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2() -> Tokenizer:
    tok = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tok.add_special_tokens([special("<|endoftext|>")])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


def roberta() -> Tokenizer:
    tok = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))
    tok.add_special_tokens([special("<s>"), special("</s>"), special("[MASK]", lstrip=True)])
    tok.post_processor = processors.RobertaProcessing(("</s>", tok.token_to_id("</s>")),
                                                      ("<s>", tok.token_to_id("<s>")))
    return tok


def llama3() -> Tokenizer:
    tok = byte_level(split_then_bytes(CL100K), ignore_merges=True)
    tok.add_special_tokens([special("<s>"), special("<|endoftext|>")])
    bos = tok.token_to_id("<s>")
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", bos)])])
    return tok


def qwen() -> Tokenizer:
    tok = byte_level(split_then_bytes(O200K))
    tok.normalizer = normalizers.NFC()
    tok.add_special_tokens([special("<|endoftext|>")])
    tok.add_tokens([AddedToken("<pad>", normalized=False)])
    return tok


def deepseek() -> Tokenizer:
    tok = byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex("[\\r\\n]"), "isolated"), pre_tokenizers.Split(Regex("\\s+$"), "isolated"),
        pre_tokenizers.Split(Regex("\\p{N}{1,3}"), "isolated"), pre_tokenizers.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
        pre_tokenizers.Split(Regex(DEEPSEEK), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    tok.add_special_tokens([special("<s>")])
    return tok


def smollm() -> Tokenizer:
    return byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)]))


def byte_level_normalizer() -> Tokenizer:
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.ByteLevel()])
    tok.pre_tokenizer = pre_tokenizers.Digits(individual_digits=False)
    tok.decoder = decoders.ByteLevel()
    return train_bpe(tok, 380, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def llama2(**flags) -> Tokenizer:
    """Makes a tokenizer with normalizer Prepend and Replace, byte fallback, and no pre-tokenizer: sentencepiece as BPE."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    train_bpe(tok, 480, special_tokens=["<unk>", "<s>", "</s>", *BYTES],
              initial_alphabet=["▁"], limit_alphabet=50)
    spec = json.loads(tok.to_str())
    spec["pre_tokenizer"] = None
    spec["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    spec["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    spec["added_tokens"] = [t | flags for t in spec["added_tokens"] if not t["content"].startswith("<0x")]
    spec["post_processor"] = {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    return Tokenizer.from_str(json.dumps(spec))


def metaspace(scheme: str, split: bool) -> Tokenizer:
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    tok.decoder = decoders.Metaspace(prepend_scheme=scheme, split=split)
    train_bpe(tok, 200, special_tokens=["<unk>", "<s>"], limit_alphabet=60)
    tok.add_tokens([AddedToken("fox", single_word=True), AddedToken("dog", lstrip=True, rstrip=True)])
    return tok


def end_of_word() -> Tokenizer:
    tok = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tok.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tok.decoder = decoders.BPEDecoder(suffix="</w>")
    return train_bpe(tok, 200, special_tokens=["<unk>"], end_of_word_suffix="</w>")


def continuing_prefix() -> Tokenizer:
    tok = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True))
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece(cleanup=False)
    return train_bpe(tok, 220, special_tokens=["<unk>"], continuing_subword_prefix="##", limit_alphabet=60)


def unigram(fallback: bool) -> Tokenizer:
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(),
                                           normalizers.Replace(Regex(" {2,}"), " ")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if fallback else "first")
    tok.decoder = decoders.Metaspace()
    tok.train_from_iterator(LINES, trainers.UnigramTrainer(
        vocab_size=180, unk_token="<unk>", special_tokens=["<pad>", "<s>", "</s>", "<unk>"], show_progress=False))
    if not fallback:
        return tok
    spec = json.loads(tok.to_str())
    spec["model"]["byte_fallback"] = True
    spec["model"]["vocab"] += [[token, -12.0] for token in BYTES]
    spec["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}]}
    spec["post_processor"] = {"type": "TemplateProcessing", "single": [
        {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "pair": [], "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}}
    return Tokenizer.from_str(json.dumps(spec))


def protobuf_field(message: bytes, wanted: int) -> bytes:
    """Returns the first length-delimited field `wanted` of a serialized message."""
    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while message[at] & 0x80:
            value |= (message[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
        return value | message[at] << shift, at + 1

    at = 0
    while at < len(message):
        key, at = varint(at)
        if key & 7 == 2:
            length, at = varint(at)
            if key >> 3 == wanted:
                return message[at:at + length]
            at += length
        else:
            at = varint(at)[1] if key & 7 == 0 else at + (4 if key & 7 == 5 else 8)
    raise KeyError(wanted)


def charsmap() -> str:
    """Makes a small precompiled character map, which only sentencepiece's trainer writes."""
    rules = {"\ufb01": "fi", "\uff21": "A", "\uff22": "BB", "\u00bd": "1/2", "e\u0301": "\u00e9", "\t": " ", "\u3000": " ",
             "\u00df": "ss", "\u1e9e": "SS", "ab": "q", "abc": "z", "\u200d": "", "\U0001f600": ":)", "\u2003": " "}
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as table:
        for what, by in rules.items():
            table.write(" ".join(f"{ord(c):X}" for c in what) + "\t" + " ".join(f"{ord(c):X}" for c in by) + "\n")
        table.flush()
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_writer=model, vocab_size=120,
                                                 normalization_rule_tsv=table.name, minloglevel=2, hard_vocab_limit=False)
    normalizer_spec = protobuf_field(model.getvalue(), 3)
    return base64.b64encode(protobuf_field(normalizer_spec, 2)).decode()


def precompiled() -> Tokenizer:
    spec = json.loads(unigram(False).to_str())
    spec["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap()}
    return Tokenizer.from_str(json.dumps(spec))


def bert(**options) -> Tokenizer:
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40))
    tok.normalizer = normalizers.BertNormalizer(**options)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    tok.train_from_iterator(LINES, trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    tok.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tok.enable_truncation(64)
    tok.enable_padding(pad_id=0, pad_token="[PAD]", pad_to_multiple_of=4)
    return tok


def word_level() -> Tokenizer:
    tok = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tok.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.NFKD(), normalizers.Prepend("= ")])
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.CharDelimiterSplit("e")])
    tok.train_from_iterator(LINES, trainers.WordLevelTrainer(
        vocab_size=120, special_tokens=["<unk>", "<s>"], show_progress=False))
    return tok


def splits(behavior: str, invert: bool) -> Tokenizer:
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex("[a-e]+'?|\\b\\w(?=\\h)") if not invert else "a", behavior, invert),
        pre_tokenizers.Split(" ", behavior), pre_tokenizers.Punctuation(behavior)])
    tok.decoder = decoders.Fuse()
    return train_bpe(tok, 150, special_tokens=["<unk>"], limit_alphabet=60)


def ctc() -> Tokenizer:
    tok = Tokenizer(models.WordLevel({c: i for i, c in enumerate(["<pad>", "<s>", "<unk>", "|", *"abcdefghinorst'"])},
                                     unk_token="<unk>"))
    tok.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", "|")])
    tok.pre_tokenizer = pre_tokenizers.FixedLength(length=1)
    tok.decoder = decoders.CTC()
    tok.add_special_tokens([special("<pad>"), special("<s>")])
    return tok


def odd_decoder() -> Tokenizer:
    tok = gpt2()
    tok.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(Regex("[aeiou]+ "), "_"),
                                     decoders.Strip(" ", 2, 0)])
    return tok


def fused_strip() -> Tokenizer:
    tok = gpt2()
    tok.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip("Ġ", 2, 0), decoders.ByteLevel()])
    return tok


KINDS = {
    "gpt2": gpt2, "roberta": roberta, "llama3": llama3, "qwen": qwen, "deepseek": deepseek, "smollm": smollm,
    "byte_level_normalizer": byte_level_normalizer,
    "llama2": llama2, "llama2_normalized_specials": lambda: llama2(normalized=True),
    "metaspace_always": lambda: metaspace("always", True), "metaspace_first": lambda: metaspace("first", False),
    "metaspace_never": lambda: metaspace("never", True),
    "end_of_word": end_of_word, "continuing_prefix": continuing_prefix,
    "unigram": lambda: unigram(False), "unigram_byte_fallback": lambda: unigram(True),
    "precompiled": precompiled,
    "bert_uncased": lambda: bert(lowercase=True), "bert_cased": lambda: bert(lowercase=False, handle_chinese_chars=False),
    "word_level": word_level,
    "split_removed": lambda: splits("removed", False), "split_previous": lambda: splits("merged_with_previous", False),
    "split_next": lambda: splits("merged_with_next", False), "split_contiguous": lambda: splits("contiguous", False),
    "split_inverted": lambda: splits("isolated", True),
    "ctc": ctc, "odd_decoder": odd_decoder, "fused_strip": fused_strip,
}


def cases(tok: Tokenizer) -> list:
    tok.no_truncation()  # what a file says of these does not count, as in transformers
    tok.no_padding()
    rows = []
    specials = {id for id, token in tok.get_added_tokens_decoder().items() if token.special}

    def decoded(ids: list[int]) -> list[str]:
        """Decodes with and without special tokens. These are left out by id: 0.23 looks for the *normalized* spelling of a
        token that is special and normalized among the special ones, and so fails to skip it."""
        return [tok.decode(ids, skip_special_tokens=False),
                tok.decode([id for id in ids if id not in specials], skip_special_tokens=False)]

    rng = random.Random(0)
    added = [token.content for token in tok.get_added_tokens_decoder().values()]
    glued = [f"x{token}y {token} {token}{token}" for token in added[:6]]
    for text in AWKWARD + glued + LINES[:3]:
        ids = tok.encode(text).ids
        bare = tok.encode(text, add_special_tokens=False).ids
        tok.encode_special_tokens = True
        literal = tok.encode(text, add_special_tokens=False).ids
        tok.encode_special_tokens = False
        rows.append([text, ids, bare, literal, *decoded(ids)])
    for _ in range(8):  # ids that no text gives, for the decoders
        ids = [rng.randrange(tok.get_vocab_size()) for _ in range(rng.randrange(1, 24))]
        rows.append([None, ids, [], [], *decoded(ids)])
    return rows


def main() -> None:
    folder = pathlib.Path(__file__).parent / "tokenizers"
    folder.mkdir(exist_ok=True)
    for name, make in KINDS.items():
        tok = make()
        golden = {"name": name, "tokenizer": json.loads(tok.to_str()), "cases": cases(tok)}
        text = json.dumps(golden, ensure_ascii=True, separators=(",", ":"))
        (folder / f"{name}.json").write_text(text + "\n")
        print(f"{name}: {tok.get_vocab_size()} tokens, {len(text)} bytes")


if __name__ == "__main__":
    main()
