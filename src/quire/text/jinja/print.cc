#include "quire/text/jinja/print.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/value.h"
#include "quire/text/render_meter.h"
#include "quire/text/sourced_text.h"
#include "quire/text/unicode.h"

namespace quire::text::jinja {
namespace {

Status append_repr(Meter& meter, const Value& value, TextBuilder& out);

std::string hex_digits(char32_t code, int digits) {
  std::string out;
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) {
    out.push_back("0123456789abcdef"[(code >> shift) & 0xf]);
  }
  return out;
}

// Returns the escape of one of the characters of `plain` by the letter below it, or nothing.
std::string letter_escape(char32_t code, std::string_view plain, std::string_view letters) {
  const std::size_t at = code < 0x80 ? plain.find(static_cast<char>(code)) : plain.npos;
  return at == plain.npos ? std::string() : std::string{'\\', letters[at]};
}

std::string repr_escape(char32_t code, char quote) {
  if (code == static_cast<char32_t>(quote)) {
    return std::string{'\\', quote};
  }
  if (is_python_printable(code) || code == '\n' || code == '\r' || code == '\t') {
    return letter_escape(code, "\n\r\t\\", "nrt\\");
  }
  return code < 0x100     ? "\\x" + hex_digits(code, 2)
         : code < 0x10000 ? "\\u" + hex_digits(code, 4)
                          : "\\U" + hex_digits(code, 8);
}

void append_string_repr(Meter& meter, const Text& text, TextBuilder& out) {
  const std::string_view view = text.view();
  const bool double_quotes = view.find('\'') != view.npos && view.find('"') == view.npos;
  const char quote = double_quotes ? '"' : '\'';
  out.append(std::string_view(&quote, 1), kFromTemplate);
  append_escaped(meter, text, out, [&](char32_t code) { return repr_escape(code, quote); });
  out.append(std::string_view(&quote, 1), kFromTemplate);
}

Status append_list(Meter& meter, const Sequence& list, TextBuilder& out) {
  if (list.kind > SequenceKind::kTuple) {
    return unsupported("printing a range, view or generator without |list");
  }
  const bool tuple = list.kind == SequenceKind::kTuple;
  out.append(tuple ? "(" : "[", kFromTemplate);
  for (std::size_t i = 0; i < list.items.size() && !meter.failed(); ++i) {
    out.append(i == 0 ? "" : ", ", kFromTemplate);
    QUIRE_TRY_STATUS(append_repr(meter, list.items[i], out));
  }
  out.append(!tuple ? "]" : list.items.size() == 1 ? ",)" : ")", kFromTemplate);
  return {};
}

Status append_dict(Meter& meter, const Dict& dict, TextBuilder& out) {
  out.append("{", kFromTemplate);
  for (std::size_t i = 0; i < dict.items.size() && !meter.failed(); ++i) {
    out.append(i == 0 ? "" : ", ", kFromTemplate);
    QUIRE_TRY_STATUS(append_repr(meter, dict.items[i].first, out));
    out.append(": ", kFromTemplate);
    QUIRE_TRY_STATUS(append_repr(meter, dict.items[i].second, out));
  }
  out.append("}", kFromTemplate);
  return {};
}

// Returns repr of a float: the shortest digits that read back as the same number.
std::string float_repr(double value) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  }
  const double magnitude = std::fabs(value);
  const bool fixed = value == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  std::array<char, 64> buffer;
  const auto* end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                  fixed ? std::chars_format::fixed : std::chars_format::scientific)
                        .ptr;
  std::string out(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  return fixed && out.find('.') == std::string::npos ? out + ".0" : out;
}

Status append_repr(Meter& meter, const Value& value, TextBuilder& out) {
  if (const auto* text = value.text()) {
    if (value.is_markup()) {
      return unsupported("printing a list that holds a string made by |safe");
    }
    append_string_repr(meter, *text, out);
    return {};
  }
  if (value.is_undefined()) {
    out.append("Undefined", kFromTemplate);
    return {};
  }
  return append_str(meter, value, out);
}

class JsonWriter {
 public:
  JsonWriter(Meter& meter, const JsonStyle& style) : meter_(meter), style_(style), out_(&meter) {}

