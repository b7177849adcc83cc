// Ids, prompts and grades: the words that the whole public surface shares. All are plain values.
// Needs the standard library only.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace quire {

// Index into a model's vocabulary, from 0 on.
// A plain integer, because callers hold lists of tokens. Every other id is a type of its own.
using TokenId = std::int32_t;

// Identity of a request inside one engine. An id is never used twice.
// Ids compare by their numbers.
struct RequestId {
  // 0 stands for no request.
  std::uint64_t value = 0;
  friend auto operator<=>(RequestId, RequestId) = default;
};

// A prompt is a text, which is encoded with special tokens, or token ids, which are taken as they
// are.
using Prompt = std::variant<std::string, std::vector<TokenId>>;

// Says how files compress KV; nothing is lost. True stands for kZstd, false for kNone.
class Compression {
 public:
  enum Codec : std::uint8_t {
    kNone,
    // The smallest.
    kZstd,
    // Faster, and less small.
    kLz4,
  };
  // NOLINTBEGIN(google-explicit-constructor): options take true, or a codec
  constexpr Compression(bool on = false) : codec_(on ? kZstd : kNone) {}
  constexpr Compression(Codec codec) : codec_(codec) {}
  // NOLINTEND(google-explicit-constructor)
  [[nodiscard]] constexpr Codec codec() const { return codec_; }
  friend constexpr bool operator==(Compression, Compression) = default;

 private:
  Codec codec_;
};

// Says how exact a reuse was. The order is from best to worst (docs/reuse-grades.md).
// * kExact: the bits of a cold full causal prefill on this backend.
// * kEqualMath: the same function in another order of rounding. No better grade exists on a GPU
//   without LLMOptions::deterministic.
// * kApproximate: anything else. Some tokens have not seen some others.
enum class ReuseGrade : std::uint8_t { kExact, kEqualMath, kApproximate };
// Returns "exact", "equal_math" or "approximate". Static memory.
[[nodiscard]] constexpr const char* reuse_grade_name(ReuseGrade grade) {
  constexpr const char* kNames[] = {"exact", "equal_math", "approximate"};
  return kNames[static_cast<std::uint8_t>(grade)];
}

}  // namespace quire
