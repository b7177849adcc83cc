#include "quire/weights/gguf_metadata.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/weights/byte_reader.h"
#include "quire/weights/gguf_value.h"

namespace quire::weights {
namespace {

using base::str_cat;

constexpr std::size_t kMaxKeyBytes = 65535;  // limit of the format
// Least bytes of one key with its value: length, one character, type, one byte.
constexpr std::size_t kLeastEntryBytes = 8 + 1 + 4 + 1;
constexpr std::size_t kLeastArrayBytes = 4 + 8;  // type and count
constexpr GgufUnkept kTooLarge = {"an integer above 2^63 - 1"};

// Type numbers of the format (gguf_metadata_value_type).
enum class Type : std::uint32_t {  // NOLINT(performance-enum-size): the format's size
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Reads the value of one key; `where` ("file: key "x"") begins every message.
class ValueReader {
 public:
  ValueReader(ByteReader& reader, std::string where) : reader_(reader), where_(std::move(where)) {}

  Result<GgufValue> read() {
    Type type{};
    if (!reader_.read(type)) {
      return truncated();
    }
    return type == Type::kArray ? read_array(0) : read_scalar(type);
  }

 private:
  Result<GgufValue> read_scalar(Type type) {
    switch (type) {
      case Type::kUint8:
        return read_number<std::uint8_t, std::int64_t>();
      case Type::kInt8:
        return read_number<std::int8_t, std::int64_t>();
      case Type::kUint16:
        return read_number<std::uint16_t, std::int64_t>();
      case Type::kInt16:
        return read_number<std::int16_t, std::int64_t>();
      case Type::kUint32:
        return read_number<std::uint32_t, std::int64_t>();
      case Type::kInt32:
        return read_number<std::int32_t, std::int64_t>();
      case Type::kUint64:
        return read_number<std::uint64_t, std::int64_t>();
      case Type::kInt64:
        return read_number<std::int64_t, std::int64_t>();
      case Type::kFloat32:
        return read_number<float, double>();
      case Type::kFloat64:
        return read_number<double, double>();
      case Type::kBool:
        return read_bool();
      case Type::kString:
        return read_string();
      case Type::kArray:
        break;
    }
    return unknown(type);
  }

  // Reads an array. `depth` counts the arrays around this one.
  Result<GgufValue> read_array(int depth) {
    Type type{};
    std::uint64_t count = 0;
    if (!reader_.read(type) || !reader_.read(count)) {
      return truncated();
    }
    switch (type) {
      case Type::kUint8:
        return read_numbers<std::uint8_t, std::int64_t>(count);
      case Type::kInt8:
        return read_numbers<std::int8_t, std::int64_t>(count);
      case Type::kUint16:
        return read_numbers<std::uint16_t, std::int64_t>(count);
      case Type::kInt16:
        return read_numbers<std::int16_t, std::int64_t>(count);
      case Type::kUint32:
        return read_numbers<std::uint32_t, std::int64_t>(count);
      case Type::kInt32:
        return read_numbers<std::int32_t, std::int64_t>(count);
      case Type::kUint64:
        return read_numbers<std::uint64_t, std::int64_t>(count);
      case Type::kInt64:
        return read_numbers<std::int64_t, std::int64_t>(count);
      case Type::kFloat32:
        return read_numbers<float, double>(count);
      case Type::kFloat64:
        return read_numbers<double, double>(count);
      case Type::kBool:
        return read_bools(count);
      case Type::kString:
        return read_strings(count);
      case Type::kArray:
        return pass_over_arrays(count, depth);
    }
    return unknown(type);
  }

  Result<GgufValue> pass_over_arrays(std::uint64_t count, int depth) {
    constexpr int kMaxDepth = 16;
    if (depth == kMaxDepth) {
      return {ErrorCode::kUnsupported,
              str_cat(where_, ": arrays nest deeper than ", kMaxDepth, " levels")};
    }
    if (count > reader_.left() / kLeastArrayBytes) {
      return too_many(count);
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      QUIRE_TRY_STATUS(read_array(depth + 1));
    }
    return GgufValue(GgufUnkept{"an array of arrays"});
  }

  // Tells whether a value fits int64. Only uint64 has values that do not fit; such a value is
  // passed over.
  template <class Stored, class Kept>
  static bool fits(Stored value) {
    if constexpr (std::is_same_v<Stored, std::uint64_t>) {
      return value <= std::uint64_t{std::numeric_limits<std::int64_t>::max()};
    } else {
      return true;
    }
  }

