#include "api/prompt_logprobs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/call.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::server {
namespace {

// Rows of logits that are asked for at a time: 128 MiB for a vocabulary of 128k.
constexpr std::size_t kSlice = 256;

// Returns the `top` likeliest of a row, and `id` behind them where it is none of them.
TokenLogprobs likeliest(std::span<const float> logits, TokenId id, std::int64_t top) {
  const double highest = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - highest);
  }
  const double base = highest + std::log(sum);
  std::vector<std::pair<float, TokenId>> ranked;
  ranked.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    ranked.emplace_back(-logits[i],
                        static_cast<TokenId>(i));  // among equal ones the lower id comes first
  }
  const auto count = std::min<std::ptrdiff_t>(top, std::ssize(ranked));
  std::ranges::partial_sort(ranked, ranked.begin() + count);
  TokenLogprobs entry;
  bool has_id = false;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const auto& [negative, token] = ranked[static_cast<std::size_t>(i)];
    entry.emplace_back(token, static_cast<float>(-static_cast<double>(negative) - base));
    has_id = has_id || token == id;
  }
  if (!has_id) {
    const float logit = logits[static_cast<std::size_t>(id)];
    entry.emplace_back(id, static_cast<float>(static_cast<double>(logit) - base));
  }
  return entry;
}

}  // namespace

Result<std::vector<TokenLogprobs>> prompt_logprobs(LLM& llm, std::span<const TokenId> ids,
                                                   std::int64_t top, const std::string& salt,
                                                   const Interrupt& interrupted) {
  std::vector<TokenLogprobs> entries(1);
  entries.reserve(ids.size());
  // Slices find the ones before them cached, and nothing else.
  const RequestOptions options{.salt = salt + new_id("echo_")};
  while (entries.size() < ids.size()) {
    const std::size_t end = std::min(entries.size() - 1 + kSlice, ids.size() - 1);
    QUIRE_TRY(const ForwardOutput output, llm.forward(ids.first(end), ForwardReuse::kExact,
                                                      ForwardRows::kAll, interrupted, options));
    const auto width = static_cast<std::size_t>(output.vocab_size);
    const auto cached = static_cast<std::size_t>(output.cached_tokens);
    while (entries.size() <= end) {
      const std::size_t row = entries.size() - 1 - cached;  // row of the token before
      entries.push_back(likeliest(std::span(output.logits).subspan(row * width, width),
                                  ids[entries.size()], top));
    }
  }
  return entries;
}

}  // namespace quire::server
