#include "quire/text/regex.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "quire/result.h"

#define PCRE2_CODE_UNIT_WIDTH 8  // NOLINT(readability-identifier-naming): the name is PCRE2's
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>

#include "quire/base/str.h"
#include "quire/base/work_meter.h"
#include "quire/text/utf8.h"

namespace quire::text {
namespace {

// A search takes a window of starts at a time, first with compiled code. That gives up soon, behind
// a few backtracking steps or at the end of what it is shown. So a search never works for long
// without looking at the meter. Where it gives up, PCRE2's interpreter counts every item of the
// pattern.
constexpr std::size_t kWindowBytes = 64;   // bytes of starts in a window
constexpr std::size_t kShownBytes = 256;   // to the compiled code, from the first start on
constexpr std::uint32_t kQuickLimit = 32;  // backtracking steps for each start
constexpr std::int64_t kQuickSteps = 8;    // steps that a window counts as
constexpr std::uint32_t kHeapLimitKiB = 64 * 1024;
constexpr std::size_t kMaxPatternBytes = std::size_t{64} * 1024;

template <auto kFree>
struct Deleter {
  template <class T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};

using Code = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;

PCRE2_SPTR bytes_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

// Counts the item at hand and the bytes that the one before ran over.
struct Progress {
  base::WorkMeter* meter;
  PCRE2_SIZE position = 0;
};

int count_item(pcre2_callout_block* block, void* data) {
  auto& progress = *static_cast<Progress*>(data);
  const PCRE2_SIZE last = std::exchange(progress.position, block->current_position);
  const PCRE2_SIZE distance = last < progress.position ? progress.position - last : 0;
  return progress.meter->step(static_cast<std::int64_t>(distance / 16) + 1) ? 0
                                                                            : PCRE2_ERROR_CALLOUT;
}

// Returns the start of the first character at or behind `at`.
std::size_t character_at(std::string_view text, std::size_t at) {
  while (at < text.size() && is_utf8_continuation(text[at])) {
    ++at;
  }
  return std::min(at, text.size());
}

Result<Code> compile_code(std::string_view translated, std::string_view pattern,
                          std::uint32_t options) {
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (context == nullptr) {
    throw std::bad_alloc();
  }
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(bytes_of(translated), translated.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                              PCRE2_USE_OFFSET_LIMIT | options,
                          &error, &offset, context.get()));
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    return {ErrorCode::kInvalidArgument,
            base::str_cat("regex ", base::quoted(pattern), ": ",
                          reinterpret_cast<const char*>(message.data()), " at byte ", offset)};
  }
  return code;
}

}  // namespace

struct Regex::Impl {
  Code quick;     // compiled to machine code where that is possible
  Code counting;  // calls count_item at every item
};

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("regex of ", pattern.size(), " bytes; at most ", kMaxPatternBytes)};
  }
  QUIRE_TRY(const std::string translated, translate_pattern(pattern));
  auto impl = std::make_unique<Impl>();
  QUIRE_TRY(impl->quick, compile_code(translated, pattern, 0));
  QUIRE_TRY(impl->counting, compile_code(translated, pattern, PCRE2_AUTO_CALLOUT));
  // Without it pcre2_match interprets: slower, same result.
  pcre2_jit_compile(impl->quick.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return Regex(std::move(impl));
}

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

struct Matcher::Impl {
  const Regex::Impl* regex;
  Progress progress;
  MatchData data;
  MatchContext quick;
  MatchContext counting;
};

Matcher::Matcher(const Regex& regex, base::WorkMeter& meter)
    : impl_(new Impl{.regex = regex.impl_.get(),
                     .progress = {.meter = &meter},
                     .data = MatchData(pcre2_match_data_create(1, nullptr)),
                     .quick = MatchContext(pcre2_match_context_create(nullptr)),
                     .counting = MatchContext(pcre2_match_context_create(nullptr))}) {
  if (impl_->data == nullptr || impl_->quick == nullptr || impl_->counting == nullptr) {
    throw std::bad_alloc();
  }
  pcre2_set_match_limit(impl_->quick.get(), kQuickLimit);
  pcre2_set_match_limit(impl_->counting.get(), std::numeric_limits<std::uint32_t>::max());
  pcre2_set_heap_limit(impl_->counting.get(), kHeapLimitKiB);
  pcre2_set_callout(impl_->counting.get(), &count_item, &impl_->progress);
}

Matcher::~Matcher() = default;

Matcher::Quick Matcher::find_quickly(std::string_view text, std::size_t from, std::size_t last) {
  const std::size_t shown = character_at(text, from + kShownBytes);
  pcre2_set_offset_limit(impl_->quick.get(), last);
  const int result =
      pcre2_match(impl_->regex->quick.get(), bytes_of(text), shown, from,
                  PCRE2_NO_UTF_CHECK | (shown < text.size() ? PCRE2_PARTIAL_HARD : 0U),
                  impl_->data.get(), impl_->quick.get());
  return result == PCRE2_ERROR_NOMATCH ? Quick::kNone : result < 0 ? Quick::kGaveUp : Quick::kFound;
}

bool Matcher::find_counting(std::string_view text, std::size_t from, std::size_t last) {
  pcre2_set_offset_limit(impl_->counting.get(), last);
  impl_->progress.position = from;
  const int result =
      pcre2_match(impl_->regex->counting.get(), bytes_of(text), text.size(), from,
                  PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, impl_->data.get(), impl_->counting.get());
  if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
    impl_->progress.meter->exhaust();  // the heap, unless the meter has failed already
  }
  return result >= 0;
}

std::optional<Matcher::Match> Matcher::find(std::string_view text, std::size_t from) {
  while (from <= text.size() && impl_->progress.meter->step(kQuickSteps)) {
    const std::size_t next = character_at(text, from + kWindowBytes);
    const std::size_t last = next > from ? next - 1 : from;
    const Quick quick = find_quickly(text, from, last);
    if (quick == Quick::kFound || (quick == Quick::kGaveUp && find_counting(text, from, last))) {
      const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(impl_->data.get());
      // \K in a look-ahead can put the start behind the end; such a match is of no use.
      return offsets[0] <= offsets[1] ? std::optional<Match>({offsets[0], offsets[1]})
                                      : std::nullopt;
    }
    from = next > from ? next : from + 1;
  }
  return std::nullopt;
}

}  // namespace quire::text
