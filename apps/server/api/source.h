// PromptSource: a prompt of Quire's own endpoints: a text, ids, a chat, or a composition.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "api/call.h"
#include "api/errors.h"
#include "api/fields.h"
#include "api/messages.h"
#include "engine.h"
#include "quire/chunk_types.h"
#include "quire/interrupt.h"
#include "quire/types.h"

namespace quire::server {

// A prompt as the body gives it. Plain data.
struct PromptSource {
  std::variant<std::string, std::vector<TokenId>, ChatPrompt, CompositionSpec> prompt;
  // Path of the prompt, for errors.
  std::string path;
};

// A prompt that can be started: ids, or a composition.
struct EncodedSource {
  std::variant<std::vector<TokenId>, CompositionSpec> prompt;
  std::int64_t tokens = 0;
};

// Returns the rules of `prompt`, `messages`, `variables` and `composition`.
[[nodiscard]] std::span<const FieldRule> source_rules();

// Reads the prompt of an object that source_rules() have checked. `path` leads to the object.
// Errors: 400 unless exactly one of `prompt`, `messages` and `composition` is there, and for an
// ill-formed prompt.
[[nodiscard]] Checked<PromptSource> read_source(const Engine& engine, const json::object& object,
                                                std::string_view path, FieldNotes& notes);

// Encodes a prompt, or looks up the chunks of a composition, on a worker. `salt` is the tenant's,
// without a client's `cache_salt`.
// Errors: 400, and 404 for a chunk that does not exist.
[[nodiscard]] Checked<EncodedSource> encode_source(Engine& engine, PromptSource source,
                                                   const std::string& salt,
                                                   const Interrupt& interrupted);

// Returns the error that a client gets for an error of a composition; `param` is the path of the
// chunk.
[[nodiscard]] ApiError composition_error(const Error& error, const CompositionSpec& spec,
                                         std::string_view path);

// Returns the registry of chunks.
// Errors: 400 where the engine has none.
[[nodiscard]] Checked<ChunkedLLM*> chunk_registry(Engine& engine);

}  // namespace quire::server
