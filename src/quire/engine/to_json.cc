// Options and outputs as JSON.
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/context.h"
#include "quire/fields.h"
#include "quire/output.h"
#include "quire/sampling.h"
#include "quire/text/utf8.h"
#include "quire/types.h"

namespace quire {
namespace {

// Writes values behind one another; a comma stands before all but the first of an object or array.
class JsonWriter {
 public:
  // Writes the members of an output.
  template <class Output>
  void add_object(const Output& output) {
    out_ += '{';
    visit_members(output, [this](const char* name, const auto& value) { add_member(name, value); });
    out_ += '}';
  }

  void add_object(const SamplingParams& params) {
    out_ += '{';
    for (const SamplingField& field : sampling_fields()) {
      std::visit([&](auto member) { add_member(field.name, params.*member); }, field.member);
    }
    out_ += '}';
  }

  template <class Value>
  void add_array(std::span<const Value> values) {
    out_ += '[';
    for (const Value& value : values) {
      separate();
      add(value);
    }
    out_ += ']';
  }

  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  template <class Value>
  static bool is_missing(const Value& /*value*/) {
    return false;
  }
  template <class Value>
  static bool is_missing(const std::optional<Value>& value) {
    return !value.has_value();
  }
  static bool is_missing(const std::vector<TokenLogprobs>& logprobs) { return logprobs.empty(); }

  template <class Value>
  void add_member(std::string_view name, const Value& value) {
    if (!is_missing(value)) {
      add_key(name);
      add(value);
    }
  }

  void separate() {
    if (out_.back() != '{' && out_.back() != '[') {
      out_ += ',';
    }
  }

  void add_key(std::string_view name) {
    separate();
    add(name);
    out_ += ':';
  }

  void add(bool value) { out_ += value ? "true" : "false"; }
  void add(std::integral auto value) { out_ += std::to_string(value); }

  // The shortest digits that are read as the same number, with a point or an exponent.
  void add(double value) {
    if (std::isnan(value)) {
      out_ += "null";
      return;
    }
    if (std::isinf(value)) {
      out_ += value < 0 ? "-1e99999" : "1e99999";
      return;
    }
    char digits[32];
    const auto [end, failure] = std::to_chars(digits, digits + sizeof digits, value);
    const std::string_view text(digits, end);
    out_ += text;
    out_ += text.find_first_of(".e") == std::string_view::npos ? ".0" : "";
  }

  void add(std::string_view text) {
    constexpr char kHex[] = "0123456789abcdef";
    out_ += '"';
    for (const char c : text::repair_utf8(text)) {
      switch (c) {
        case '"':
        case '\\':
          out_ += '\\';
          out_ += c;
          break;
        case '\n':
          out_ += "\\n";
          break;
        case '\r':
          out_ += "\\r";
          break;
        case '\t':
          out_ += "\\t";
          break;
        default:
          if (const auto byte = static_cast<unsigned char>(c); byte < 0x20) {
            out_ += "\\u00";
            out_ += kHex[byte >> 4U];
            out_ += kHex[byte & 0xFU];
          } else {
            out_ += c;
          }
      }
    }
    out_ += '"';
  }
  void add(const std::string& text) { add(std::string_view(text)); }
  void add(MissingIfEmpty value) { add(value.text); }
  void add(RequestId id) { add(id.value); }
  void add(FinishReason reason) { add(std::string_view(finish_reason_name(reason))); }
  void add(ReuseGrade grade) { add(std::string_view(reuse_grade_name(grade))); }
  void add(const Usage& usage) { add_object(usage); }
  void add(const ReuseReport& reuse) { add_object(reuse); }
  void add(const Timing& timing) { add_object(timing); }
  void add(const ReusePart& part) { add_object(part); }

  template <class Value>
  void add(const std::optional<Value>& value) {
    add(*value);
  }
  template <class Value>
  void add(const std::vector<Value>& values) {
    add_array(std::span(values));
  }
  template <class Number>
  void add(const std::vector<std::pair<TokenId, Number>>& by_id) {
    out_ += '{';
    for (const auto& [id, value] : by_id) {
      add_key(std::to_string(id));
      add(static_cast<double>(value));
    }
    out_ += '}';
  }
  void add(const std::pair<std::string, std::int64_t>& source) {
    out_ += '[';
    add(source.first);
    separate();
    add(source.second);
    out_ += ']';
  }

  std::string out_;
};

template <class Object>
std::string object_as_json(const Object& object) {
  JsonWriter writer;
  writer.add_object(object);
  return writer.take();
}

}  // namespace

std::string to_json(const SamplingParams& params) { return object_as_json(params); }
std::string to_json(const Usage& usage) { return object_as_json(usage); }
std::string to_json(const ReuseReport& reuse) { return object_as_json(reuse); }
std::string to_json(const Timing& timing) { return object_as_json(timing); }
std::string to_json(const GenerationOutput& output) { return object_as_json(output); }
std::string to_json(const ContextManager::Answer& answer) { return object_as_json(answer); }
std::string to_json(const Delta& delta) { return object_as_json(delta); }

std::string to_json(std::span<const ReusePart> parts) {
  JsonWriter writer;
  writer.add_array(parts);
  return writer.take();
}

}  // namespace quire
