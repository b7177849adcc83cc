// Cuts a chat template into the affixes of chunks, once for a model.
//
// Thread rule: free functions of immutable arguments; any number of threads may call.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

#include "quire/result.h"
#include "quire/text/chat_template.h"
#include "quire/text/chunk_format.h"
#include "quire/text/tokenizer.h"

namespace quire::text {

// Cuts the template by rendering it for marked texts. Tried in this order, the first that holds is
// taken:
//   1. the template's own way for documents: a role that it treats unlike any unknown one
//      ("context", "document", "documents"), then the argument `documents` ({"text": ...});
//   2. contexts as user turns before the user's question;
//   3. contexts at the start of the one user message, each followed by a blank line. The system
//      text then stands there, too, for templates without a system role.
//
// The cutter tests the result for 0 to 3 contexts. The texts are short and long, equal, blank at
// their ends, of several lines, and spell special tokens. Affixes and texts joined equal the
// rendering with generation prompt byte for byte. It is not claimed for texts that are nothing but
// white space, nor where a template looks for words in a text ("/no_think").
//
// `bos_token` and `eos_token` are what the template sees under these names, "" for what the
// tokenizer names so, if anything. They count as its own text. `now` is the time that the template
// sees, the local time when not given. A date in a system prefix stays that of the day of cutting.
// kUnsupported with the reason of each try. Cost: some hundred renderings of a few kilobytes.
[[nodiscard]] Result<ChunkFormat> cut_chat_template(
    const ChatTemplate& chat, const Tokenizer& tokenizer, std::string_view bos_token,
    std::string_view eos_token, std::optional<std::chrono::local_seconds> now = {});

}  // namespace quire::text
