#include "quire/weights/tensor_info.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "quire/base/check.h"
#include "quire/tensor/code_rows.h"
#include "quire/tensor/dtype.h"
#include "quire/weights/code_block.h"
#include "quire/weights/encoding.h"

namespace quire::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

// The decoders of floats below turn kGroup values at a time from a local copy. With constant trip
// counts and no possible aliasing, compilers vectorise them for the baseline instruction set even
// at -O2.
constexpr int kGroup = 32;

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

// Decodes whole groups straight into `out`, a last partial one through a zero-filled copy.
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

// Decodes values that are floats; returns false for others.
bool decode_floats(Encoding encoding, std::span<const std::byte> in, std::span<float> out) {
  switch (encoding) {
    case Encoding::kF32:
      std::memcpy(out.data(), in.data(), in.size());
      return true;
    case Encoding::kF16:
      decode(in, out, std::size_t{2} * kGroup, decode_group_f16);
      return true;
    case Encoding::kBF16:
      decode(in, out, std::size_t{2} * kGroup, decode_group_bf16);
      return true;
    default:
      return false;
  }
}

// The place of some rows among the bytes of their tensor.
struct RowBytes {
  std::size_t first, count;
};

RowBytes row_bytes(const TensorInfo& tensor, std::int64_t first_row, std::int64_t num_rows) {
  QUIRE_CHECK(first_row >= 0 && num_rows >= 0 && num_rows <= tensor.rows() - first_row,
              "rows outside the tensor");
  if (num_rows == 0) {
    return {.first = 0,
            .count = 0};  // a tensor without rows may state columns that no memory holds
  }
  const auto bytes = static_cast<std::size_t>(
      tensor.columns() / code_block_values(tensor.encoding) * code_block_bytes(tensor.encoding));
  return {.first = static_cast<std::size_t>(first_row) * bytes,
          .count = static_cast<std::size_t>(num_rows) * bytes};
}

// Some bytes of a tensor: where they are mapped, or copied out of its file.
class EncodedBytes {
 public:
  EncodedBytes(const TensorInfo& tensor, RowBytes rows) {
    if (tensor.file == nullptr) {
      bytes_ = tensor.bytes.subspan(rows.first, rows.count);
      return;
    }
    copy_ = std::make_unique_for_overwrite<std::byte[]>(rows.count);  // NOLINT: an array
    tensor.file->read(tensor.offset + rows.first, {copy_.get(), rows.count});
    bytes_ = {copy_.get(), rows.count};
  }
  [[nodiscard]] std::span<const std::byte> get() const { return bytes_; }

 private:
  std::unique_ptr<std::byte[]> copy_;  // NOLINT: an array
  std::span<const std::byte> bytes_;
};

// Tells whether `out` has room for all scales that codes of a kind have.
bool has_scales(CodeKind kind, std::size_t groups, const tensor::CodeRows& out) {
  const bool wide = kind == CodeKind::kTable || kind == CodeKind::kTableHalves;
  const bool halves = kind == CodeKind::kTableHalves || kind == CodeKind::kTwoMinimum;
  const bool minimum = kind == CodeKind::kFourMinimum || kind == CodeKind::kTwoMinimum;
  return (wide ? out.wide_scales.size() : out.scales.size()) == groups &&
         (!minimum || out.minimums.size() == groups) &&
         (!halves || out.multiples.size() == groups * 2) &&
         (kind != CodeKind::kTwoMinimum || out.minimum_multiples.size() == groups * 2);
}

// Returns a place in numbers that a kind of codes may not have; nullptr then.
template <class T>
T* at(std::span<T> numbers, std::size_t index) {
  return numbers.empty() ? nullptr : numbers.data() + index;
}

}  // namespace

std::int64_t TensorInfo::num_values() const { return rows() * columns(); }

std::int64_t TensorInfo::columns() const { return shape.empty() ? 1 : shape.back(); }

std::int64_t TensorInfo::rows() const {
  std::int64_t product = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) {
    product *= shape[i];
  }
  return product;
}

void TensorFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  const auto got = file_.read(offset, out);
  const std::size_t filled = got.ok() ? *got : 0;
  if (filled < out.size()) {
    std::memset(out.data() + filled, 0, out.size() - filled);
    was_cut_ = true;
  }
}

void read_bytes(const StoredTensor& tensor, std::size_t first, std::span<std::byte> out) {
  QUIRE_CHECK(first <= tensor.bytes.size() && out.size() <= tensor.bytes.size() - first,
              "bytes outside the tensor");
  if (tensor.file != nullptr) {
    tensor.file->read(tensor.offset + first, out);
  } else {
    std::ranges::copy(tensor.bytes.subspan(first, out.size()), out.begin());
  }
}

