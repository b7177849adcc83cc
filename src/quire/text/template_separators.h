// Separators: the text that a chat template writes before, between and behind the texts of a
// prompt, and how it is shared out between chunks. Internal to template_cutter.cc.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"
#include "quire/text/chat_template.h"
#include "quire/text/chunk_format.h"
#include "quire/text/tokenizer.h"

namespace quire::text {

struct Separators {
  std::string before_system, system_context, context_context, context_query, system_query,
      behind_query;
};

// Takes renderings with 0, 1, 2, ... contexts, each as split_at gives it. Fails with kUnsupported
// when they contradict each other. Precondition: at least three renderings.
[[nodiscard]] Result<Separators> separators_of(
    std::span<const std::vector<std::string>> renderings);

// Returns `prompt` with every byte of the template's own, or else of others, replaced by NUL.
[[nodiscard]] std::string without(const RenderedPrompt& prompt, bool own);

// Returns the text before, between and behind `texts` (system, contexts, query; none part of
// another) in a rendering: texts.size() + 1 strings. Fails with kUnsupported unless each stands
// there once, in order, as text that is not the template's own.
[[nodiscard]] Result<std::vector<std::string>> split_at(const RenderedPrompt& prompt,
                                                        std::span<const std::string_view> texts);

// Returns true if `text` begins with a special token as `tokenizer` reads it.
[[nodiscard]] bool begins_special(const Tokenizer& tokenizer, std::string_view text);

[[nodiscard]] std::size_t common_prefix(std::string_view a, std::string_view b);

// Cuts the separators into affixes so that all four kinds of neighbours are joined right;
// kUnsupported when there is no such place. Among several those where a special token begins come
// first, and of these the one nearest to `hint`, a length of context_context.
[[nodiscard]] Result<ChunkFormat> share_out(const Separators& separators, std::size_t hint,
                                            const Tokenizer& tokenizer);

}  // namespace quire::text
