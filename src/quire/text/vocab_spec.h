// VocabSpec: a vocabulary as GGUF metadata states it, in plain data, so that text needs no reader.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/types.h"

namespace quire::text {

// Fields are the tokenizer.ggml.* keys. Ids of -1 mean that the file names none.
struct VocabSpec {
  std::string model;  // "gpt2" (byte-level BPE), "gemma4" (BPE), "llama" (SPM), "bert", "t5"
  std::string pre;    // tokenizer.ggml.pre, e.g. "llama-bpe", "smollm"; may be empty
  std::vector<std::string> tokens;
  std::vector<float> scores;  // empty or one per token
  std::vector<std::int32_t>
      token_types;                  // 1 normal, 2 unknown, 3 control, 4 user, 5 unused, 6 byte
  std::vector<std::string> merges;  // "left right"
  TokenId bos = -1, eos = -1, eot = -1, unk = -1, sep = -1, pad = -1, mask = -1, cls = -1;
  int add_bos = -1, add_eos = -1, add_space_prefix = -1;  // -1 not stated, 0, 1
  bool remove_extra_whitespaces = false;
  bool escape_whitespaces = true;
  std::string precompiled_charsmap;  // bytes, for "t5"
  int normalizer_lowercase = -1;     // "bert": -1 not stated (on), 0, 1
  int normalizer_strip_accents = -1;
  // White space behind special tokens is dropped. GGUF has no key for it: llama.cpp goes by
  // general.name, which holds "phi-3" or "phi3".
  bool specials_strip_right = false;
};

}  // namespace quire::text
