#include "quire/base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/result.h"

// The one translation unit that compiles Boost.JSON.
#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/src.hpp>

namespace quire::base {

namespace json = boost::json;

struct Json::Impl {
  json::value value;
};

// Knows what the pointers of views and owners point at.
struct JsonAccess {
  static const json::value& of(JsonView view) {
    static const json::value null;
    return view.value_ == nullptr ? null : *static_cast<const json::value*>(view.value_);
  }
  static JsonView view(const json::value& value) {
    return {&value, static_cast<JsonKind>(value.kind())};
  }
  static Json own(json::value value) {
    return Json(std::make_unique<Json::Impl>(Json::Impl{std::move(value)}));
  }
  static json::value release(Json json) {
    return json.impl_ == nullptr ? json::value() : std::move(json.impl_->value);
  }
};

namespace {

static_assert(static_cast<JsonKind>(json::kind::null) == JsonKind::kNull);
static_assert(static_cast<JsonKind>(json::kind::bool_) == JsonKind::kBool);
static_assert(static_cast<JsonKind>(json::kind::int64) == JsonKind::kInt);
static_assert(static_cast<JsonKind>(json::kind::uint64) == JsonKind::kUint);
static_assert(static_cast<JsonKind>(json::kind::double_) == JsonKind::kDouble);
static_assert(static_cast<JsonKind>(json::kind::string) == JsonKind::kString);
static_assert(static_cast<JsonKind>(json::kind::array) == JsonKind::kArray);
static_assert(static_cast<JsonKind>(json::kind::object) == JsonKind::kObject);

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxKeptDepth = 60;
// How JSON spells the numbers of Python that it does not have. The last one is 0 elsewhere; no
// writer writes it.
constexpr std::string_view kInfinity = "1e77777777";
constexpr std::string_view kMinusInfinity = "-1e77777777";
constexpr std::string_view kNotANumber = "0e77777777";

// Returns the value behind a view that must be of `kind`.
const json::value& checked(JsonView view, JsonKind kind) {
  QUIRE_CHECK(view.kind() == kind, "a JSON value is asked for as another kind");
  return JsonAccess::of(view);
}

// A number that would become another one, as it is written; "" for none. `key` is the innermost
// member around it, looked for where lost numbers are refused. It is "" outside of objects.
struct Lost {
  std::string number;
  std::string key;
};

// Builds the value that is parsed, as Boost.JSON's own handler does. That handler's doubles may be
// off by their last bit; here each is the nearest to its text.
class Builder {
 public:
  using Failure = boost::system::error_code;
  using Text = json::string_view;

  // NOLINTBEGIN(readability-identifier-naming): names that json::basic_parser asks for
  static constexpr std::size_t max_object_size = json::object::max_size();
  static constexpr std::size_t max_array_size = json::array::max_size();
  static constexpr std::size_t max_key_size = json::string::max_size();
  static constexpr std::size_t max_string_size = json::string::max_size();
  // NOLINTEND(readability-identifier-naming)

  explicit Builder(bool is_strict, bool takes_constants)
      : is_strict_(is_strict), takes_constants_(takes_constants) {}

  [[nodiscard]] json::value release() { return stack_.release(); }
  // Returns the first number that no 64 bits hold: an integer beyond them, 1e400.
  [[nodiscard]] const Lost& lost() const { return lost_; }

