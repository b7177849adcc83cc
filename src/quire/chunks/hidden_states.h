// HiddenStates: the rows before one layer that chunks have kept beside their KV. Blend by layers
// begins with them (Blend::layers).
//
// Thread rule: the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <vector>

#include "quire/kv/segments.h"
#include "quire/kv/types.h"

namespace quire::chunks {

// The rows before one layer of all tokens of a segment.
class HiddenRows {
 public:
  // Takes rows of `layer`, [tokens][width]. Keeps them in 32 bits, or rounded to bfloat16.
  HiddenRows(std::int32_t layer, std::vector<float> rows, bool in_32_bits);

  [[nodiscard]] std::int32_t layer() const { return layer_; }
  [[nodiscard]] std::int64_t bytes() const {
    return std::ssize(whole_) * 4 + std::ssize(rounded_) * 2;
  }
  // Reads the row of a token. out: [width].
  void read(std::size_t token, std::span<float> out) const;

 private:
  std::int32_t layer_ = 0;
  std::vector<float> whole_;            // one of the two is empty
  std::vector<std::uint16_t> rounded_;  // bfloat16
};

class HiddenStates {
 public:
  // Keeps rows of a segment in place of those that it has. Forgets rows of segments that have been
  // dropped.
  void keep(kv::SegmentId segment, HiddenRows rows, const kv::Segments& segments);
  // Returns the rows of a segment before this layer, or null. Valid until the next change.
  [[nodiscard]] const HiddenRows* find(kv::SegmentId segment, std::int32_t layer) const;
  // Returns the bytes of a segment's rows; 0 if it has none.
  [[nodiscard]] std::int64_t bytes(kv::SegmentId segment) const;
  // Forgets rows of segments that have been dropped. O(segments with rows).
  void forget_dropped(const kv::Segments& segments);

 private:
  std::map<kv::SegmentId, HiddenRows> rows_;
};

}  // namespace quire::chunks
