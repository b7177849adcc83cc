// JSON for files and requests from strangers, and for what the library writes. A Json owns a value,
// a JsonView looks at one; what parses and writes them stays behind json.cc.
//
// Thread rule: values; any number of threads may read one Json.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "quire/result.h"

namespace quire::base {

enum class JsonKind : std::uint8_t {
  kNull,
  kBool,
  kInt,     // an integer of 64 bits with a sign
  kUint,    // in parsed text, an integer beyond those and within 64 bits without a sign
  kDouble,  // any other number, and one with a point or an exponent
  kString,
  kArray,
  kObject,
};

class Json;
struct JsonAccess;
struct JsonField;
struct JsonMember;
template <class Item>
class JsonRange;

// Looks at a value inside of a Json, which must outlive it and stay as it is. A default one is
// null. Cost: two words; copying one allocates nothing.
class JsonView {
 public:
  JsonView() = default;

  [[nodiscard]] JsonKind kind() const { return kind_; }
  [[nodiscard]] bool is_null() const { return kind_ == JsonKind::kNull; }
  [[nodiscard]] bool is_bool() const { return kind_ == JsonKind::kBool; }
  [[nodiscard]] bool is_int() const { return kind_ == JsonKind::kInt; }
  [[nodiscard]] bool is_number() const;
  [[nodiscard]] bool is_string() const { return kind_ == JsonKind::kString; }
  [[nodiscard]] bool is_array() const { return kind_ == JsonKind::kArray; }
  [[nodiscard]] bool is_object() const { return kind_ == JsonKind::kObject; }

  // Return the value, which must be of that kind; as_double takes any number. Strings lie in the
  // Json.
  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] std::int64_t as_int() const;
  [[nodiscard]] std::uint64_t as_uint() const;
  [[nodiscard]] double as_double() const;
  [[nodiscard]] std::string_view as_string() const;
  // Returns the number that T holds exactly, however it is written (1, 1.0); else nullopt. T is an
  // integer of 32 or 64 bits.
  template <std::integral T>
  [[nodiscard]] std::optional<T> exact() const;

  // Returns the number of elements or members; 0 for any other value.
  [[nodiscard]] std::size_t size() const;
  // Returns an element of an array. `index` is below size().
  [[nodiscard]] JsonView operator[](std::size_t index) const;
  // Returns a member of an object. `index` is below size().
  [[nodiscard]] JsonMember member(std::size_t index) const;
  // Ranges in the order of the text, empty for any other value.
  [[nodiscard]] JsonRange<JsonView> elements() const;
  [[nodiscard]] JsonRange<JsonMember> members() const;
  // Returns whether an object has a member `key`, which may be null.
  [[nodiscard]] bool contains(std::string_view key) const;
  // Returns member `key`; null when it is absent or this is no object.
  [[nodiscard]] JsonView find(std::string_view key) const;

 private:
  friend struct JsonAccess;
  JsonView(const void* value, JsonKind kind) : value_(value), kind_(kind) {}

  const void* value_ = nullptr;
  JsonKind kind_ = JsonKind::kNull;
};

// A member of an object. The key lies in the Json.
struct JsonMember {
  std::string_view key;
  JsonView value;
};

// The elements (JsonView) or members (JsonMember) of a value.
template <class Item>
class JsonRange {
 public:
  class Iterator {
   public:
    using value_type = Item;
    using reference = Item;
    using pointer = void;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::input_iterator_tag;

    Iterator() = default;
    Iterator(JsonView of, std::size_t index) : of_(of), index_(index) {}
    Item operator*() const {
      if constexpr (std::is_same_v<Item, JsonView>) {
        return of_[index_];
      } else {
        return of_.member(index_);
      }
    }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    Iterator operator++(int) { return Iterator(of_, index_++); }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.index_ == b.index_; }

   private:
    JsonView of_;
    std::size_t index_ = 0;
  };

  JsonRange(JsonView of, std::size_t size) : of_(of), size_(size) {}
  [[nodiscard]] Iterator begin() const { return Iterator(of_, 0); }
  [[nodiscard]] Iterator end() const { return Iterator(of_, size_); }

 private:
  JsonView of_;
  std::size_t size_;
};

// Owns a JSON value, parsed or built. Members keep the order in which they came. Move only; a moved
// one is null.
class Json {
 public:
  // NOLINTBEGIN(google-explicit-constructor): values of C++ stand for their JSON
  Json();  // null
  Json(std::nullptr_t) : Json() {}
  Json(std::same_as<bool> auto value) : Json(Tag{}, value) {}
  Json(std::signed_integral auto value) : Json(Tag{}, std::int64_t{value}) {}
  Json(std::unsigned_integral auto value)
    requires(!std::same_as<decltype(value), bool>)
      : Json(Tag{}, std::uint64_t{value}) {}
  Json(std::floating_point auto value) : Json(Tag{}, double{value}) {}
  template <class T>
    requires std::convertible_to<const T&, std::string_view>
  Json(const T& text) : Json(Tag{}, std::string_view(text)) {}
  // NOLINTEND(google-explicit-constructor)
  Json(Json&& other) noexcept;
  Json& operator=(Json&& other) noexcept;
  ~Json();

