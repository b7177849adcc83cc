// Encodes prompts of text on a worker.
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

// Encodes a text, unless it is too long to fit.
// Errors: those of check_bytes(); 400 for a text without a token.
[[nodiscard]] Checked<std::vector<TokenId>> encode_text(const Engine& engine, std::string_view text,
                                                        bool add_special_tokens, std::string path,
                                                        const Interrupt& interrupted);
// Refuses a text that cannot fit.
// Errors: 400 `context_length_exceeded` for more bytes than the longest tokens could make of a
// whole context.
[[nodiscard]] Check check_bytes(const Engine& engine, std::size_t bytes, std::string path);

}  // namespace quire::server
