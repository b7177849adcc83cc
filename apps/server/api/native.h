// Shares code between the generating endpoints under Quire's own names: /v1/generate and sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "api/errors.h"
#include "api/fields.h"
#include "api/generation.h"
#include "quire/output.h"
#include "quire/sampling.h"

namespace quire::server {

// SamplingParams of a body. The caller decides the length.
struct NativeSampling {
  SamplingParams params = {};
  std::optional<std::int64_t> max_tokens = {};
};

// Returns the table of `sampling`.
[[nodiscard]] const FieldTable& native_sampling_table();
// Reads an object that native_sampling_table() has checked.
[[nodiscard]] Checked<NativeSampling> read_native_sampling(const json::object& object,
                                                           std::string_view path);
// Returns a renderer that uses the names of GenerationOutput.
[[nodiscard]] std::unique_ptr<Renderer> native_renderer();
// Returns an output as JSON, with the names of GenerationOutput.
[[nodiscard]] json::object output_json(const GenerationOutput& output);

}  // namespace quire::server
