#include "quire/weights/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/weights/byte_reader.h"
#include "quire/weights/gguf_metadata.h"
#include "quire/weights/gguf_types.h"
#include "quire/weights/gguf_value.h"
#include "quire/weights/layout.h"
#include "quire/weights/tensor_info.h"

namespace quire::weights {
namespace {

using base::str_cat;

constexpr std::uint32_t kMagic = 0x46554747;     // "GGUF"
constexpr std::uint32_t kMaxGgmlDimensions = 4;  // GGML_MAX_DIMS
constexpr std::int64_t kDefaultAlignment = 32;
// Least bytes of one tensor's directory entry: name length and one character, dimensions, one size,
// type, offset.
constexpr std::size_t kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

struct Header {
  std::uint64_t tensor_count = 0;
  std::uint64_t key_count = 0;
};

// A directory entry, its place not yet checked against the file.
struct Entry {
  std::string_view name;
  const GgmlType* type = nullptr;
  std::vector<std::int64_t> shape;  // rows first
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

Result<Header> read_header(ByteReader& reader, std::string_view file) {
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  Header header;
  if (!reader.read(magic) || magic != kMagic) {
    return {ErrorCode::kCorrupt, str_cat(file, ": does not begin with GGUF; is this a GGUF file?")};
  }
  if (!reader.read(version)) {
    return {ErrorCode::kCorrupt, str_cat(file, ": the file ends inside its header")};
  }
  if (version != 0 && (version & 0xffffu) == 0) {
    return {ErrorCode::kUnsupported, str_cat(file,
                                             ": big-endian GGUF; convert it to little-endian "
                                             "with gguf-py's gguf_convert_endian")};
  }
  if (version != 2 && version != 3) {
    return {ErrorCode::kUnsupported,
            str_cat(file, ": GGUF version ", version, "; versions 2 and 3 are supported")};
  }
  if (!reader.read(header.tensor_count) || !reader.read(header.key_count)) {
    return {ErrorCode::kCorrupt, str_cat(file, ": the file ends inside its header")};
  }
  return header;
}

Result<std::vector<std::int64_t>> read_shape(ByteReader& reader, std::string_view where) {
  std::uint32_t dimensions = 0;
  if (!reader.read(dimensions)) {
    return {ErrorCode::kCorrupt, str_cat(where, ": the file ends inside the tensor directory")};
  }
  if (dimensions < 1 || dimensions > kMaxGgmlDimensions) {
    return {ErrorCode::kCorrupt, str_cat(where, ": has ", dimensions, " dimensions; 1 to ",
                                         kMaxGgmlDimensions, " are allowed")};
  }
  std::vector<std::int64_t> shape(dimensions);
  for (std::int64_t& size : shape) {
    if (!reader.read(size)) {
      return {ErrorCode::kCorrupt, str_cat(where, ": the file ends inside the tensor directory")};
    }
  }
  std::ranges::reverse(shape);  // the file puts the fastest dimension first
  return shape;
}

// Returns the bytes of `shape` in `type`.
Result<std::uint64_t> data_bytes(std::span<const std::int64_t> shape, const GgmlType& type,
                                 std::string_view where) {
  const auto values = checked_product(shape);
  std::int64_t bytes = 0;
  if (!values || __builtin_mul_overflow(*values / type.block_values, type.block_bytes, &bytes)) {
    return {ErrorCode::kCorrupt,
            str_cat(where, ": shape ", shape_text(shape), " has more than 2^63 bytes")};
  }
  if (shape.back() % type.block_values != 0) {
    return {ErrorCode::kCorrupt, str_cat(where, ": rows of ", shape.back(), " values in ",
                                         type.name, ", whose blocks hold ", type.block_values)};
  }
  return static_cast<std::uint64_t>(bytes);
}

Result<Entry> read_entry(ByteReader& reader, std::string_view file) {
  Entry entry;
  if (!reader.read_string(entry.name) || entry.name.empty()) {
    return {ErrorCode::kCorrupt, str_cat(file, ": tensor directory: a name is missing or cut")};
  }
  const std::string where = str_cat(file, ": tensor ", base::quoted(entry.name));
  QUIRE_TRY(entry.shape, read_shape(reader, where));
  std::uint32_t type = 0;
  if (!reader.read(type) || !reader.read(entry.offset)) {
    return {ErrorCode::kCorrupt, str_cat(where, ": the file ends inside the tensor directory")};
  }
  entry.type = find_ggml_type(type);
  if (entry.type == nullptr) {
    return {ErrorCode::kUnsupported, str_cat(where, ": has ggml type ", type,
                                             ", which is removed or newer than this reader")};
  }
  QUIRE_TRY(entry.bytes, data_bytes(entry.shape, *entry.type, where));
  return entry;
}

Result<std::vector<Entry>> read_directory(ByteReader& reader, std::uint64_t count,
                                          std::string_view file) {
  if (count > reader.left() / kLeastTensorBytes) {
    return {ErrorCode::kCorrupt, str_cat(file, ": ", count, " tensors announced, but only ",
                                         reader.left(), " bytes follow")};
  }
  std::vector<Entry> entries;
  for (std::uint64_t i = 0; i < count; ++i) {
    QUIRE_TRY(Entry entry, read_entry(reader, file));
    entries.push_back(std::move(entry));
  }
  return entries;
}

// Returns the alignment of the data section and of every tensor in it.
Result<std::uint64_t> alignment_of(const GgufValue* value, std::string_view file) {
  if (value == nullptr) {
    return std::uint64_t{kDefaultAlignment};
  }
  const auto* alignment = std::get_if<std::int64_t>(value);
  if (alignment == nullptr || *alignment < 1 || *alignment > (std::int64_t{1} << 31) ||
      !std::has_single_bit(static_cast<std::uint64_t>(*alignment))) {
    return {ErrorCode::kCorrupt,
            str_cat(file, ": general.alignment must be a power of two up to 2^31",
                    alignment == nullptr ? "" : str_cat(", not ", *alignment))};
  }
  return static_cast<std::uint64_t>(*alignment);
}

// Checks the places of all entries in `data` and fills the table, in data order.
Result<TensorTable> place(std::vector<Entry> entries, std::span<const std::byte> data,
                          std::uint64_t alignment, std::string_view file) {
  std::vector<ByteRange> ranges;
  for (const Entry& entry : entries) {
    std::uint64_t end = 0;
    if (entry.offset % alignment != 0 || __builtin_add_overflow(entry.offset, entry.bytes, &end)) {
      return {ErrorCode::kCorrupt,
              str_cat(file, ": tensor ", base::quoted(entry.name), ": offset ", entry.offset,
                      " is not a multiple of the alignment, ", alignment, ", or beyond 2^64")};
    }
    ranges.push_back({.name = entry.name, .begin = entry.offset, .end = end});
  }
  // Downloads are padded, and tools leave more behind the last tensor: nobody reads it.
  QUIRE_TRY_STATUS(check_byte_ranges(
      std::move(ranges), {.bytes = data.size(), .alignment = alignment, .open_end = true}, file));

  std::ranges::sort(entries, {}, &Entry::offset);
  TensorTable table;
  for (Entry& entry : entries) {
    const std::optional<Encoding> encoding = entry.type->encoding;
    if (!encoding) {
      table.unsupported.push_back({.name = std::string(entry.name), .type = entry.type->name});
      continue;
    }
    table.tensors.push_back({.name = std::string(entry.name),
                             .encoding = *encoding,
                             .shape = std::move(entry.shape),
                             .bytes = data.subspan(static_cast<std::size_t>(entry.offset),
                                                   static_cast<std::size_t>(entry.bytes))});
  }
  return table;
}

}  // namespace

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string_view name) {
  ByteReader reader(bytes);
  QUIRE_TRY(const Header header, read_header(reader, name));
  QUIRE_TRY(GgufMetadata metadata, read_gguf_metadata(reader, header.key_count, name));
  QUIRE_TRY(std::vector<Entry> entries, read_directory(reader, header.tensor_count, name));
  const auto stated = metadata.find("general.alignment");
  QUIRE_TRY(const std::uint64_t alignment,
            alignment_of(stated == metadata.end() ? nullptr : &stated->second, name));
  const std::uint64_t start = (reader.position() + alignment - 1) / alignment * alignment;
  // A vocabulary without tensors may end before its padding does.
  const auto data = bytes.subspan(std::min<std::size_t>(start, bytes.size()));
  QUIRE_TRY(TensorTable table, place(std::move(entries), data, alignment, name));
  return GgufFile(std::string(name), std::move(metadata), std::move(table));
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

Result<std::int64_t> GgufFile::get_int(std::string_view key, std::int64_t fallback) const {
  QUIRE_TRY(const auto* value, find_as<std::int64_t>(key));
  return value == nullptr ? fallback : *value;
}

Result<std::int64_t> GgufFile::get_token_id(std::string_view key) const {
  QUIRE_TRY(const std::int64_t id, get_int(key, -1));
  return id == std::numeric_limits<std::uint32_t>::max() ? -1 : id;
}

Result<double> GgufFile::get_double(std::string_view key, double fallback) const {
  QUIRE_TRY(const auto* value, find_as<double>(key));
  return value == nullptr ? fallback : *value;
}

Result<bool> GgufFile::get_bool(std::string_view key, bool fallback) const {
  QUIRE_TRY(const auto* value, find_as<bool>(key));
  return value == nullptr ? fallback : *value;
}

Result<std::string> GgufFile::get_string(std::string_view key, std::string_view fallback) const {
  QUIRE_TRY(const auto* value, find_as<std::string>(key));
  return value == nullptr ? std::string(fallback) : *value;
}

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : metadata_) {
    keys.push_back(key);
  }
  return keys;
}

Error GgufFile::wrong_type(std::string_view key, const GgufValue& value) const {
  constexpr std::array<const char*, std::variant_size_v<GgufValue> - 1> kNames = {
      "an integer",           "a float",
      "a truth value",        "a string",
      "an array of integers", "an array of floats",
      "an array of strings"};
  const auto* unkept = std::get_if<GgufUnkept>(&value);
  return {.code = ErrorCode::kCorrupt,
          .message = str_cat(name_, ": key ", base::quoted(key), " is ",
                             unkept != nullptr ? unkept->what : kNames[value.index()],
                             ", which is not the type it must have")};
}

}  // namespace quire::weights
