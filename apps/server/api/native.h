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

// SamplingParams of a body. The length is the caller's to decide.
struct NativeSampling {
  SamplingParams params = {};
  std::optional<std::int64_t> max_tokens = {};
};

// Table of `sampling`.
[[nodiscard]] const FieldTable& native_sampling_table();
// Reads an object that native_sampling_table() has checked.
[[nodiscard]] Checked<NativeSampling> read_native_sampling(const json::object& object,
                                                           std::string_view path);
// Returns what renders a generation with the names of GenerationOutput.
[[nodiscard]] std::unique_ptr<Renderer> native_renderer();
// Returns an output with the names of GenerationOutput.
[[nodiscard]] json::object output_json(const GenerationOutput& output);

}  // namespace quire::server
