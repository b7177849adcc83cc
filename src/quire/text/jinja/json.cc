#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/compare.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/print.h"
#include "quire/text/jinja/sort.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/unicode.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Meter& meter, const JsonStyle& style) : meter_(meter), style_(style), out_(&meter) {}

  Status write(const Value& value, int level) {
    if (const auto* text = value.text()) {
      write_string(*text);
      return {};
    }
    if (const auto* sequence = value.sequence();
        sequence != nullptr && sequence->kind <= SequenceKind::kTuple) {
      return write_list(*sequence, level);
    }
    if (const auto* dict = value.dict()) {
      return write_dict(*dict, level);
    }
    QUIRE_TRY(const auto word, scalar(value));
    out_.append(word, value.source());
    return {};
  }

  TextPtr build() && { return std::move(out_).build(); }

 private:
  static Result<std::string> scalar(const Value& value) {
    if (value.is_none()) {
      return std::string("null");
    }
    if (const auto* boolean = value.get<bool>()) {
      return std::string(*boolean ? "true" : "false");
    }
    if (const auto* integer = value.get<std::int64_t>()) {
      return std::to_string(*integer);
    }
    if (const auto* real = value.get<double>()) {
      if (std::isnan(*real)) {
        return std::string("NaN");
      }
      return std::isinf(*real) ? std::string(*real < 0 ? "-Infinity" : "Infinity")
                               : float_repr(*real);
    }
    return invalid("object of type ", type_name(value), " has no form in JSON");
  }

  void put(std::string_view text) { out_.append(text, kFromTemplate); }

  void new_line(int level) {
    if (style_.indent) {
      put("\n");
      for (int i = 0; i < level && !meter_.failed(); ++i) {
        put(*style_.indent);
      }
    }
  }

  Status write_list(const Sequence& list, int level) {
    put("[");
    for (std::size_t i = 0; i < list.items.size() && !meter_.failed(); ++i) {
      put(i == 0 ? "" : style_.item_separator);
      new_line(level + 1);
      QUIRE_TRY_STATUS(write(list.items[i], level + 1));
    }
    if (!list.items.empty()) {
      new_line(level);
    }
    put("]");
    return {};
  }

  Status write_dict(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> items;
    items.reserve(dict.items.size());
    for (const auto& item : dict.items) {
      items.push_back(&item);
    }
    if (style_.sort_keys) {
      QUIRE_TRY_STATUS(sort_by_key(items));
    }
    put("{");
    for (std::size_t i = 0; i < items.size() && !meter_.failed(); ++i) {
      put(i == 0 ? "" : style_.item_separator);
      new_line(level + 1);
      QUIRE_TRY_STATUS(write_key(items[i]->first));
      put(style_.key_separator);
      QUIRE_TRY_STATUS(write(items[i]->second, level + 1));
    }
    if (!items.empty()) {
      new_line(level);
    }
    put("}");
    return {};
  }

  // Keys that are no strings take the quotes of their JSON form.
  Status write_key(const Value& key) {
    if (const auto* text = key.text()) {
      write_string(*text);
      return {};
    }
    QUIRE_TRY(const auto word, scalar(key));
    put("\"");
    out_.append(word, key.source());
    put("\"");
    return {};
  }

  Status sort_by_key(std::vector<const std::pair<Value, Value>*>& items) {
    return stable_sort(meter_, items, [&](const auto* a, const auto* b) -> Result<bool> {
      return compare_order(meter_, "<", a->first, b->first);
    });
  }

  void write_string(const Text& text) {
    const std::string_view view = text.view();
    put("\"");
    std::size_t begin = 0;
    for (std::size_t at = 0; at < view.size() && !meter_.failed();) {
      const Decoded next = decode_at(view, at);
      if (const std::string escape = json_escape(next.code); !escape.empty()) {
        out_.append(text, begin, at);
        out_.append(escape, text.source_at(at));
        begin = at + next.bytes;
      }
      at += next.bytes;
    }
    out_.append(text, begin, view.size());
    put("\"");
  }

  [[nodiscard]] std::string json_escape(char32_t code) const {
    switch (code) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\f':
        return "\\f";
      case '\b':
        return "\\b";
      default:
        break;
    }
    if (code >= 0x20 && (!style_.ensure_ascii || code < 0x7f)) {
      return {};
    }
    if (code < 0x10000) {
      return utf16_escape(code);
    }
    const char32_t rest = code - 0x10000;
    return utf16_escape(0xd800 + (rest >> 10)) + utf16_escape(0xdc00 + (rest & 0x3ff));
  }

  static std::string utf16_escape(char32_t unit) {
    std::string out = "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) {
      out.push_back(kHexDigits[(unit >> shift) & 0xf]);
    }
    return out;
  }

  Meter& meter_;
  const JsonStyle& style_;
  TextBuilder out_;
};

}  // namespace

Result<TextPtr> to_json(Meter& meter, const Value& value, const JsonStyle& style) {
  JsonWriter writer(meter, style);
  QUIRE_TRY_STATUS(writer.write(value, 0));
  return std::move(writer).build();
}

}  // namespace quire::text::jinja