  bool on_document_begin(Failure& /*failure*/) {
    stack_.reset();
    return true;
  }
  bool on_document_end(Failure& /*failure*/) { return true; }
  bool on_object_begin(Failure& /*failure*/) {
    if (is_strict_) {
      keys_.emplace_back();
    }
    return true;
  }
  bool on_object_end(std::size_t n, Failure& /*failure*/) {
    if (is_strict_) {
      keys_.pop_back();
    }
    stack_.push_object(n);
    return true;
  }
  bool on_array_begin(Failure& /*failure*/) { return true; }
  bool on_array_end(std::size_t n, Failure& /*failure*/) {
    stack_.push_array(n);
    return true;
  }
  bool on_key_part(Text text, std::size_t /*n*/, Failure& /*failure*/) {
    if (is_strict_) {
      key_.append(text);
    }
    stack_.push_chars(text);
    return true;
  }
  bool on_key(Text text, std::size_t /*n*/, Failure& /*failure*/) {
    if (is_strict_) {
      keys_.back() = std::exchange(key_, {}).append(text);
    }
    stack_.push_key(text);
    return true;
  }
  bool on_string_part(Text text, std::size_t /*n*/, Failure& /*failure*/) {
    stack_.push_chars(text);
    return true;
  }
  bool on_string(Text text, std::size_t /*n*/, Failure& /*failure*/) {
    stack_.push_string(text);
    return true;
  }
  bool on_number_part(Text text, Failure& /*failure*/) {
    literal_.append(text);
    return true;
  }
  bool on_int64(std::int64_t value, Text /*text*/, Failure& /*failure*/) {
    literal_.clear();
    stack_.push_int64(value);
    return true;
  }
  bool on_uint64(std::uint64_t value, Text /*text*/, Failure& /*failure*/) {
    literal_.clear();
    stack_.push_uint64(value);
    return true;
  }
  bool on_double(double value, Text text, Failure& /*failure*/) {
    literal_.append(text);
    std::from_chars(literal_.data(), literal_.data() + literal_.size(), value);
    if (takes_constants_ && literal_ == kNotANumber) {
      value = std::numeric_limits<double>::quiet_NaN();
    }
    const bool is_integer = literal_.find_first_of(".eE") == std::string::npos;
    if (lost_.number.empty() && (is_integer || !std::isfinite(value))) {
      lost_ = {.number = literal_, .key = keys_.empty() ? "" : keys_.back()};
    }
    literal_.clear();
    stack_.push_double(value);
    return true;
  }
  bool on_bool(bool value, Failure& /*failure*/) {
    stack_.push_bool(value);
    return true;
  }
  bool on_null(Failure& /*failure*/) {
    stack_.push_null();
    return true;
  }
  bool on_comment_part(Text /*text*/, Failure& /*failure*/) { return true; }
  bool on_comment(Text /*text*/, Failure& /*failure*/) { return true; }

 private:
  json::value_stack stack_;
  bool is_strict_;                 // lost numbers are refused
  bool takes_constants_;           // kNotANumber is what it stands for
  std::string literal_;            // text of the number that is being read
  std::string key_;                // key that is being read in parts
  std::vector<std::string> keys_;  // keys of the objects around the place, if strict
  Lost lost_;
};

struct Parsed {
  json::value value;
  Lost lost;
};

enum class Numbers : std::uint8_t { kStrict, kRounded, kOfPython };

Result<Parsed> parse(std::string_view text, std::string_view what, std::size_t max_depth,
                     Numbers numbers) {
  json::parse_options options;
  options.max_depth = max_depth;
  json::basic_parser<Builder> parser(options, numbers == Numbers::kStrict,
                                     numbers == Numbers::kOfPython);
  Builder::Failure failure;
  const std::size_t used = parser.write_some(false, text.data(), text.size(), failure);
  if (!failure && used < text.size()) {
    failure = json::error::extra_data;
  }
  if (failure) {
    return {ErrorCode::kInvalidArgument, str_cat(what, ": not valid JSON: ", failure.message())};
  }
  Builder& read = parser.handler();
  return Parsed{read.release(), read.lost()};
}

Status refuse_lost(const Parsed& parsed, std::string_view what) {
  const auto& [number, key] = parsed.lost;
  if (number.empty()) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          str_cat(what, ": the number ", number.substr(0, 40), number.size() > 40 ? "..." : "",
                  " is beyond 64 bits; give it as a string",
                  key.empty() ? "" : str_cat(" (key ", base::quoted(key), ")"))};
}

// Returns whether no number or word goes on at `place`.
bool is_border(std::string_view text, std::size_t place) {
  constexpr std::string_view kBorders = " \t\r\n:,[]{}";
  return place >= text.size() || kBorders.find(text[place]) != std::string_view::npos;
}

// Returns `text` with Python's NaN, Infinity and -Infinity, where they stand outside of strings,
// spelled as numbers of JSON.
std::string without_constants(std::string_view text) {
  constexpr std::pair<std::string_view, std::string_view> kConstants[] = {
      {"NaN", kNotANumber}, {"Infinity", kInfinity}, {"-Infinity", kMinusInfinity}};
  std::string out;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const bool may_begin = !in_string && (i == 0 || is_border(text, i - 1));
    const auto* const found = std::ranges::find_if(kConstants, [&](const auto& constant) {
      return may_begin && text.substr(i).starts_with(constant.first) &&
             is_border(text, i + constant.first.size());
    });
    if (found != std::end(kConstants)) {
      out += found->second;
      i += found->first.size();
      continue;
    }
    in_string = in_string != (text[i] == '"');
    // An escaped character ends nothing.
    const std::size_t taken = in_string && text[i] == '\\' ? 2 : 1;
    out += text.substr(i, taken);
    i += taken;
  }
  return out;
}

