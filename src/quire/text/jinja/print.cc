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

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/loop.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/unicode.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

// Two, four or eight digits after \x, \u or \U.
std::string hex_escape(char32_t code) {
  const int digits = code < 0x100 ? 2 : (code < 0x10000 ? 4 : 8);
  std::string out = digits == 2 ? "\\x" : (digits == 4 ? "\\u" : "\\U");
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) {
    out.push_back(kHexDigits[(code >> shift) & 0xf]);
  }
  return out;
}

// How repr writes `code` between `quote`s; empty when as it is.
std::string repr_escape(char32_t code, char quote) {
  switch (code) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\\':
      return "\\\\";
    default:
      break;
  }
  if (code == static_cast<char32_t>(quote)) {
    return std::string{'\\', quote};
  }
  return is_printable(code) ? std::string() : hex_escape(code);
}

void append_string_repr(const Text& text, TextBuilder& out) {
  const std::string_view view = text.view();
  const bool double_quotes =
      view.find('\'') != std::string_view::npos && view.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  const std::string_view quotes(&quote, 1);
  out.append(quotes, kFromTemplate);
  std::size_t begin = 0;
  for (std::size_t at = 0; at < view.size() && !out.meter()->failed();) {
    const Decoded next = decode_at(view, at);
    if (const std::string escape = repr_escape(next.code, quote); !escape.empty()) {
      out.append(text, begin, at);
      out.append(escape, text.source_at(at));
      begin = at + next.bytes;
    }
    at += next.bytes;
  }
  out.append(text, begin, view.size());
  out.append(quotes, kFromTemplate);
}

Status append_items(Meter& meter, const Sequence& sequence, TextBuilder& out) {
  for (std::size_t i = 0; i < sequence.items.size() && !meter.failed(); ++i) {
    out.append(i == 0 ? "" : ", ", kFromTemplate);
    QUIRE_TRY_STATUS(append_repr(meter, sequence.items[i], out));
  }
  return {};
}

Status append_sequence(Meter& meter, const Sequence& sequence, TextBuilder& out) {
  std::string open = "[";
  std::string close = "]";
  switch (sequence.kind) {
    case SequenceKind::kList:
      break;
    case SequenceKind::kTuple:
      open = "(";
      close = sequence.items.size() == 1 ? ",)" : ")";
      break;
    case SequenceKind::kKeys:
    case SequenceKind::kValues:
    case SequenceKind::kItems: {
      constexpr std::array<std::string_view, 3> kNames = {"dict_keys", "dict_values", "dict_items"};
      const auto index =
          static_cast<std::size_t>(sequence.kind) - static_cast<std::size_t>(SequenceKind::kKeys);
      open = base::str_cat(kNames[index], "([");
      close = "])";
      break;
    }
    case SequenceKind::kRange:
    case SequenceKind::kGenerator:
      return unsupported("printing a range or generator is not supported; use |list");
  }
  out.append(open, kFromTemplate);
  QUIRE_TRY_STATUS(append_items(meter, sequence, out));
  out.append(close, kFromTemplate);
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

Status append_namespace(Meter& meter, const Namespace& space, TextBuilder& out) {
  out.append("<Namespace {", kFromTemplate);
  for (std::size_t i = 0; i < space.attributes.size() && !meter.failed(); ++i) {
    out.append(base::str_cat(i == 0 ? "'" : ", '", space.attributes[i].first, "': "),
               kFromTemplate);
    QUIRE_TRY_STATUS(append_repr(meter, space.attributes[i].second, out));
  }
  out.append("}>", kFromTemplate);
  return {};
}

Status append_container(Meter& meter, const Value& value, TextBuilder& out) {
  if (const auto* sequence = value.sequence()) {
    return append_sequence(meter, *sequence, out);
  }
  if (const auto* dict = value.dict()) {
    return append_dict(meter, *dict, out);
  }
  if (const auto* space = value.get<std::shared_ptr<Namespace>>()) {
    return append_namespace(meter, **space, out);
  }
  if (const auto* loop = value.get<std::shared_ptr<LoopContext>>()) {
    QUIRE_TRY(const auto printed, (*loop)->printed());
    out.append(printed, kFromTemplate);
    return {};
  }
  const auto& callable = **value.get<std::shared_ptr<const Callable>>();
  if (callable.printed.empty()) {
    return unsupported("printing ", callable.description,
                       " is not supported; was it to be called?");
  }
  out.append(callable.printed, kFromTemplate);
  return {};
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value < 0 ? "-inf" : "inf";
  }
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific)
                       .ptr;
  const std::string_view shown(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const std::size_t mark = shown.find('e');
  const std::size_t digits = mark + (shown[mark + 1] == '+' ? 2 : 1);
  int exponent = 0;
  std::from_chars(shown.data() + digits, shown.data() + shown.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    return std::string(shown);
  }
  const auto fixed =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed)
          .ptr;
  std::string out(buffer.data(), fixed);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

Status append_repr(Meter& meter, const Value& value, TextBuilder& out) {
  if (const auto* text = value.text()) {
    if (value.get<String>()->markup) {
      out.append("Markup(", kFromTemplate);
    }
    append_string_repr(*text, out);
    if (value.get<String>()->markup) {
      out.append(")", kFromTemplate);
    }
    return {};
  }
  if (value.is_undefined()) {
    out.append("Undefined", kFromTemplate);
    return {};
  }
  return append_str(meter, value, out);
}

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
  } else if (!value.is_undefined()) {
    if (!meter.enter()) {
      return meter.error();
    }
    const Status status = append_container(meter, value, out);
    meter.leave();
    return status;
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

}  // namespace quire::text::jinja
