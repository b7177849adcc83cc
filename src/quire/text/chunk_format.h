// Chunk formats: the affixes around the text of a system, a context and a query chunk. They make
// chunks token segments that join to a prompt.
//
//   prompt = system chunk, context chunks in any order and number, query chunk
//
// Thread rule: free functions of immutable arguments; any number of threads may call.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::text {

// Holds the text before and behind that of a chunk. It is text of the model's own: special tokens
// written in it count.
struct Affixes {
  std::string prefix, suffix;
  // White space (Python's str.strip) that the template drops at the ends of the text.
  bool trims_left = false, trims_right = false;
  bool continues = false;  // stands behind other chunks: nothing is put before it as before a text
  friend bool operator==(const Affixes&, const Affixes&) = default;
};

struct ChunkFormat {
  Affixes system, context, query;  // query.suffix ends with the generation prompt
  // How contexts enter: "role <name>", "documents", "user turns", "user message", "plain", or "own"
  // when the caller gives the format.
  std::string contexts_as;
  // Context and query chunks begin with a special token, and ids of chunks joined were those of the
  // joined text wherever it was tried. If false, text may be cut differently at borders of chunks.
  bool starts_special = false;
};

// Returns `text` without the white space that `around` says the template drops.
[[nodiscard]] std::string_view trimmed(std::string_view text, const Affixes& around);

// Returns the format of models without a template. BOS comes first if the tokenizer puts one before
// a text. A blank line follows the system text and each context, and the query comes last.
[[nodiscard]] ChunkFormat plain_format(const Tokenizer& tokenizer);

// Returns the token ids of a chunk. The content can never become a special token. No BOS or EOS is
// added beyond what the affixes hold. Errors as Tokenizer::encode_spans.
[[nodiscard]] Result<std::vector<TokenId>> encode_chunk(const Tokenizer& tokenizer,
                                                        const Affixes& around,
                                                        std::string_view content,
                                                        base::WorkMeter* meter = nullptr);

}  // namespace quire::text
