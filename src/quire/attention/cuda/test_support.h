// Helpers of the tests of attention on a GPU: keys, values and queries as they lie there.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "quire/attention/cuda/args.h"
#include "quire/kernels/cuda/int4_place.h"
#include "quire/kernels/kv_codes.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/float8.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::attention::cuda::test {

using tensor::DType;
using tensor::KVFormat;

struct Shape {
  int heads, kv_heads, head_dim, block_tokens;
  DType dtype = DType::kBFloat16;
  KVFormat format = KVFormat::kPlain;
};

inline constexpr std::uint16_t kNaN = 0x7fc0;  // in both; also as a scale

inline std::uint16_t narrow(DType dtype, float value) {
  return dtype == DType::kFloat16 ? tensor::float_to_fp16(value) : tensor::float_to_bf16(value);
}
inline float widen(DType dtype, std::uint16_t bits) {
  return dtype == DType::kFloat16 ? tensor::fp16_to_float(bits) : tensor::bf16_to_float(bits);
}

// The norm of a head's error beside the norm of the head. Keys, values and queries are exact, also
// as codes and scales. Probabilities and results are rounded, by 2^-8 of each in bf16 and by 2^-11
// in fp16. Where many
// values cancel, the errors of their probabilities do alike.
inline double tolerance(DType dtype) { return dtype == DType::kFloat16 ? 8e-4 : 6e-3; }

struct Types {
  DType dtype;
  KVFormat format;
};
inline constexpr Types kTypes[] = {
    {DType::kBFloat16, KVFormat::kPlain}, {DType::kFloat16, KVFormat::kPlain},
    {DType::kBFloat16, KVFormat::kInt8},  {DType::kFloat16, KVFormat::kInt8},
    {DType::kBFloat16, KVFormat::kFp8},   {DType::kFloat16, KVFormat::kFp8},
    {DType::kBFloat16, KVFormat::kInt4},  {DType::kFloat16, KVFormat::kInt4}};

inline Shape in(KVFormat format, Shape shape) {
  shape.format = format;
  if (format == KVFormat::kInt4) {  // whole runs
    shape.block_tokens = (shape.block_tokens + 31) / 32 * 32;
  }
  return shape;
}
inline Shape int8(Shape shape) { return in(KVFormat::kInt8, shape); }
inline Shape fp8(Shape shape) { return in(KVFormat::kFp8, shape); }
inline Shape int4(Shape shape) { return in(KVFormat::kInt4, shape); }

