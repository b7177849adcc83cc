// Prompts of texts, encoded on a worker.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "api/errors.h"
#include "engine.h"
#include "quire/interrupt.h"
#include "quire/types.h"

namespace quire::server {

// Returns the ids of a text, which a text that cannot fit does not come to (rule Q7).
// Errors: those of check_bytes(); 400 for a text without token.
[[nodiscard]] Checked<std::vector<TokenId>> encode_text(const Engine& engine, std::string_view text,
                                                        bool add_special_tokens, std::string path,
                                                        const Interrupt& interrupted);
// Errors: 400 `context_length_exceeded` for more bytes than a context of longest tokens has.
[[nodiscard]] Check check_bytes(const Engine& engine, std::size_t bytes, std::string path);

}  // namespace quire::server
