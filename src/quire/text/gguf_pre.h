// Kinds of pre-tokenization that GGUF files name in tokenizer.ggml.pre.
#pragma once

#include <array>
#include <string_view>

namespace quire::text {

struct GgufPre {
  // Applied one after the other, each cutting the pieces of the one before; empty ones are unused.
  std::array<std::string_view, 6> patterns = {};
  bool ignore_merges = false;      // pieces that are tokens stay whole
  bool add_bos = false;            // unless the file says otherwise
  bool metaspace = false;          // spaces are U+2581 and text is not spelled in bytes
  bool keep_newline_runs = false;  // runs of newlines that are tokens stay whole
};

// Finds a kind by name. Returns nullptr for an unknown name. The empty name is the default kind, as
// in llama.cpp.
[[nodiscard]] const GgufPre* find_gguf_pre(std::string_view name);

}  // namespace quire::text