// Keys, values and queries as they are on the device.
class Scene {
 public:
  Scene(const Shape& shape, int num_blocks, std::uint32_t seed)
      : shape_(shape),
        stored_((shape.head_dim + 31) / 32 * 32),
        geometry_{.layers = 1,
                  .kv_heads = shape.kv_heads,
                  .head_dim = shape.head_dim,
                  .dtype = shape.dtype,
                  .block_tokens = shape.block_tokens,
                  .format = shape.format},
        random_(seed) {
    // NaN wherever nobody writes.
    kv_.assign(static_cast<std::size_t>(shape.kv_heads) * num_blocks * block_words(), kNaN);
    num_blocks_ = num_blocks;
    seen_.resize(static_cast<std::size_t>(shape.kv_heads) * num_blocks * shape.block_tokens * 2 *
                 stored_);
    free_.resize(static_cast<std::size_t>(num_blocks));
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), random_);
  }

  // A run of random tokens.
  std::vector<std::int32_t> run(int tokens) {
    std::vector<std::int32_t> blocks;
    for (int token = 0; token < tokens; ++token) {
      if (token % shape_.block_tokens == 0) {
        blocks.push_back(free_.back());
        free_.pop_back();
      }
      for (int head = 0; head < shape_.kv_heads; ++head) {
        for (const Part part : kParts) {
          std::vector<float> row(static_cast<std::size_t>(shape_.head_dim));
          const float size = magnitude();
          std::ranges::generate(row, [&] { return size * random_number(); });
          write({blocks, token, head, part}, row);
        }
      }
    }
    seal(blocks);
    return blocks;
  }

  // Keys whose first dimension rises to `most` in the first three quarters of a run and falls back.
  void slope_keys(std::span<const std::int32_t> blocks, int tokens, float most) {
    for (int token = 0; token < tokens; ++token) {
      const float up = static_cast<float>(token) / (0.75f * static_cast<float>(tokens));
      const float first = most * (2 * std::min(up, 4 - 3 * up) - 1);
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const std::span<const float> stored = row({blocks, token, head, Part::kKey});
        std::vector<float> key(stored.begin(), stored.end());
        key[0] = first;
        write({blocks, token, head, Part::kKey}, key);
      }
    }
    seal(blocks);
  }

  // Values `factor` times as large.
  void scale_values(std::span<const std::int32_t> blocks, int tokens, float factor) {
    for (int token = 0; token < tokens; ++token) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const std::span<const float> stored = row({blocks, token, head, Part::kValue});
        std::vector<float> value(stored.begin(), stored.end());
        for (float& x : value) {
          x *= factor;
        }
        write({blocks, token, head, Part::kValue}, value);
      }
    }
    seal(blocks);
  }

  // Makes tokens from `first` on hold any bytes again, as slots that nobody has written yet.
  // Formats that are written by block forget whole blocks.
  void forget(std::span<const std::int32_t> blocks, int first, int tokens) {
    if (tensor::is_written_by_block(shape_.format)) {
      const int whole = (first + shape_.block_tokens - 1) / shape_.block_tokens;
      for (const std::int32_t block : blocks.subspan(static_cast<std::size_t>(whole))) {
        for (int head = 0; head < shape_.kv_heads; ++head) {
          std::fill_n(kv_.begin() + static_cast<std::ptrdiff_t>(head_block(head, block)),
                      block_words(), kNaN);
        }
      }
      return;
    }
    for (int token = first; token < tokens; ++token) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        for (const Part part : kParts) {
          const Place place{blocks, token, head, part};
          std::fill_n(kv_.begin() + static_cast<std::ptrdiff_t>(row_at(place)), row_words(), kNaN);
          if (shape_.format == KVFormat::kInt8) {
            kv_[scale_at(place)] = kNaN;
          }
        }
      }
    }
  }

  enum class Part { kKey, kValue };
  static constexpr Part kParts[] = {Part::kKey, Part::kValue};
  struct Place {
    std::span<const std::int32_t> blocks;
    int token, head;
    Part part;
  };
  // Returns the numbers that the device should see.
  [[nodiscard]] std::span<const float> row(const Place& place) const {
    return std::span(seen_).subspan(seen_at(place), static_cast<std::size_t>(shape_.head_dim));
  }
  void write(const Place& place, std::vector<float> numbers) {
    numbers.resize(static_cast<std::size_t>(stored_));
    const std::size_t at = row_at(place), seen = seen_at(place);
    if (shape_.format == KVFormat::kPlain) {
      for (std::size_t dim = 0; dim < numbers.size(); ++dim) {
        kv_[at + dim] = narrow(shape_.dtype, numbers[dim]);
        seen_[seen + dim] = widen(shape_.dtype, kv_[at + dim]);
      }
      return;
    }
    if (tensor::is_written_by_block(shape_.format)) {
      std::ranges::copy(numbers, seen_.begin() + static_cast<std::ptrdiff_t>(seen));
      return;  // seal() makes codes of them
    }
    std::vector<std::int8_t> codes(numbers.size());
    ASSERT_TRUE(kernels::encode_int8(numbers, codes, kv_[scale_at(place)]));
    std::memcpy(kv_.data() + at, codes.data(), codes.size());
    const float scale = tensor::fp16_to_float(kv_[scale_at(place)]);
    for (std::size_t dim = 0; dim < codes.size(); ++dim) {
      seen_[seen + dim] = static_cast<float>(codes[dim]) * scale;
    }
  }
  // Stores blocks whose rows are written, in a format that is written by block. seen_ gets the
  // numbers that codes stand for.
  void seal(std::span<const std::int32_t> blocks) {
    if (!tensor::is_written_by_block(shape_.format)) {
      return;
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const std::size_t at = head_block(head, blocks[i]);
        std::fill_n(kv_.begin() + static_cast<std::ptrdiff_t>(at), block_words(), std::uint16_t{0});
        for (const Part part : kParts) {
          if (shape_.format == KVFormat::kFp8) {
            seal_fp8({blocks, static_cast<int>(i) * shape_.block_tokens, head, part}, at);
          } else {
            seal_int4({blocks, static_cast<int>(i) * shape_.block_tokens, head, part}, at);
          }
        }
      }
    }
  }
  void seal_fp8(const Place& first, std::size_t block) {
    std::vector<float> numbers;
    for (int token = 0; token < shape_.block_tokens; ++token) {
      const auto at = seen_.begin() + static_cast<std::ptrdiff_t>(seen_at(after(first, token)));
      numbers.insert(numbers.end(), at, at + stored_);
    }
    std::vector<std::uint8_t> codes(numbers.size());
    float scale = 0;
    ASSERT_TRUE(kernels::encode_fp8(numbers, codes, scale));
    const bool is_value = first.part == Part::kValue;
    std::memcpy(kv_.data() + block + (is_value ? v_offset() : 0), codes.data(), codes.size());
    std::memcpy(kv_.data() + block + scale_offset(Part::kKey) + (is_value ? 2 : 0), &scale,
                sizeof(scale));
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const Place place = after(first, static_cast<int>(i) / stored_);
      seen_[seen_at(place) + i % static_cast<std::size_t>(stored_)] =
          tensor::e4m3_to_float(codes[i]) * scale;
    }
  }
  void seal_int4(const Place& first, std::size_t block) {
    const int dim = stored_;
    const bool is_value = first.part == Part::kValue;
    // Stores one group: `count` numbers from (token, channel) on, next to each other by `step`.
    const auto group = [&](int token, int channel, int count, bool by_token, std::size_t scale_at) {
      std::vector<float> x;
      for (int i = 0; i < count; ++i) {
        x.push_back(seen_[seen_at(after(first, token + (by_token ? i : 0))) +
                          static_cast<std::size_t>(channel + (by_token ? 0 : i))]);
      }
      std::vector<std::uint8_t> codes(x.size());
      kernels::Int4Scale scale;
      ASSERT_TRUE(kernels::encode_int4(x, codes, scale));
      kv_[scale_at] = scale.scale;
      kv_[scale_at + static_cast<std::size_t>(by_token ? dim : 32)] = scale.minimum;
      for (int i = 0; i < count; ++i) {
        const int to_token = token + (by_token ? i : 0), to = channel + (by_token ? 0 : i);
        put_code(block + (is_value ? v_offset() : 0), to_token, to,
                 codes[static_cast<std::size_t>(i)]);
        // The device rounds to fp16.
        seen_[seen_at(after(first, to_token)) + static_cast<std::size_t>(to)] =
            tensor::fp16_to_float(
                tensor::float_to_fp16(static_cast<float>(codes[static_cast<std::size_t>(i)]) *
                                          tensor::fp16_to_float(scale.scale) +
                                      tensor::fp16_to_float(scale.minimum)));
      }
    };
    for (int run = 0; run < shape_.block_tokens / 32; ++run) {
      const std::size_t scales =
          block + scale_offset(Part::kKey) + static_cast<std::size_t>(run * 4 * dim);
      for (int d = 0; !is_value && d < dim; ++d) {
        group(run * 32, d, 32, true, scales + static_cast<std::size_t>(d));
      }
      for (int d = 0; is_value && d < dim; d += 32) {
        for (int token = 0; token < 32; ++token) {
          group(run * 32 + token, d, std::min(32, shape_.head_dim - d), false,
                scales + static_cast<std::size_t>(2 * dim + d / 32 * 64 + token));
        }
      }
    }
  }
  // Stores an int4 code of K or V of a block, whose words of 16 bits begin at `part`.
  void put_code(std::size_t part, int token, int channel, std::uint8_t code) {
    const int bit = 4 * tensor::code_place(8, channel % 8);
    const int word = 2 * kernels::cuda::int4_word(stored_, token, channel / 8) + bit / 16;
    kv_[part + static_cast<std::size_t>(word)] |= static_cast<std::uint16_t>(code << bit % 16);
  }
  [[nodiscard]] static Place after(Place place, int tokens) {
    place.token += tokens;
    return place;
  }
  [[nodiscard]] std::size_t head_block(int head, std::int32_t block) const {
    return (static_cast<std::size_t>(head) * num_blocks_ + static_cast<std::size_t>(block)) *
           block_words();
  }
  [[nodiscard]] std::size_t seen_at(const Place& place) const {
    const auto block = static_cast<std::size_t>(place.blocks[place.token / shape_.block_tokens]);
    const std::size_t row = (static_cast<std::size_t>(place.head) * num_blocks_ + block) *
                                static_cast<std::size_t>(shape_.block_tokens) +
                            slot_of(place);
    return (2 * row + (place.part == Part::kValue ? 1 : 0)) * static_cast<std::size_t>(stored_);
  }

  // In words of 16 bits.
  [[nodiscard]] std::size_t block_words() const {
    return static_cast<std::size_t>(geometry_.head_block_bytes() / 2);
  }
  [[nodiscard]] std::size_t v_offset() const {
    return static_cast<std::size_t>(geometry_.v_offset() / 2);
  }
  [[nodiscard]] std::size_t scale_offset(Part part) const {
    return static_cast<std::size_t>(geometry_.scale_offset() / 2 +
                                    (part == Part::kValue ? geometry_.stored_block_tokens() : 0));
  }
  [[nodiscard]] std::size_t row_words() const {
    return v_offset() / static_cast<std::size_t>(geometry_.stored_block_tokens());
  }
  [[nodiscard]] std::size_t block_at(const Place& place) const {
    const auto block = static_cast<std::size_t>(place.blocks[place.token / shape_.block_tokens]);
    return (static_cast<std::size_t>(place.head) * num_blocks_ + block) * block_words();
  }
  [[nodiscard]] std::size_t slot_of(const Place& place) const {
    return static_cast<std::size_t>(place.token % shape_.block_tokens);
  }
  [[nodiscard]] std::size_t row_at(const Place& place) const {
    return block_at(place) + (place.part == Part::kValue ? v_offset() : 0) +
           slot_of(place) * row_words();
  }
  [[nodiscard]] std::size_t scale_at(const Place& place) const {
    return block_at(place) + scale_offset(place.part) + slot_of(place);
  }

  float random_number() { return std::uniform_real_distribution<float>(-1, 1)(random_); }
  // Codes hold rows of any size.
  float magnitude() {
    return shape_.format == KVFormat::kPlain
               ? 1.0f
               : std::exp2(std::uniform_real_distribution<float>(-3, 2)(random_));
  }
  [[nodiscard]] DType query_type() const { return query_dtype(shape_.dtype, shape_.format); }
  std::uint16_t random_query() { return narrow(query_type(), random_number()); }

  const Shape shape_;
  const int stored_;
  const tensor::KVGeometry geometry_;
  int num_blocks_ = 0;
  std::mt19937 random_;
  std::vector<std::uint16_t> kv_;
  std::vector<float> seen_;   // what kv_ holds
  std::vector<float> sinks_;  // [heads] or empty
  double cap_ = 0;            // scaled scores s become cap * tanh(s / cap); 0: they stay
  std::vector<std::int32_t> free_;
};

}  // namespace quire::attention::cuda::test
