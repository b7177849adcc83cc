// Checks of what people may set, and sizes as they write them.
#include "quire/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <system_error>

#include "quire/base/str.h"
#include "quire/contexts/checkpoints.h"
#include "quire/engine/llm_options.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sampling/sampling_params.h"
#include "quire/sequence_types.h"

namespace quire {
namespace {

struct SizeSuffix {
  std::string_view name;
  double bytes;
};

constexpr double kKibi = 1024.0, kKilo = 1000.0;
constexpr SizeSuffix kSizeSuffixes[] = {{"", 1},
                                        {"B", 1},
                                        {"K", kKibi},
                                        {"M", kKibi* kKibi},
                                        {"G", kKibi* kKibi* kKibi},
                                        {"T", kKibi* kKibi* kKibi* kKibi},
                                        {"KiB", kKibi},
                                        {"MiB", kKibi* kKibi},
                                        {"GiB", kKibi* kKibi* kKibi},
                                        {"TiB", kKibi* kKibi* kKibi* kKibi},
                                        {"KB", kKilo},
                                        {"MB", kKilo* kKilo},
                                        {"GB", kKilo* kKilo* kKilo},
                                        {"TB", kKilo* kKilo* kKilo* kKilo}};
constexpr double kMaxBytes = 1e15;  // a petabyte: beyond it, it is a slip

// Compares a suffix without regard to case: "gib" and "GIB" are "GiB".
bool is_suffix(std::string_view written, std::string_view name) {
  const auto same = [](unsigned char a, unsigned char b) {
    return std::toupper(a) == std::toupper(b);
  };
  return std::ranges::equal(written, name, same);
}

}  // namespace

Result<std::int64_t> parse_bytes(std::string_view text) {
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (suffix.starts_with(' ')) {
    suffix.remove_prefix(1);
  }
  for (const SizeSuffix& known : kSizeSuffixes) {
    if (failure == std::errc() && is_suffix(suffix, known.name) && value >= 0 &&
        value * known.bytes <= kMaxBytes) {
      return static_cast<std::int64_t>(value * known.bytes);
    }
  }
  return {
      ErrorCode::kInvalidArgument,
      base::str_cat(base::quoted(text),
                    " is not a size; write 1073741824, 512MiB, 1GiB or 1G, or 1GB for 1000000000")};
}

Status LLMOptions::validate() const { return engine::check_options(*this); }
Status SamplingParams::validate() const { return sampling::check_params(*this); }
Status CheckpointOptions::validate() const { return contexts::check_options(*this); }

}  // namespace quire
