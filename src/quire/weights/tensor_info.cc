#include "quire/weights/tensor_info.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "quire/base/check.h"
#include "quire/tensor/dtype.h"

namespace quire::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

struct EncodingTraits {
  const char* name;
  int block_values;
  int block_bytes;
};

constexpr std::array<EncodingTraits, 6> kTraits = {{{"F32", 1, 4},
                                                    {"F16", 1, 2},
                                                    {"BF16", 1, 2},
                                                    {"Q8_0", 32, 34},
                                                    {"Q4_0", 32, 18},
                                                    {"Q4_1", 32, 20}}};

const EncodingTraits& traits(Encoding encoding) {
  return kTraits[static_cast<std::size_t>(encoding)];
}

// Every decoder below turns kGroup values at a time from a local copy: constant trip counts and no
// possible aliasing, so that compilers vectorise them for the baseline instruction set even at -O2.
constexpr int kGroup = 32;

template <class T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// As tensor::fp16_to_float, but free of branches and calls, so that it vectorises. Subnormals:
// 0.5 + fraction * 2^-24 is built from bits and 0.5 taken off, which is exact and, unlike scaling
// a subnormal float, right in threads that flush those to zero.
float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(0x3f000000u | magnitude) - 0.5f);
  const std::uint32_t normal = (magnitude << 13) + (112u << 23);
  const std::uint32_t infinite_or_nan = (magnitude << 13) | 0x7f800000u;
  const std::uint32_t small_mask = 0u - static_cast<std::uint32_t>(magnitude < 0x400u);
  const std::uint32_t large_mask = 0u - static_cast<std::uint32_t>(magnitude >= 0x7c00u);
  const std::uint32_t value = (subnormal & small_mask) | (infinite_or_nan & large_mask) |
                              (normal & ~(small_mask | large_mask));
  return std::bit_cast<float>(sign | value);
}

void decode_group_bf16(const std::byte* in, float* out) {
  const auto halves = load<std::array<std::uint16_t, kGroup>>(in);
  for (std::size_t i = 0; i < kGroup; ++i) {
    out[i] = tensor::bf16_to_float(halves[i]);
  }
}

void decode_group_f16(const std::byte* in, float* out) {
  const auto halves = load<std::array<std::uint16_t, kGroup>>(in);
  for (std::size_t i = 0; i < kGroup; ++i) {
    out[i] = half_to_float(halves[i]);
  }
}

// ggml block_q8_0: fp16 scale d, 32 int8 q; value = d * q.
void decode_group_q8_0(const std::byte* in, float* out) {
  const float scale = half_to_float(load<std::uint16_t>(in));
  const auto quants = load<std::array<std::int8_t, kGroup>>(in + 2);
  for (std::size_t i = 0; i < kGroup; ++i) {
    out[i] = scale * static_cast<float>(quants[i]);
  }
}

using Nibbles = std::array<std::uint8_t, kGroup / 2>;

// ggml block_q4_0: fp16 scale d, 16 bytes; low nibbles are values 0..15, high ones 16..31;
// value = d * (q - 8).
void decode_group_q4_0(const std::byte* in, float* out) {
  const float scale = half_to_float(load<std::uint16_t>(in));
  const auto pairs = load<Nibbles>(in + 2);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    out[i] = scale * static_cast<float>((pairs[i] & 15) - 8);
    out[i + pairs.size()] = scale * static_cast<float>((pairs[i] >> 4) - 8);
  }
}

// ggml block_q4_1: fp16 scale d, fp16 minimum m, nibbles as in q4_0; value = d * q + m.
void decode_group_q4_1(const std::byte* in, float* out) {
  const float scale = half_to_float(load<std::uint16_t>(in));
  const float minimum = half_to_float(load<std::uint16_t>(in + 2));
  const auto pairs = load<Nibbles>(in + 4);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    out[i] = scale * static_cast<float>(pairs[i] & 15) + minimum;
    out[i + pairs.size()] = scale * static_cast<float>(pairs[i] >> 4) + minimum;
  }
}

// Whole groups straight into `out`; a last partial one (16-bit floats only, quantised blocks are
// groups) through a zero-filled copy.
template <class DecodeGroup>
void decode(std::span<const std::byte> in, std::span<float> out, std::size_t group_bytes,
            DecodeGroup decode_group) {
  const std::size_t groups = out.size() / kGroup;
  for (std::size_t g = 0; g < groups; ++g) {
    decode_group(in.data() + g * group_bytes, out.data() + g * kGroup);
  }
  const std::span<float> rest = out.subspan(groups * kGroup);
  if (!rest.empty()) {
    std::array<std::byte, std::size_t{2} * kGroup> last_in{};
    std::array<float, kGroup> last_out{};
    std::ranges::copy(in.subspan(groups * group_bytes), last_in.begin());
    decode_group(last_in.data(), last_out.data());
    std::copy_n(last_out.begin(), rest.size(), rest.begin());
  }
}

}  // namespace

const char* encoding_name(Encoding encoding) { return traits(encoding).name; }
int encoding_block_values(Encoding encoding) { return traits(encoding).block_values; }
int encoding_block_bytes(Encoding encoding) { return traits(encoding).block_bytes; }

std::int64_t TensorInfo::num_values() const { return rows() * columns(); }

std::int64_t TensorInfo::columns() const { return shape.empty() ? 1 : shape.back(); }

std::int64_t TensorInfo::rows() const {
  std::int64_t product = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) {
    product *= shape[i];
  }
  return product;
}

void read_rows(const TensorInfo& tensor, std::int64_t first_row, std::int64_t num_rows,
               std::span<float> out) {
  QUIRE_CHECK(first_row >= 0 && num_rows >= 0 && num_rows <= tensor.rows() - first_row,
              "rows outside the tensor");
  QUIRE_CHECK(out.size() == static_cast<std::size_t>(num_rows * tensor.columns()),
              "output size is not rows * columns");
  if (out.empty()) {
    return;
  }
  const auto& [name, block_values, block_bytes] = traits(tensor.encoding);
  const auto row_bytes = static_cast<std::size_t>(tensor.columns() / block_values * block_bytes);
  const auto in = tensor.bytes.subspan(static_cast<std::size_t>(first_row) * row_bytes,
                                       static_cast<std::size_t>(num_rows) * row_bytes);
  const auto group_bytes =
      static_cast<std::size_t>(std::int64_t{kGroup} / block_values * block_bytes);
  switch (tensor.encoding) {
    case Encoding::kF32:
      std::memcpy(out.data(), in.data(), in.size());
      return;
    case Encoding::kF16:
      return decode(in, out, group_bytes, decode_group_f16);
    case Encoding::kBF16:
      return decode(in, out, group_bytes, decode_group_bf16);
    case Encoding::kQ8_0:
      return decode(in, out, group_bytes, decode_group_q8_0);
    case Encoding::kQ4_0:
      return decode(in, out, group_bytes, decode_group_q4_0);
    case Encoding::kQ4_1:
      return decode(in, out, group_bytes, decode_group_q4_1);
  }
}

}  // namespace quire::weights
