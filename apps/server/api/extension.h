// Extension: the member `quire` of all generating endpoints, and its headers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "api/call.h"
#include "api/errors.h"
#include "api/fields.h"
#include "quire/chunk_types.h"

namespace quire::server {

// Fields of `quire` in a request, beside those of its API. Plain data.
struct Extension {
  // Way to compose chunks; with the ids of `quire.chunks`, where they are given.
  CompositionSpec how = {};
  // True: a member about composing is there.
  bool says_how = false;
  // True: `quire.chunks` is there.
  bool names_chunks = false;
  bool persist_chunks = true;
  bool explain = false;
  std::string session = {};
  std::optional<double> expected_return_seconds = {};
  bool close_session = false;
  std::optional<double> hold_seconds = {};
  std::optional<std::int64_t> deadline_ms = {};
  std::int32_t priority = 0;
  std::string cache_salt = {};
};

// Returns the rules of `quire` and `cache_salt`.
[[nodiscard]] std::span<const FieldRule> extension_rules();
// Returns the rules of the fields about composing: `mode`, `positions`, ..., also for a
// CompositionSpec.
[[nodiscard]] std::span<const FieldRule> composition_rules();
// Returns the table of CompositionSpec, field by field.
[[nodiscard]] const FieldTable& composition_table();

// Returns the rules of `deadline_ms` and `priority`, for bodies without `quire`.
[[nodiscard]] std::span<const FieldRule> urgency_rules();
// Reads what urgency_rules() has from a checked body, and the deadline of the request's headers.
// Errors: 400.
[[nodiscard]] Check read_urgency(const Call& call, Extension& extension);

// Reads the extension from a checked body and from the request's headers.
// Errors: 400.
[[nodiscard]] Checked<Extension> read_extension(const Call& call);
// Reads the composition from an object that composition_table() has checked. Its salt is empty.
[[nodiscard]] Checked<CompositionSpec> read_composition(const json::object& object,
                                                        std::string_view path);

}  // namespace quire::server
