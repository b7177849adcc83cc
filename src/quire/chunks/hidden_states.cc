#include "quire/chunks/hidden_states.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "quire/kv/segments.h"
#include "quire/kv/types.h"
#include "quire/tensor/dtype.h"

namespace quire::chunks {

HiddenRows::HiddenRows(std::int32_t layer, std::vector<float> rows, bool in_32_bits)
    : layer_(layer) {
  if (in_32_bits) {
    whole_ = std::move(rows);
  } else {
    rounded_.reserve(rows.size());
    std::ranges::transform(rows, std::back_inserter(rounded_), tensor::float_to_bf16);
  }
}

void HiddenRows::read(std::size_t token, std::span<float> out) const {
  const std::size_t first = token * out.size();
  if (rounded_.empty()) {
    std::ranges::copy(std::span(whole_).subspan(first, out.size()), out.begin());
  } else {
    std::ranges::transform(std::span(rounded_).subspan(first, out.size()), out.begin(),
                           tensor::bf16_to_float);
  }
}

void HiddenStates::keep(kv::SegmentId segment, HiddenRows rows, const kv::Segments& segments) {
  forget_dropped(segments);
  rows_.insert_or_assign(segment, std::move(rows));
}

const HiddenRows* HiddenStates::find(kv::SegmentId segment, std::int32_t layer) const {
  const auto known = rows_.find(segment);
  return known != rows_.end() && known->second.layer() == layer ? &known->second : nullptr;
}

std::int64_t HiddenStates::bytes(kv::SegmentId segment) const {
  const auto known = rows_.find(segment);
  return known != rows_.end() ? known->second.bytes() : 0;
}

void HiddenStates::forget_dropped(const kv::Segments& segments) {
  std::erase_if(rows_, [&](const auto& kept) { return segments.find(kept.first) == nullptr; });
}

}  // namespace quire::chunks
