// JSON of files and requests from strangers, and of files that the library writes. A Json owns a
// value, and a JsonView refers to one. Boost.JSON parses and writes them behind json.cc (ADR 0006).
//
// Thread rule: any number of threads may read one Json.
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
  kInt,     // an integer that fits 64 bits with a sign
  kUint,    // a parsed integer that needs 64 bits without a sign
  kDouble,  // any other number, and each with a point or an exponent
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

// Refers to a value inside of a Json, which must outlive the view and not change meanwhile. A
// default view is null. A view is two words, and copying it allocates nothing.
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

  // Returns the value. Precondition: it is of that kind; as_double() takes any number. The text of
  // as_string() lies in the Json.
  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] std::int64_t as_int() const;
  [[nodiscard]] std::uint64_t as_uint() const;
  [[nodiscard]] double as_double() const;
  [[nodiscard]] std::string_view as_string() const;
  // Returns the number if T holds it exactly, also when it is written as 1.0; else nullopt. T is an
  // integer of 32 or 64 bits.
  template <std::integral T>
  [[nodiscard]] std::optional<T> exact() const;

  // Returns the number of elements or members; 0 for any other value.
  [[nodiscard]] std::size_t size() const;
  // Returns an element of an array. Precondition: index < size().
  [[nodiscard]] JsonView operator[](std::size_t index) const;
  // Returns a member of a JSON object. Precondition: index < size().
  [[nodiscard]] JsonMember member(std::size_t index) const;
  // Returns elements in the order of the text, or an empty range for any other value; members()
  // returns members.
  [[nodiscard]] JsonRange<JsonView> elements() const;
  [[nodiscard]] JsonRange<JsonMember> members() const;
  // Returns true if this is a JSON object with a member `key`, which may be null.
  [[nodiscard]] bool contains(std::string_view key) const;
  // Returns member `key`; null if it is absent or if this is no JSON object.
  [[nodiscard]] JsonView find(std::string_view key) const;

 private:
  friend struct JsonAccess;
  JsonView(const void* value, JsonKind kind) : value_(value), kind_(kind) {}

  const void* value_ = nullptr;
  JsonKind kind_ = JsonKind::kNull;
};

// One member of a JSON object. The key lies in the Json.
struct JsonMember {
  std::string_view key;
  JsonView value;
};

// Iterates over the elements (JsonView) or members (JsonMember) of a value.
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

// Owns a JSON value, parsed or built. Members keep the order in which they came. Move only; a Json
// that was moved from is null.
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

  // Builds a JSON object: object({{"name", name}, {"size", 3}}). The last of equal keys counts.
  [[nodiscard]] static Json object();
  [[nodiscard]] static Json object(std::initializer_list<JsonField> fields);
  // Builds an array: Json::array("a", 3, std::move(other)).
  template <class... Items>
  [[nodiscard]] static Json array(Items&&... items);
  // Builds an array of many values of one type.
  [[nodiscard]] static Json list(std::span<const std::int32_t> numbers);
  [[nodiscard]] static Json list(std::span<const std::string> texts);
  [[nodiscard]] static Json copy(JsonView value);

  // Sets member `key` of a JSON object. A member that exists keeps its place.
  void set(std::string_view key, Json value);
  // Adds member `key` to a JSON object unless it exists. Returns true if it was added.
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

// One member of a JSON object that is being built.
struct JsonField {
  std::string_view key;
  mutable Json value;  // moved into the object, which an initializer_list would forbid
};

template <class... Items>
Json Json::array(Items&&... items) {
  Json out = empty_array();
  (out.push(Json(std::forward<Items>(items))), ...);
  return out;
}

// Returns true if two values are equal. The order of members does not count.
[[nodiscard]] bool operator==(JsonView a, JsonView b);
// Returns true if `value` is the string `text`.
[[nodiscard]] bool operator==(JsonView value, std::string_view text);

// Returns the value as text without blanks. A double has the shortest form that reads as the same
// one, and a point or an exponent.
[[nodiscard]] std::string write_json(JsonView value);

// Parses UTF-8 `text`. `what` names it in errors ("messages"). Fails with kInvalidArgument for bad
// syntax, a depth over 64 and trailing bytes. A number that would become another one (an integer
// beyond 64 bits, 1e400) is kInvalidArgument, and the message quotes it and its key. -0 is 0, and
// 0E0 is 0.0 (RFC 8259).
[[nodiscard]] Result<Json> parse_json(std::string_view text, std::string_view what);

// Parses a file of a model, which Python may have written. Takes NaN, Infinity and -Infinity as
// numbers, and rounds an integer beyond 64 bits to a double. The typed getters below refuse a
// number that is not finite.
[[nodiscard]] Result<Json> parse_model_json(std::string_view text, std::string_view what);
// Parses a file of a model that must be a JSON object. Fails with kInvalidArgument otherwise.
[[nodiscard]] Result<Json> parse_model_object(std::string_view text, std::string_view what);

// Parses a JSON object that is kept and given back, such as metadata. Fails with kInvalidArgument
// as parse_json does, for another type, and for a depth over 60: its keeper may nest it.
[[nodiscard]] Result<Json> parse_kept_object(std::string_view text, std::string_view what);
// Returns the text of a JSON object that is kept, without blanks. Fails as parse_kept_object does.
[[nodiscard]] Result<std::string> kept_object(std::string_view text, std::string_view what);
// Returns `object` with the members of `over`, which replace members of equal keys. Precondition:
// both are texts of JSON objects that the library wrote.
[[nodiscard]] std::string merged_objects(std::string_view object, std::string_view over);

// Returns a typed member. An absent or null member gives `fallback`; another type is
// kInvalidArgument that names `key`. An integer may be written as 1.0. A number is finite.
[[nodiscard]] Result<std::int64_t> get_int(JsonView object, std::string_view key,
                                           std::int64_t fallback);
[[nodiscard]] Result<double> get_double(JsonView object, std::string_view key, double fallback);
[[nodiscard]] Result<bool> get_bool(JsonView object, std::string_view key, bool fallback);
[[nodiscard]] Result<std::string> get_string(JsonView object, std::string_view key,
                                             std::string_view fallback);

// Returns the elements of an array of T (an integer or std::string), or nullopt for any other
// value.
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