// Appends a double in the shortest form that reads as the same double: 0.0, 0.25, 1e-07. Boost.JSON
// would write 0E0.
void write_number(double number, std::string& out) {
  if (!std::isfinite(number)) {
    out += json::serialize(json::value(number));
    return;
  }
  char text[32];
  const char* const end = std::to_chars(std::begin(text), std::end(text), number).ptr;
  const std::string_view written(text, static_cast<std::size_t>(end - text));
  out += written;
  if (written.find_first_of(".e") == std::string_view::npos) {
    out += ".0";
  }
}

void write(const json::value& value, std::string& out) {
  char separator = 0;
  const auto next = [&](char begin) { out += std::exchange(separator, ',') == 0 ? begin : ','; };
  switch (value.kind()) {
    case json::kind::double_:
      write_number(value.get_double(), out);
      break;
    case json::kind::array:
      for (const json::value& item : value.get_array()) {
        next('[');
        write(item, out);
      }
      out += separator == 0 ? "[]" : "]";
      break;
    case json::kind::object:
      for (const json::key_value_pair& member : value.get_object()) {
        next('{');
        out += json::serialize(json::string_view(member.key()));
        out += ':';
        write(member.value(), out);
      }
      out += separator == 0 ? "{}" : "}";
      break;
    default:
      out += json::serialize(value);
  }
}

template <class Items>
json::array array_of(std::span<const Items> items) {
  json::array array;
  array.reserve(items.size());
  for (const Items& item : items) {
    array.emplace_back(item);
  }
  return array;
}

}  // namespace

bool JsonView::is_number() const {
  return kind_ == JsonKind::kInt || kind_ == JsonKind::kUint || kind_ == JsonKind::kDouble;
}

bool JsonView::as_bool() const { return checked(*this, JsonKind::kBool).get_bool(); }
std::int64_t JsonView::as_int() const { return checked(*this, JsonKind::kInt).get_int64(); }
std::uint64_t JsonView::as_uint() const { return checked(*this, JsonKind::kUint).get_uint64(); }

double JsonView::as_double() const {
  QUIRE_CHECK(is_number(), "a JSON value is asked for as a number");
  return JsonAccess::of(*this).to_number<double>();
}

std::string_view JsonView::as_string() const {
  return checked(*this, JsonKind::kString).get_string();
}

template <std::integral T>
std::optional<T> JsonView::exact() const {
  boost::system::error_code failure;
  const T number = JsonAccess::of(*this).to_number<T>(failure);
  return failure ? std::nullopt : std::optional(number);
}
template std::optional<std::int32_t> JsonView::exact() const;
template std::optional<std::int64_t> JsonView::exact() const;
template std::optional<std::uint32_t> JsonView::exact() const;
template std::optional<std::uint64_t> JsonView::exact() const;

std::size_t JsonView::size() const {
  const json::value& value = JsonAccess::of(*this);
  return is_array() ? value.get_array().size() : is_object() ? value.get_object().size() : 0;
}

JsonView JsonView::operator[](std::size_t index) const {
  const json::array& array = checked(*this, JsonKind::kArray).get_array();
  QUIRE_CHECK(index < array.size(), "index beyond a JSON array");
  return JsonAccess::view(array[index]);
}

JsonMember JsonView::member(std::size_t index) const {
  const json::object& object = checked(*this, JsonKind::kObject).get_object();
  QUIRE_CHECK(index < object.size(), "index beyond a JSON object");
  const json::key_value_pair& pair = object.begin()[index];
  return {.key = pair.key(), .value = JsonAccess::view(pair.value())};
}

JsonRange<JsonView> JsonView::elements() const { return {*this, is_array() ? size() : 0}; }
JsonRange<JsonMember> JsonView::members() const { return {*this, is_object() ? size() : 0}; }

