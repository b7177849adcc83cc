// The options of speculation: LLMOptions::speculate, read and checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "quire/options.h"
#include "quire/result.h"

namespace quire::drafts {

enum class Method : std::uint8_t { kNone, kNgram, kSuffix, kDraft, kCustom };

struct SpeculationOptions {
  Method method = Method::kNone;
  std::int32_t max_tokens = 0;
  std::int32_t min_match = 2;  // kNgram
  std::string model = {};      // kDraft
  std::int32_t width = 1;      // kDraft, kCustom: tokens side by side
  bool adapt = true;
  std::optional<double> threshold = {};  // takes guesses of at least this probability, too
};

// Reads the options. Errors: kInvalidArgument names the key that is unknown, missing, of another
// kind or out of range. kInvalidArgument, too, for the method "custom" without a drafter, or a
// drafter without it.
[[nodiscard]] Result<SpeculationOptions> speculation_of(const LLMOptions& options);

}  // namespace quire::drafts
