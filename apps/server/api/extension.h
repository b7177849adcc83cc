// Extension: the member `quire` of all generating endpoints (rules F8 and F10), and its headers.
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

// Holds what a request asks of Quire, beside what its API knows. Plain data.
struct Extension {
  // How chunks are composed; the ids of `quire.chunks`, where they are given.
  CompositionSpec how = {};
  // True: a member that says how chunks are composed is there.
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
  std::string cache_salt = {};
};

// Rules of `quire` and `cache_salt`.
[[nodiscard]] std::span<const FieldRule> extension_rules();
// Rules that say how chunks are composed: `mode`, `positions`, ..., also of a CompositionSpec.
[[nodiscard]] std::span<const FieldRule> composition_rules();
// Table of CompositionSpec, field by field.
[[nodiscard]] const FieldTable& composition_table();

// Returns the extension of a body that was checked, and of the request's headers.
// Errors: 400.
[[nodiscard]] Checked<Extension> read_extension(const Call& call);
// Returns the composition of an object that was checked by composition_table(). Its salt is empty.
[[nodiscard]] Checked<CompositionSpec> read_composition(const json::object& object,
                                                        std::string_view path);

}  // namespace quire::server