void read_rows(const TensorInfo& tensor, std::int64_t first_row, std::int64_t num_rows,
               std::span<float> out) {
  if (tensor.reader != nullptr) {
    QUIRE_CHECK(first_row >= 0 && num_rows >= 0 && num_rows <= tensor.rows() - first_row &&
                    std::cmp_equal(out.size(), num_rows * tensor.columns()),
                "rows outside the tensor, or no room for them");
    tensor.reader->read_rows(first_row, num_rows, out);
    return;
  }
  const RowBytes rows = row_bytes(tensor, first_row, num_rows);
  QUIRE_CHECK(out.size() == static_cast<std::size_t>(num_rows * tensor.columns()),
              "output size is not rows * columns");
  if (out.empty()) {
    return;
  }
  if (tensor.encoding == Encoding::kF32 && tensor.file != nullptr) {
    tensor.file->read(tensor.offset + rows.first, std::as_writable_bytes(out));
    return;
  }
  const EncodedBytes encoded(tensor, rows);
  const std::span<const std::byte> in = encoded.get();
  if (decode_floats(tensor.encoding, in, out)) {
    return;
  }
  const CodeBlockReader& reader = *code_block_reader(tensor.encoding);
  const auto values = static_cast<std::size_t>(code_block_values(tensor.encoding));
  const auto bytes = static_cast<std::size_t>(code_block_bytes(tensor.encoding));
  for (std::size_t block = 0; block * bytes < in.size(); ++block) {
    reader.decode(in.data() + block * bytes, out.data() + block * values);
  }
}

void read_values(const TensorInfo& tensor, std::int64_t row, std::int64_t first,
                 std::span<float> out) {
  QUIRE_CHECK(tensor.reader == nullptr && row >= 0 && row < tensor.rows() && first >= 0 &&
                  std::cmp_less_equal(out.size(), tensor.columns() - first),
              "values outside the tensor");
  const auto bytes = static_cast<std::size_t>(code_block_bytes(tensor.encoding));
  const RowBytes place{.first = static_cast<std::size_t>(row * tensor.columns() + first) * bytes,
                       .count = out.size() * bytes};
  QUIRE_CHECK(decode_floats(tensor.encoding, EncodedBytes(tensor, place).get(), out),
              "values of a row that has blocks");
}

bool is_same(const TensorInfo& a, const TensorInfo& b) {
  if (a.encoding != b.encoding || a.shape != b.shape) {
    return false;
  }
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  for (std::size_t first = 0; first < a.bytes.size(); first += kPiece) {
    const RowBytes piece{.first = first, .count = std::min(kPiece, a.bytes.size() - first)};
    if (!std::ranges::equal(EncodedBytes(a, piece).get(), EncodedBytes(b, piece).get())) {
      return false;
    }
  }
  return true;
}

void read_codes(const TensorInfo& tensor, std::int64_t first_row, std::int64_t num_rows,
                const tensor::CodeRows& out) {
  const auto codes = static_cast<std::size_t>(num_rows * tensor.columns());
  const std::size_t groups = codes / tensor::kCodeGroup;
  QUIRE_CHECK(code_kind(tensor) != CodeKind::kNone, "an encoding without codes");
  QUIRE_CHECK(out.codes.size() == codes && has_scales(code_kind(tensor), groups, out),
              "output size is not rows * columns");
  if (tensor.reader != nullptr) {
    tensor.reader->read_codes(first_row, num_rows, out);
    return;
  }
  const EncodedBytes encoded(tensor, row_bytes(tensor, first_row, num_rows));
  const std::span<const std::byte> in = encoded.get();
  const CodeBlockReader& reader = *code_block_reader(tensor.encoding);
  const auto values = static_cast<std::size_t>(code_block_values(tensor.encoding));
  const auto bytes = static_cast<std::size_t>(code_block_bytes(tensor.encoding));
  for (std::size_t block = 0; block * bytes < in.size(); ++block) {
    const std::size_t group = block * values / tensor::kCodeGroup;
    reader.codes(in.data() + block * bytes,
                 {.codes = out.codes.data() + block * values,
                  .scales = at(out.scales, group),
                  .minimums = at(out.minimums, group),
                  .wide_scales = at(out.wide_scales, group),
                  .multiples = at(out.multiples, group * 2),
                  .minimum_multiples = at(out.minimum_multiples, group * 2)});
  }
}

CodeKind code_kind(const TensorInfo& tensor) {
  return tensor.reader == nullptr ? code_kind(tensor.encoding) : tensor.reader->kind();
}

bool has_misfits(const TensorInfo& tensor) {
  return tensor.reader != nullptr && tensor.reader->misfits();
}

const tensor::CodeTable* code_table(const TensorInfo& tensor) {
  if (tensor.reader != nullptr) {
    return tensor.reader->table();
  }
  const CodeBlockReader* reader = code_block_reader(tensor.encoding);
  return reader == nullptr ? nullptr : reader->table;
}

}  // namespace quire::weights