  template <class Stored, class Kept>
  Result<GgufValue> read_number() {
    Stored value{};
    if (!reader_.read(value)) {
      return truncated();
    }
    if (!fits<Stored, Kept>(value)) {
      return GgufValue(kTooLarge);
    }
    return GgufValue(static_cast<Kept>(value));
  }

  template <class Stored, class Kept>
  Result<GgufValue> read_numbers(std::uint64_t count) {
    if (count > reader_.left() / sizeof(Stored)) {
      return too_many(count);
    }
    std::vector<Kept> values(static_cast<std::size_t>(count));
    bool all_fit = true;
    for (Kept& kept : values) {
      Stored value{};
      if (!reader_.read(value)) {
        return truncated();
      }
      all_fit = all_fit && fits<Stored, Kept>(value);
      kept = static_cast<Kept>(value);  // NOLINT(bugprone-signed-char-misuse): sign extension
    }
    return all_fit ? GgufValue(std::move(values)) : GgufValue(kTooLarge);
  }

  Result<GgufValue> read_bool() {
    std::uint8_t value = 0;
    if (!reader_.read(value)) {
      return truncated();
    }
    if (value > 1) {
      return not_bool(value);
    }
    return GgufValue(value == 1);
  }

  Result<GgufValue> read_bools(std::uint64_t count) {
    QUIRE_TRY(GgufValue values, (read_numbers<std::uint8_t, std::int64_t>(count)));
    for (const std::int64_t value : std::get<std::vector<std::int64_t>>(values)) {
      if (value > 1) {
        return not_bool(value);
      }
    }
    return values;
  }

  Result<GgufValue> read_string() {
    std::string_view text;
    if (!reader_.read_string(text)) {
      return truncated();
    }
    return GgufValue(std::string(text));
  }

  Result<GgufValue> read_strings(std::uint64_t count) {
    if (count > reader_.left() / sizeof(std::uint64_t)) {
      return too_many(count);
    }
    std::vector<std::string> texts;
    texts.reserve(static_cast<std::size_t>(count));
    for (std::uint64_t i = 0; i < count; ++i) {
      std::string_view text;
      if (!reader_.read_string(text)) {
        return truncated();
      }
      texts.emplace_back(text);
    }
    return GgufValue(std::move(texts));
  }

  [[nodiscard]] Error truncated() const {
    return {.code = ErrorCode::kCorrupt,
            .message = str_cat(where_, ": the file ends inside the value")};
  }
  [[nodiscard]] Error too_many(std::uint64_t count) const {
    return {.code = ErrorCode::kCorrupt,
            .message = str_cat(where_, ": array of ", count, " elements, but only ", reader_.left(),
                               " bytes follow")};
  }
  [[nodiscard]] Error not_bool(std::int64_t value) const {
    return {.code = ErrorCode::kCorrupt,
            .message = str_cat(where_, ": a truth value must be 0 or 1, not ", value)};
  }
  [[nodiscard]] Error unknown(Type type) const {
    return {.code = ErrorCode::kCorrupt,
            .message = str_cat(where_, ": unknown value type ", static_cast<std::uint32_t>(type))};
  }

  ByteReader& reader_;
  std::string where_;
};

}  // namespace

Result<GgufMetadata> read_gguf_metadata(ByteReader& reader, std::uint64_t count,
                                        std::string_view file) {
  if (count > reader.left() / kLeastEntryBytes) {
    return {ErrorCode::kCorrupt, str_cat(file, ": ", count, " metadata keys announced, but only ",
                                         reader.left(), " bytes follow")};
  }
  GgufMetadata metadata;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string_view key;
    if (!reader.read_string(key)) {
      return {ErrorCode::kCorrupt, str_cat(file, ": the file ends inside metadata key ", i)};
    }
    if (key.empty() || key.size() > kMaxKeyBytes) {
      return {ErrorCode::kCorrupt, str_cat(file, ": metadata key ", i, " has ", key.size(),
                                           " bytes; 1 to ", kMaxKeyBytes, " are allowed")};
    }
    ValueReader value_reader(reader, str_cat(file, ": key ", base::quoted(key)));
    QUIRE_TRY(GgufValue value, value_reader.read());
    if (!metadata.emplace(key, std::move(value)).second) {
      return {ErrorCode::kCorrupt, str_cat(file, ": key ", base::quoted(key), " occurs twice")};
    }
  }
  return metadata;
}

}  // namespace quire::weights