  Status write(const Value& value, int level) {
    if (const auto* text = value.text()) {
      write_string(*text);
      return {};
    }
    const auto* list = value.sequence();
    if (list != nullptr && list->kind <= SequenceKind::kTuple) {
      return write_list(*list, level);
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
      return std::isnan(*real)   ? std::string("NaN")
             : std::isinf(*real) ? std::string(*real < 0 ? "-Infinity" : "Infinity")
                                 : float_repr(*real);
    }
    return invalid("object of type ", type_name(value), " has no form in JSON");
  }

  void put(std::string_view text) { out_.append(text, kFromTemplate); }

  void new_line(int level) {
    put(style_.indent ? "\n" : "");
    for (int i = 0; style_.indent && i < level && !meter_.failed(); ++i) {
      put(*style_.indent);
    }
  }

  // Writes `count` items between brackets by write_item(index).
  template <class WriteItem>
  Status write_items(std::string_view brackets, std::size_t count, int level,
                     WriteItem write_item) {
    put(brackets.substr(0, 1));
    for (std::size_t i = 0; i < count && !meter_.failed(); ++i) {
      put(i == 0 ? "" : style_.item_separator);
      new_line(level + 1);
      QUIRE_TRY_STATUS(write_item(i));
    }
    if (count > 0) {
      new_line(level);
    }
    put(brackets.substr(1));
    return {};
  }

  Status write_list(const Sequence& list, int level) {
    return write_items("[]", list.items.size(), level,
                       [&](std::size_t i) { return write(list.items[i], level + 1); });
  }

  Status write_dict(const Dict& dict, int level) {
    std::vector<Keyed> items;
    items.reserve(dict.items.size());
    for (const auto& [key, value] : dict.items) {
      items.push_back({key, value});
    }
    if (style_.sort_keys) {
      QUIRE_TRY_STATUS(sort_keyed(meter_, items, false));
    }
    return write_items("{}", items.size(), level, [&](std::size_t i) -> Status {
      QUIRE_TRY_STATUS(write_key(items[i].key));
      put(style_.key_separator);
      return write(items[i].item, level + 1);
    });
  }

  // Writes a key. Keys that are no strings take the quotes of their JSON form.
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

  void write_string(const Text& text) {
    put("\"");
    append_escaped(meter_, text, out_, [&](char32_t code) { return json_escape(code); });
    put("\"");
  }

  [[nodiscard]] std::string json_escape(char32_t code) const {
    std::string escape = letter_escape(code, "\"\\\n\r\t\f\b", "\"\\nrtfb");
    if (!escape.empty() || (code >= 0x20 && (!style_.ensure_ascii || code < 0x7f))) {
      return escape;
    }
    if (code < 0x10000) {
      return "\\u" + hex_digits(code, 4);
    }
    const char32_t rest = code - 0x10000;
    return "\\u" + hex_digits(0xd800 + (rest >> 10), 4) + "\\u" +
           hex_digits(0xdc00 + (rest & 0x3ff), 4);
  }

  Meter& meter_;
  const JsonStyle& style_;
  TextBuilder out_;
};

}  // namespace

Status append_str(Meter& meter, const Value& value, TextBuilder& out) {
  if (const auto* text = value.text()) {
    out.append(*text);
  } else if (value.is_none()) {
    out.append("None", value.source());
  } else if (const auto* boolean = value.get<bool>()) {
    out.append(*boolean ? "True" : "False", value.source());
  } else if (const auto* integer = value.get<std::int64_t>()) {
    out.append(std::to_string(*integer), value.source());
  } else if (const auto* real = value.get<double>()) {
    out.append(float_repr(*real), value.source());
  } else if (const auto* list = value.sequence()) {
    return append_list(meter, *list, out);
  } else if (const auto* dict = value.dict()) {
    return append_dict(meter, *dict, out);
  } else if (const auto* callable = value.get<std::shared_ptr<const Callable>>()) {
    return unsupported("printing ", (*callable)->description, " without calling it");
  } else if (!value.is_undefined()) {
    return unsupported("printing a ", type_name(value));
  }
  return {};
}

Result<TextPtr> to_text(Meter& meter, const Value& value) {
  if (const auto* string = value.get<String>()) {
    return string->text;
  }
  TextBuilder out(&meter);
  QUIRE_TRY_STATUS(append_str(meter, value, out));
  return std::move(out).build();
}

Result<TextPtr> to_json(Meter& meter, const Value& value, const JsonStyle& style) {
  JsonWriter writer(meter, style);
  QUIRE_TRY_STATUS(writer.write(value, 0));
  return std::move(writer).build();
}

}  // namespace quire::text::jinja
