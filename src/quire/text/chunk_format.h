// Chunk formats: what stands before and behind the text of a system, a context and a query chunk,
// cut once out of a chat template, so that chunks are token segments that join to a prompt.
//
//   prompt = system chunk, context chunks in any order and number, query chunk
//
// Thread rule: free functions of immutable arguments; any number of threads may call.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/chat_template.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::text {

// What stands before and behind the text of a chunk. Text of the model's own: special tokens
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

// Cuts the template by rendering it for marked texts. Tried in this order, the first that holds is
// taken:
//   1. the template's own way for documents: a role that it treats unlike any unknown one
//      ("context", "document", "documents"), then the argument `documents` ({"text": ...});
//   2. contexts as user turns before the user's question;
//   3. contexts at the start of the one user message, each followed by a blank line; then the
//      system text there, too, for templates without a system role.
//
// What holds afterwards is tested here on texts short and long, equal, blank at their ends, of
// several lines, and spelling special tokens, for 0 to 3 contexts: affixes and texts joined equal
// the rendering with generation prompt byte for byte. It is not claimed for texts that are nothing
// but white space, nor where a template looks for words in a text ("/no_think").
//
// `bos_token` and `eos_token` are what the template sees under these names, "" for what the
// tokenizer names so, if anything; they count as its own text. `now` is the time that the template
// sees, the local time when not given: a date in a system prefix stays that of the day of cutting.
// kUnsupported with the reason of each try. Cost: some hundred renderings of a few kilobytes.
[[nodiscard]] Result<ChunkFormat> cut_chat_template(
    const ChatTemplate& chat, const Tokenizer& tokenizer, std::string_view bos_token,
    std::string_view eos_token, std::optional<std::chrono::local_seconds> now = {});

// For models without a template: BOS if the tokenizer puts one before a text, the system text and a
// blank line; each context and a blank line; the query.
[[nodiscard]] ChunkFormat plain_format(const Tokenizer& tokenizer);

// Token ids of a chunk. The content can never become a special token. No BOS or EOS is added beyond
// what the affixes hold. Errors as Tokenizer::encode_spans.
[[nodiscard]] Result<std::vector<TokenId>> encode_chunk(const Tokenizer& tokenizer,
                                                        const Affixes& around,
                                                        std::string_view content,
                                                        base::WorkMeter* meter = nullptr);

}  // namespace quire::text
