#include "quire/text/jinja/format.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "quire/result.h"
#include "quire/text/jinja/access.h"
#include "quire/text/jinja/compare.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/format_spec.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/print.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

Result<TextPtr> repr_text(Meter& meter, const Value& value) {
  TextBuilder out(&meter);
  QUIRE_TRY_STATUS(append_repr(meter, value, out));
  return std::move(out).build();
}

class PercentFormatter {
 public:
  PercentFormatter(Meter& meter, const Text& format, const Value& arguments)
      : meter_(meter), format_(format), view_(format.view()), arguments_(arguments), out_(&meter) {
    if (const auto* sequence = arguments.sequence();
        sequence != nullptr && sequence->kind == SequenceKind::kTuple) {
      tuple_ = sequence;
    }
  }

  Result<TextPtr> run() {
    while (at_ < view_.size() && !meter_.failed()) {
      const std::size_t percent = std::min(view_.find('%', at_), view_.size());
      out_.append(format_, at_, percent);
      at_ = percent + 1;
      if (percent == view_.size()) {
        break;
      }
      QUIRE_TRY_STATUS(conversion());
    }
    const bool all_used = tuple_ != nullptr ? used_ == tuple_->items.size() : used_ == 1;
    if (!all_used && arguments_.dict() == nullptr) {
      return invalid("not all arguments were converted by the format");
    }
    return std::move(out_).build();
  }

 private:
  [[nodiscard]] char peek() const { return at_ < view_.size() ? view_[at_] : '\0'; }

  Status conversion() {
    std::optional<Value> named;
    if (peek() == '(') {
      QUIRE_TRY(named, mapping_value());
    }
    QUIRE_TRY(const auto spec, flags_and_sizes());
    const char type = peek();
    ++at_;
    if (type == '%') {
      out_.append("%", kFromTemplate);
      return {};
    }
    if (named) {
      return convert(*named, type, spec);
    }
    QUIRE_TRY(const auto* value, next_argument());
    return convert(*value, type, spec);
  }

  Result<std::optional<Value>> mapping_value() {
    const std::size_t close = view_.find(')', at_);
    if (arguments_.dict() == nullptr || close == std::string_view::npos) {
      return invalid("format with a name in parentheses requires a mapping");
    }
    const std::string_view name = view_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    const auto* found = find(meter_, *arguments_.dict(), name);
    if (found == nullptr) {
      return invalid("format names '", name, "', which is not in the mapping");
    }
    return std::optional<Value>(*found);
  }

  Result<FormatSpec> flags_and_sizes() {
    FormatSpec spec;
    for (; std::string_view("#0- +").find(peek()) != std::string_view::npos && at_ < view_.size();
         ++at_) {
      const char flag = peek();
      spec.alternate = spec.alternate || flag == '#';
      if (flag == '-') {
        spec.align = '<';
        spec.fill = " ";
      } else if (flag == '0' && spec.align != '<') {
        spec.align = '=';
        spec.fill = "0";
      } else if (flag == '+' || (flag == ' ' && spec.sign != '+')) {
        spec.sign = flag;
      }
    }
    QUIRE_TRY(spec.width, parse_digits(view_, at_));
    if (peek() == '.') {
      ++at_;
      QUIRE_TRY(spec.precision, parse_digits(view_, at_));
    }
    if (peek() == '*') {
      return unsupported("'*' as a width is not supported in formats");
    }
    return spec;
  }

  Result<const Value*> next_argument() {
    if (tuple_ == nullptr) {
      if (used_++ > 0) {
        return invalid("not enough arguments for the format");
      }
      return &arguments_;
    }
    if (used_ >= tuple_->items.size()) {
      return invalid("not enough arguments for the format");
    }
    return &tuple_->items[used_++];
  }

  Status convert(const Value& value, char type, FormatSpec spec) {
    if (type == 's' || type == 'r') {
      QUIRE_TRY(const auto text, type == 's' ? to_text(meter_, value) : repr_text(meter_, value));
      spec.fill = " ";
      spec.align = spec.align == '<' ? '<' : '>';
      append_padded(*text, spec, out_);
      return {};
    }
    constexpr std::string_view kNumbers = "diuxXoeEfFgG";
    if (kNumbers.find(type) == std::string_view::npos || type == '\0') {
      return unsupported("the conversion '%", type, "' is not supported in formats");
    }
    const auto number = value.as_number();
    if (!number) {
      return invalid("a number is required by '%", type, "', got ", type_name(value));
    }
    spec.type = type == 'i' || type == 'u' ? 'd' : type;
    const auto* real = value.get<double>();
    const bool integral = std::string_view("diuxXo").find(type) != std::string_view::npos;
    if (real == nullptr && !integral) {
      return append_number(Value(*number, value.source()), spec, out_);
    }
    if (real != nullptr && integral) {
      if (type == 'x' || type == 'X' || type == 'o' || !(std::fabs(*real) < 9.2e18)) {
        return invalid("an integer is required by '%", type, "'");
      }
      return append_number(Value(static_cast<std::int64_t>(*real), value.source()), spec, out_);
    }
    return append_number(value, spec, out_);
  }

  Meter& meter_;
  const Text& format_;
  std::string_view view_;
  const Value& arguments_;
  const Sequence* tuple_ = nullptr;
  std::size_t used_ = 0;  // arguments without a name
  std::size_t at_ = 0;
  TextBuilder out_;
};

class BraceFormatter {
 public:
  BraceFormatter(Meter& meter, const Text& format, const Arguments& arguments)
      : meter_(meter), format_(format), view_(format.view()), arguments_(arguments), out_(&meter) {}