bool JsonView::contains(std::string_view key) const {
  return is_object() && JsonAccess::of(*this).get_object().contains(key);
}

JsonView JsonView::find(std::string_view key) const {
  const json::value* value =
      is_object() ? JsonAccess::of(*this).get_object().if_contains(key) : nullptr;
  return value == nullptr ? JsonView() : JsonAccess::view(*value);
}

Json::Json() = default;
Json::Json(Tag /*tag*/, bool value) : Json(JsonAccess::own(value)) {}
Json::Json(Tag /*tag*/, std::int64_t value) : Json(JsonAccess::own(value)) {}
Json::Json(Tag /*tag*/, std::uint64_t value) : Json(JsonAccess::own(value)) {}
Json::Json(Tag /*tag*/, double value) : Json(JsonAccess::own(value)) {}
Json::Json(Tag /*tag*/, std::string_view text) : Json(JsonAccess::own(json::string(text))) {}
Json::Json(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json Json::object() { return JsonAccess::own(json::object()); }
Json Json::empty_array() { return JsonAccess::own(json::array()); }

Json Json::object(std::initializer_list<JsonField> fields) {
  Json out = object();
  for (const JsonField& field : fields) {
    out.set(field.key, std::move(field.value));
  }
  return out;
}

Json Json::list(std::span<const std::int32_t> numbers) {
  return JsonAccess::own(array_of(numbers));
}
Json Json::list(std::span<const std::string> texts) { return JsonAccess::own(array_of(texts)); }
Json Json::copy(JsonView value) { return JsonAccess::own(JsonAccess::of(value)); }

void Json::set(std::string_view key, Json value) {
  QUIRE_CHECK(view().is_object(), "a member is set in what is no JSON object");
  impl_->value.get_object().insert_or_assign(key, JsonAccess::release(std::move(value)));
}

bool Json::add(std::string_view key, Json value) {
  QUIRE_CHECK(view().is_object(), "a member is added to what is no JSON object");
  return impl_->value.get_object().emplace(key, JsonAccess::release(std::move(value))).second;
}

void Json::push(Json value) {
  QUIRE_CHECK(view().is_array(), "an element is added to what is no JSON array");
  impl_->value.get_array().push_back(JsonAccess::release(std::move(value)));
}

JsonView Json::view() const {
  return impl_ == nullptr ? JsonView() : JsonAccess::view(impl_->value);
}

bool operator==(JsonView a, JsonView b) { return JsonAccess::of(a) == JsonAccess::of(b); }

bool operator==(JsonView value, std::string_view text) {
  return value.is_string() && value.as_string() == text;
}

std::string write_json(JsonView value) {
  std::string out;
  write(JsonAccess::of(value), out);
  return out;
}

Result<Json> parse_json(std::string_view text, std::string_view what) {
  QUIRE_TRY(Parsed parsed, parse(text, what, kMaxDepth, Numbers::kStrict));
  QUIRE_TRY_STATUS(refuse_lost(parsed, what));
  return JsonAccess::own(std::move(parsed.value));
}

Result<Json> parse_model_json(std::string_view text, std::string_view what) {
  auto strict = parse(text, what, kMaxDepth, Numbers::kRounded);  // spares most files a copy
  if (strict.ok()) {
    return JsonAccess::own(std::move(strict).value().value);
  }
  QUIRE_TRY(Parsed taken, parse(without_constants(text), what, kMaxDepth, Numbers::kOfPython));
  return JsonAccess::own(std::move(taken.value));
}

Result<Json> parse_model_object(std::string_view text, std::string_view what) {
  QUIRE_TRY(Json value, parse_model_json(text, what));
  if (!value.view().is_object()) {
    return {ErrorCode::kInvalidArgument, str_cat(what, ": must hold a JSON object")};
  }
  return value;
}

Result<Json> parse_kept_object(std::string_view text, std::string_view what) {
  QUIRE_TRY(Parsed parsed, parse(text, what, kMaxKeptDepth, Numbers::kStrict));
  if (!parsed.value.is_object()) {
    return {ErrorCode::kInvalidArgument, str_cat(what, " must be an object")};
  }
  QUIRE_TRY_STATUS(refuse_lost(parsed, what));
  return JsonAccess::own(std::move(parsed.value));
}

}  // namespace quire::base
