// The safetensors header as a stream of JSON events. A document tree would cost many times the
// header's bytes, and Boost.JSON's keeps the last of two equal keys without a word.
#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/error.hpp>
#include <boost/json/parse_options.hpp>
#include <boost/json/string_view.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/weights/safetensors.h"

namespace quire::weights {
namespace {

namespace json = boost::json;
using base::str_cat;

constexpr std::size_t kMaxDimensions = 16;

// Receives the parser's events. Each returns false after writing down what is wrong.
class HeaderHandler {
 public:
  // NOLINTBEGIN(readability-identifier-naming): Boost.JSON asks for these names
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = std::size_t{1} << 16;
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);
  // NOLINTEND(readability-identifier-naming)

  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] std::vector<SafetensorsEntry> take_entries() { return std::move(entries_); }

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }

  bool on_object_begin(json::error_code& stop) {
    switch (level_) {
      case Level::kOutside:
        level_ = Level::kTop;
        return true;
      case Level::kTop:
        return key_ == "__metadata__" ? begin_metadata(stop) : begin_tensor();
      default:
        return fail(stop, str_cat("key ", base::quoted(key_), " holds an object"));
    }
  }

  bool on_object_end(std::size_t, json::error_code& stop) {
    if (level_ == Level::kTensor && fields_ != (kDtype | kShape | kOffsets)) {
      return fail(stop, "dtype, shape and data_offsets must all be there");
    }
    if (level_ == Level::kTensor && entries_.back().data_offsets.size() != 2) {
      return fail(stop, "data_offsets must be two numbers");
    }
    level_ = level_ == Level::kTop ? Level::kOutside : Level::kTop;
    return true;
  }

  bool on_array_begin(json::error_code& stop) {
    if (level_ != Level::kTensor || (field_ != kShape && field_ != kOffsets)) {
      return fail(stop, str_cat("key ", base::quoted(key_), " holds an array"));
    }
    level_ = Level::kArray;
    return true;
  }

  bool on_array_end(std::size_t, json::error_code&) {
    level_ = Level::kTensor;
    return true;
  }

  bool on_key_part(json::string_view part, std::size_t, json::error_code&) {
    text_.append(part.data(), part.size());
    return true;
  }

  bool on_key(json::string_view part, std::size_t, json::error_code& stop) {
    text_.append(part.data(), part.size());
    key_ = std::exchange(text_, {});
    return level_ == Level::kTensor ? begin_field(stop) : true;
  }

  // Keeps parts of strings, but not those of __metadata__.
  bool on_string_part(json::string_view part, std::size_t, json::error_code&) {
    if (level_ == Level::kTensor) {
      text_.append(part.data(), part.size());
    }
    return true;
  }

  bool on_string(json::string_view part, std::size_t, json::error_code& stop) {
    if (level_ == Level::kMetadata) {
      return true;
    }
    if (level_ != Level::kTensor || field_ != kDtype) {
      return fail(stop, str_cat("key ", base::quoted(key_), " holds a string"));
    }
    text_.append(part.data(), part.size());
    entries_.back().dtype = std::exchange(text_, {});
    return true;
  }

  bool on_number_part(json::string_view, json::error_code&) { return true; }

  bool on_int64(std::int64_t value, json::string_view, json::error_code& stop) {
    if (level_ != Level::kArray) {
      return fail(stop, str_cat("key ", base::quoted(key_), " holds a number"));
    }
    if (value < 0) {
      return fail(stop, str_cat(key_, " holds the negative number ", value));
    }
    SafetensorsEntry& entry = entries_.back();
    auto& numbers = field_ == kShape ? entry.shape : entry.data_offsets;
    const std::size_t most = field_ == kShape ? kMaxDimensions : 2;
    if (numbers.size() == most) {
      return fail(stop, str_cat(key_, " holds more than ", most, " numbers"));
    }
    numbers.push_back(value);
    return true;
  }

  bool on_uint64(std::uint64_t value, json::string_view, json::error_code& stop) {
    return fail(stop, str_cat("the number ", value, " is above 2^63 - 1"));
  }
  bool on_double(double value, json::string_view, json::error_code& stop) {
    return fail(stop, str_cat("the number ", value, " is not an integer"));
  }
  bool on_bool(bool, json::error_code& stop) {
    return fail(stop, str_cat("key ", base::quoted(key_), " holds a truth value"));
  }
  bool on_null(json::error_code& stop) {
    return fail(stop, str_cat("key ", base::quoted(key_), " holds null"));
  }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

 private:
  enum class Level : std::uint8_t { kOutside, kTop, kMetadata, kTensor, kArray };
  enum Field : std::uint8_t { kNone = 0, kDtype = 1, kShape = 2, kOffsets = 4 };

  bool begin_metadata(json::error_code& stop) {
    if (std::exchange(metadata_seen_, true)) {
      return fail(stop, "__metadata__ occurs twice");
    }
    level_ = Level::kMetadata;
    return true;
  }

  bool begin_tensor() {
    level_ = Level::kTensor;
    fields_ = field_ = kNone;
    entries_.push_back({.name = key_, .dtype = {}, .shape = {}, .data_offsets = {}});
    return true;
  }

  bool begin_field(json::error_code& stop) {
    field_ = key_ == "dtype"          ? kDtype
             : key_ == "shape"        ? kShape
             : key_ == "data_offsets" ? kOffsets
                                      : kNone;
    if (field_ == kNone) {
      return fail(stop, str_cat("unknown field ", base::quoted(key_)));
    }
    if ((fields_ & field_) != 0) {
      return fail(stop, str_cat("field ", key_, " occurs twice"));
    }
    fields_ |= field_;
    return true;
  }

  bool fail(json::error_code& stop, std::string_view problem) {
    const bool in_tensor = level_ == Level::kTensor || level_ == Level::kArray;
    problem_ = in_tensor ? str_cat("tensor ", base::quoted(entries_.back().name), ": ", problem)
                         : std::string(problem);
    stop = json::error::syntax;
    return false;
  }

  Level level_ = Level::kOutside;
  Field field_ = kNone;      // the one being read
  std::uint8_t fields_ = 0;  // those seen in this tensor
  bool metadata_seen_ = false;
  std::string text_;  // text of the key or string being read
  std::string key_;   // the last one, of any level
  std::vector<SafetensorsEntry> entries_;
  std::string problem_;
};

}  // namespace

Result<std::vector<SafetensorsEntry>> parse_safetensors_header(std::string_view header,
                                                               std::string_view file) {
  if (!header.starts_with('{')) {
    return {ErrorCode::kCorrupt,
            str_cat(file, ": the header is not a JSON object; is this a safetensors file?")};
  }
  json::basic_parser<HeaderHandler> parser{json::parse_options{.max_depth = 4}};
  json::error_code failure;
  const std::size_t used = parser.write_some(false, header.data(), header.size(), failure);
  HeaderHandler& handler = parser.handler();
  if (failure) {
    return {ErrorCode::kCorrupt,
            str_cat(file,
                    ": header: ", handler.problem().empty() ? failure.message() : handler.problem(),
                    " (near byte ", used, ")")};
  }
  if (!std::ranges::all_of(header.substr(used), [](char c) { return c == ' '; })) {
    return {ErrorCode::kCorrupt, str_cat(file, ": header: more text after its end, byte ", used)};
  }
  return handler.take_entries();
}

}  // namespace quire::weights