  Result<TextPtr> run() {
    std::size_t at = 0;
    while (at < view_.size() && !meter_.failed()) {
      const std::size_t brace = std::min(view_.find_first_of("{}", at), view_.size());
      out_.append(format_, at, brace);
      if (brace == view_.size()) {
        break;
      }
      if (brace + 1 < view_.size() && view_[brace + 1] == view_[brace]) {
        out_.append(format_, brace, brace + 1);
        at = brace + 2;
        continue;
      }
      const std::size_t close = view_.find('}', brace);
      if (view_[brace] == '}' || close == std::string_view::npos) {
        return invalid("single '", view_[brace], "' in a format");
      }
      QUIRE_TRY_STATUS(field(view_.substr(brace + 1, close - brace - 1)));
      at = close + 1;
    }
    return std::move(out_).build();
  }

 private:
  // name[!conversion][:specification]
  Status field(std::string_view text) {
    if (text.find('{') != std::string_view::npos) {
      return unsupported("fields inside a field are not supported in formats");
    }
    const std::size_t colon = std::min(text.find(':'), text.size());
    std::string_view name = text.substr(0, colon);
    const std::string_view specification =
        colon < text.size() ? text.substr(colon + 1) : std::string_view();
    char conversion = '\0';
    if (const std::size_t mark = name.find('!'); mark != std::string_view::npos) {
      if (mark + 2 != name.size()) {
        return invalid("bad conversion in the format field '", text, "'");
      }
      conversion = name.back();
      name = name.substr(0, mark);
    }
    QUIRE_TRY(auto value, look_up(name));
    if (conversion != '\0') {
      if (conversion != 's' && conversion != 'r') {
        return unsupported("the conversion '!", conversion, "' is not supported in formats");
      }
      QUIRE_TRY(auto shown, conversion == 's' ? to_text(meter_, value) : repr_text(meter_, value));
      value = Value::string(std::move(shown));
    }
    return put(value, specification);
  }

  Status put(const Value& value, std::string_view specification) {
    if (specification.empty()) {
      return append_str(meter_, value, out_);
    }
    QUIRE_TRY(auto spec, parse_format_spec(specification));
    if (const auto* text = value.text()) {
      if ((spec.type != 0 && spec.type != 's') || spec.align == '=' || spec.grouping != 0) {
        return invalid("format '", specification, "' does not fit a string");
      }
      append_padded(*text, spec, out_);
      return {};
    }
    if (!value.as_number()) {
      return invalid("format '", specification, "' does not fit ", type_name(value));
    }
    if (value.as_integer() && spec.precision >= 0 &&
        std::string_view("bdoxXn").find(spec.type) != std::string_view::npos) {
      return invalid("precision is not allowed in an integer's format");
    }
    return append_number(value, spec, out_);
  }

  // first(.attribute | [item])*, where `first` is a number, a name, or nothing for the next one.
  Result<Value> look_up(std::string_view name) {
    std::size_t at = std::min(name.find_first_of(".["), name.size());
    QUIRE_TRY(auto value, first(name.substr(0, at)));
    while (at < name.size()) {
      const bool item = name[at] == '[';
      const std::size_t end =
          std::min(item ? name.find(']', at) : name.find_first_of(".[", at + 1), name.size());
      const std::string_view part = name.substr(at + 1, end - at - 1);
      if (part.empty() || (item && end == name.size())) {
        return invalid("bad format field '", name, "'");
      }
      QUIRE_TRY(value,
                item ? get_item(meter_, value, key(part)) : get_attribute(meter_, value, part));
      at = item ? end + 1 : end;
    }
    return value;
  }

  Value key(std::string_view part) {
    std::size_t end = 0;
    const auto number = parse_digits(part, end);
    if (end == part.size() && number.ok()) {
      return Value::integer(*number);
    }
    return Value::string(make_text(&meter_, part, kFromTemplate));
  }

  Result<Value> first(std::string_view name) {
    std::size_t end = 0;
    QUIRE_TRY(auto index, parse_digits(name, end));
    if (end < name.size()) {
      for (const auto& [argument, value] : arguments_.named) {
        if (argument == name) {
          return value;
        }
      }
      return invalid("format names '", name, "', which is not an argument");
    }
    const bool automatic = name.empty();
    if (numbering_ && *numbering_ != automatic) {
      return invalid("cannot mix automatic and given field numbers in a format");
    }
    numbering_ = automatic;
    if (automatic) {
      index = next_++;
    }
    if (static_cast<std::size_t>(index) >= arguments_.positional.size()) {
      return invalid("format wants argument ", index, ", ", arguments_.positional.size(), " given");
    }
    return arguments_.positional[static_cast<std::size_t>(index)];
  }

  Meter& meter_;
  const Text& format_;
  std::string_view view_;
  const Arguments& arguments_;
  std::optional<bool> numbering_;  // automatic or not, once known
  std::int64_t next_ = 0;
  TextBuilder out_;
};

Status refuse_markup(const String& format) {
  if (format.markup) {
    return unsupported("formatting a string made by |safe or |escape is not supported");
  }
  return {};
}

}  // namespace

Result<Value> format_percent(Meter& meter, const String& format, const Value& arguments) {
  QUIRE_TRY_STATUS(refuse_markup(format));
  QUIRE_TRY(auto text, PercentFormatter(meter, *format.text, arguments).run());
  return Value::string(std::move(text));
}

Result<Value> format_braces(Meter& meter, const String& format, const Arguments& arguments) {
  QUIRE_TRY_STATUS(refuse_markup(format));
  QUIRE_TRY(auto text, BraceFormatter(meter, *format.text, arguments).run());
  return Value::string(std::move(text));
}

}  // namespace quire::text::jinja