  // Builds an object: Json::object({{"name", name}, {"size", 3}}). Of equal keys the last counts.
  [[nodiscard]] static Json object();
  [[nodiscard]] static Json object(std::initializer_list<JsonField> fields);
  // Builds an array: Json::array("a", 3, std::move(other)).
  template <class... Items>
  [[nodiscard]] static Json array(Items&&... items);
  // Builds an array of many values of one type.
  [[nodiscard]] static Json list(std::span<const std::int32_t> numbers);
  [[nodiscard]] static Json list(std::span<const std::string> texts);
  [[nodiscard]] static Json copy(JsonView value);

  // Sets member `key` of an object; one that is there keeps its place.
  void set(std::string_view key, Json value);
  // Adds member `key` to an object unless it is there; returns whether it was not.
  bool add(std::string_view key, Json value);
  // Appends to an array.
  void push(Json value);

  [[nodiscard]] JsonView view() const;
  operator JsonView() const { return view(); }  // NOLINT: a Json is passed where one is looked at

 private:
  friend struct JsonAccess;
  struct Impl;
  struct Tag {};
  Json(Tag tag, bool value);
  Json(Tag tag, std::int64_t value);
  Json(Tag tag, std::uint64_t value);
  Json(Tag tag, double value);
  Json(Tag tag, std::string_view text);
  explicit Json(std::unique_ptr<Impl> impl);
  [[nodiscard]] static Json empty_array();

  std::unique_ptr<Impl> impl_;  // nullptr: null
};

// A member of an object that is built.
struct JsonField {
  std::string_view key;
  mutable Json value;  // is moved into the object, which an initializer_list would forbid
};

template <class... Items>
Json Json::array(Items&&... items) {
  Json out = empty_array();
  (out.push(Json(std::forward<Items>(items))), ...);
  return out;
}

// Returns whether two values are the same; the order of members does not count.
[[nodiscard]] bool operator==(JsonView a, JsonView b);
// Returns whether `value` is this string.
[[nodiscard]] bool operator==(JsonView value, std::string_view text);

// Returns the value as text without blanks.
[[nodiscard]] std::string write_json(JsonView value);

// Parses UTF-8 `text`; `what` names it in errors ("messages"). kInvalidArgument for bad syntax,
// depth over 64, trailing bytes, or a number that would become another one (an integer beyond 64
// bits, 1e400), which the message quotes.
[[nodiscard]] Result<Json> parse_json(std::string_view text, std::string_view what);

// Parses a file of a model, which Python may have written: takes NaN, Infinity and -Infinity as
// numbers, too, and rounds a number beyond 64 bits to a double. The typed members below refuse a
// number that is not finite, so that none reaches a result.
[[nodiscard]] Result<Json> parse_model_json(std::string_view text, std::string_view what);
// Returns the object of such a text; kInvalidArgument for any other value.
[[nodiscard]] Result<Json> parse_model_object(std::string_view text, std::string_view what);

// Parses an object that is kept and given back, such as metadata: kInvalidArgument also for another
// type, and for depth over 60 (what keeps it may lay it inside objects of its own).
[[nodiscard]] Result<Json> parse_kept_object(std::string_view text, std::string_view what);
// Returns the text of such an object without blanks; errors as above.
[[nodiscard]] Result<std::string> kept_object(std::string_view text, std::string_view what);
// Returns `object` with the members of `over`, which replace those of equal keys; both are texts
// that objects were written as.
[[nodiscard]] std::string merged_objects(std::string_view object, std::string_view over);

// Return typed members. Absent or null gives `fallback`; another type is kInvalidArgument naming
// `key`. An integer may be written as 1.0; a number is finite.
[[nodiscard]] Result<std::int64_t> get_int(JsonView object, std::string_view key,
                                           std::int64_t fallback);
[[nodiscard]] Result<double> get_double(JsonView object, std::string_view key, double fallback);
[[nodiscard]] Result<bool> get_bool(JsonView object, std::string_view key, bool fallback);
[[nodiscard]] Result<std::string> get_string(JsonView object, std::string_view key,
                                             std::string_view fallback);

// Returns the elements of an array of T (an integer or std::string); nullopt for any other value.
template <class T>
[[nodiscard]] std::optional<std::vector<T>> read_json_list(JsonView list) {
  std::vector<T> out;
  out.reserve(list.size());
  for (const JsonView item : list.elements()) {
    if constexpr (std::integral<T>) {
      const std::optional<T> number = item.exact<T>();
      if (!number) {
        return std::nullopt;
      }
      out.push_back(*number);
    } else {
      if (!item.is_string()) {
        return std::nullopt;
      }
      out.emplace_back(item.as_string());
    }
  }
  return list.is_array() ? std::optional(std::move(out)) : std::nullopt;
}

}  // namespace quire::base
