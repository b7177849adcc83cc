// The vocabulary of a GGUF file as plain data: metadata keys tokenizer.ggml.* to VocabSpec.
#pragma once

#include "quire/result.h"
#include "quire/text/vocab_spec.h"
#include "quire/weights/gguf.h"

namespace quire::engine {

// Returns the vocabulary. kCorrupt names a key of the wrong type, an id outside the vocabulary that
// begins or ends a text, or lists of unequal length. kUnsupported: the file holds no vocabulary. An
// id outside of it for another role counts as absent.
[[nodiscard]] Result<text::VocabSpec> vocab_from_gguf(const weights::GgufFile& file);

}  // namespace quire::engine
