#include "quire/text/regex.h"

#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "quire/result.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <utility>

#include "quire/base/str.h"

namespace quire::text {
namespace {

constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::uint32_t kHeapLimitKiB = 64 * 1024;
constexpr std::size_t kJitStackStart = std::size_t{32} * 1024;
constexpr std::size_t kJitStackBytes = std::size_t{1} << 20;
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
using JitStack = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

PCRE2_SPTR bytes_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

namespace {

// What PCRE2 could not make, it had no memory for.
void require(const void* made) {
  if (made == nullptr) {
    throw std::bad_alloc();
  }
}

}  // namespace

struct Regex::Impl {
  Code code;
};

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("regex of ", pattern.size(), " bytes; at most ", kMaxPatternBytes)};
  }
  QUIRE_TRY(const std::string translated, translate_pattern(pattern));
  const CompileContext context(pcre2_compile_context_create(nullptr));
  require(context.get());
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(bytes_of(translated), translated.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                          &offset, context.get()));
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    return {ErrorCode::kInvalidArgument,
            base::str_cat("regex ", base::quoted(pattern), ": ",
                          reinterpret_cast<const char*>(message.data()), " at byte ", offset)};
  }
  // Without JIT (or when it cannot compile the pattern) pcre2_match interprets: slower, same
  // result.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  auto impl = std::make_unique<Impl>();
  impl->code = std::move(code);
  return Regex(std::move(impl));
}

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

struct Matcher::Impl {
  const pcre2_code* code;
  MatchData data;
  JitStack stack;
  MatchContext context;
};

Matcher::Matcher(const Regex& regex) : impl_(std::make_unique<Impl>()) {
  impl_->code = regex.impl_->code.get();
  impl_->data.reset(pcre2_match_data_create(1, nullptr));
  impl_->context.reset(pcre2_match_context_create(nullptr));
  require(impl_->data.get());
  require(impl_->context.get());
  pcre2_set_match_limit(impl_->context.get(), kMatchLimit);
  pcre2_set_heap_limit(impl_->context.get(), kHeapLimitKiB);
}

Matcher::~Matcher() = default;

std::optional<Matcher::Match> Matcher::find(std::string_view text, std::size_t from) {
  const auto match = [&](std::uint32_t options) {
    return pcre2_match(impl_->code, bytes_of(text), text.size(), from, PCRE2_NO_UTF_CHECK | options,
                       impl_->data.get(), impl_->context.get());
  };
  int result = match(0);  // on 32 KiB of the machine's stack, enough for nearly all patterns
  if (result == PCRE2_ERROR_JIT_STACKLIMIT && impl_->stack == nullptr) {
    impl_->stack.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackBytes, nullptr));
    require(impl_->stack.get());
    pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->stack.get());
    result = match(0);
  }
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
    result = match(PCRE2_NO_JIT);  // the interpreter backtracks on the heap
  }
  if (result < 0) {
    return std::nullopt;
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(impl_->data.get());
  // \K in a look-ahead can put the start behind the end; such a match is of no use.
  return offsets[0] <= offsets[1] ? std::optional<Match>({offsets[0], offsets[1]}) : std::nullopt;
}

}  // namespace quire::text
