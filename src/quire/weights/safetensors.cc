#include "quire/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/weights/layout.h"
#include "quire/weights/tensor_info.h"

namespace quire::weights {
namespace {

using base::str_cat;

struct Dtype {
  std::string_view name;
  int bits;
  std::optional<Encoding> encoding;  // none: recognised, not decoded
};

// Every element type of the format (safetensors 0.8, `Dtype`).
constexpr std::array<Dtype, 22> kDtypes = {
    {{"F32", 32, Encoding::kF32},      {"F16", 16, Encoding::kF16},
     {"BF16", 16, Encoding::kBF16},    {"F64", 64, std::nullopt},
     {"C64", 64, std::nullopt},        {"I64", 64, std::nullopt},
     {"U64", 64, std::nullopt},        {"I32", 32, std::nullopt},
     {"U32", 32, std::nullopt},        {"I16", 16, std::nullopt},
     {"U16", 16, std::nullopt},        {"I8", 8, std::nullopt},
     {"U8", 8, std::nullopt},          {"BOOL", 8, std::nullopt},
     {"F8_E4M3", 8, std::nullopt},     {"F8_E5M2", 8, std::nullopt},
     {"F8_E4M3FNUZ", 8, std::nullopt}, {"F8_E5M2FNUZ", 8, std::nullopt},
     {"F8_E8M0", 8, std::nullopt},     {"F6_E2M3", 6, std::nullopt},
     {"F6_E3M2", 6, std::nullopt},     {"F4", 4, std::nullopt}}};

std::uint64_t load_length(std::span<const std::byte> bytes) {
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  return length;
}

// Checks that `shape` in `dtype` fills exactly the entry's bytes.
Status check_size(const SafetensorsEntry& entry, const Dtype& dtype, std::string_view file) {
  const auto values = checked_product(entry.shape);
  std::int64_t bits = 0;
  if (!values || __builtin_mul_overflow(*values, dtype.bits, &bits)) {
    return {ErrorCode::kCorrupt, str_cat(file, ": tensor ", base::quoted(entry.name), ": shape ",
                                         shape_text(entry.shape), " has more than 2^63 bits")};
  }
  const std::int64_t bytes = entry.data_offsets[1] - entry.data_offsets[0];
  if (bits % 8 != 0 || bits / 8 != bytes) {
    return {ErrorCode::kCorrupt,
            str_cat(file, ": tensor ", base::quoted(entry.name), ": ", dtype.name, " of shape ",
                    shape_text(entry.shape), " needs ", bits, " bits, data_offsets span ", bytes,
                    " bytes")};
  }
  return {};
}

// Adds the entry, whose byte range lies inside `data`, to the table.
Status add_entry(SafetensorsEntry entry, std::span<const std::byte> data, std::string_view file,
                 TensorTable& table) {
  const auto* dtype = std::ranges::find(kDtypes, entry.dtype, &Dtype::name);
  if (dtype == kDtypes.end()) {
    table.unsupported.push_back({.name = std::move(entry.name), .type = std::move(entry.dtype)});
    return {};
  }
  QUIRE_TRY_STATUS(check_size(entry, *dtype, file));
  const auto begin = static_cast<std::size_t>(entry.data_offsets[0]);
  const auto end = static_cast<std::size_t>(entry.data_offsets[1]);
  if (!dtype->encoding) {
    table.unsupported.push_back({.name = std::move(entry.name),
                                 .type = std::move(entry.dtype),
                                 .shape = std::move(entry.shape),
                                 .bytes = data.subspan(begin, end - begin)});
    return {};
  }
  table.tensors.push_back({.name = std::move(entry.name),
                           .encoding = *dtype->encoding,
                           .shape = std::move(entry.shape),
                           .bytes = data.subspan(begin, end - begin)});
  return {};
}

// Returns the header's bytes, bounded by the format and the file.
Result<std::string_view> header_text(std::span<const std::byte> bytes, std::string_view file) {
  if (bytes.size() < sizeof(std::uint64_t)) {
    return {ErrorCode::kCorrupt, str_cat(file, ": has ", bytes.size(),
                                         " bytes, a safetensors file begins with 8 of length")};
  }
  const std::uint64_t length = load_length(bytes);
  const std::uint64_t available = bytes.size() - sizeof(std::uint64_t);
  if (length > kMaxSafetensorsHeaderBytes || length > available) {
    return {ErrorCode::kCorrupt,
            str_cat(file, ": header of ", length, " bytes announced, ", available,
                    " bytes follow and at most ", kMaxSafetensorsHeaderBytes,
                    " are accepted; is the file truncated, or no safetensors file?")};
  }
  const char* text =
      reinterpret_cast<const char*>(bytes.data()) + sizeof(std::uint64_t);  // NOLINT: bytes as text
  return std::string_view(text, static_cast<std::size_t>(length));
}

}  // namespace

Result<TensorTable> parse_safetensors(std::span<const std::byte> bytes, std::string_view file) {
  QUIRE_TRY(const std::string_view header, header_text(bytes, file));
  QUIRE_TRY(auto entries, parse_safetensors_header(header, file));
  const auto data = bytes.subspan(sizeof(std::uint64_t) + header.size());

  std::vector<ByteRange> ranges;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.data_offsets[0] > entry.data_offsets[1]) {
      return {ErrorCode::kCorrupt,
              str_cat(file, ": tensor ", base::quoted(entry.name), ": data_offsets ",
                      shape_text(entry.data_offsets), " run backwards")};
    }
    ranges.push_back({.name = entry.name,
                      .begin = static_cast<std::uint64_t>(entry.data_offsets[0]),
                      .end = static_cast<std::uint64_t>(entry.data_offsets[1])});
  }
  QUIRE_TRY_STATUS(
      check_byte_ranges(std::move(ranges), {.bytes = data.size(), .alignment = 1}, file));

  std::ranges::sort(entries, {}, &SafetensorsEntry::data_offsets);
  TensorTable table;
  for (SafetensorsEntry& entry : entries) {
    QUIRE_TRY_STATUS(add_entry(std::move(entry), data, file, table));
  }
  return table;
}

}  // namespace quire::weights
