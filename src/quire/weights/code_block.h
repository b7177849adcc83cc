// Code blocks: the quantised blocks of ggml. Source of all layouts: ggml-common.h and ggml-quants.c
// of llama.cpp (commit 0c1e57098); test oracle: gguf-py.
#pragma once

#include "quire/weights/code_block_reader.h"  // IWYU pragma: export
#include "quire/weights/encoding.h"

namespace quire::weights {

// Returns nullptr for floats.
[[nodiscard]] const CodeBlockReader* code_block_reader(Encoding encoding);

}  // namespace quire::weights
