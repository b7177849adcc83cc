// Values of the template language: Python's, as far as templates can see them, with truth, equality
// and order. All but namespaces and generators never change after they are made.
//
// Thread rule: values of one rendering belong to its thread; those of a parsed template are shared.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/result.h"
#include "quire/text/render_meter.h"
#include "quire/text/sourced_text.h"

namespace quire::text::jinja {

class Loop;
class Runtime;
struct Callable;
struct Dict;
struct Scope;
struct Sequence;

// Holds the message of the error that using it raises.
struct Undefined {
  struct Reason {
    std::string message;
    Charge charge = {};
  };
  std::shared_ptr<const Reason> reason;
};
struct None {};
struct String {
  TextPtr text;
  bool markup = false;  // made by |safe: `+` escapes the other side
};

class Value {
 public:
  using Data =
      std::variant<Undefined, None, bool, std::int64_t, double, String, std::shared_ptr<Sequence>,
                   std::shared_ptr<const Dict>, std::shared_ptr<Scope>,
                   std::shared_ptr<const Callable>, std::shared_ptr<Loop>>;

  Value() : data_(None{}) {}
  Value(Data data, std::int32_t source) : data_(std::move(data)), source_(source) {}

  static Value undefined(Meter& meter, std::string message);
  static Value boolean(bool value) { return {value, kFromTemplate}; }
  static Value integer(std::int64_t value) { return {value, kFromTemplate}; }
  static Value real(double value) { return {value, kFromTemplate}; }
  static Value callable(Meter& meter, Callable callable);
  static Value string(TextPtr text, bool markup = false) {
    return {String{std::move(text), markup}, kFromTemplate};
  }

  // Returns null or nullopt when the value is something else.
  template <class T>
  [[nodiscard]] const T* get() const {
    return std::get_if<T>(&data_);
  }
  [[nodiscard]] const Text* text() const {
    return get<String>() ? get<String>()->text.get() : nullptr;
  }
  [[nodiscard]] const Sequence* sequence() const { return pointee<std::shared_ptr<Sequence>>(); }
  [[nodiscard]] const Dict* dict() const { return pointee<std::shared_ptr<const Dict>>(); }
  [[nodiscard]] std::optional<std::int64_t> as_integer() const;  // takes bool too
  [[nodiscard]] std::optional<double> as_number() const;         // takes bool and int too

  [[nodiscard]] bool is_undefined() const { return get<Undefined>() != nullptr; }
  [[nodiscard]] bool is_none() const { return get<None>() != nullptr; }
  [[nodiscard]] bool is_markup() const { return get<String>() && get<String>()->markup; }

  // Returns where a scalar came from, kept when it is printed. Strings know it byte by byte.
  [[nodiscard]] std::int32_t source() const { return source_; }
  [[nodiscard]] const Data& data() const { return data_; }

 private:
  template <class T>
  [[nodiscard]] typename T::element_type* pointee() const {
    return get<T>() == nullptr ? nullptr : get<T>()->get();
  }

  Data data_;
  std::int32_t source_ = kFromTemplate;
};

enum class SequenceKind : std::uint8_t {
  kList,
  kTuple,
  kRange,
  kView,       // keys, values or items of a dict: has a length and no index
  kGenerator,  // empty once it was iterated
};

struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  int depth = 1;  // levels of containers, this one included
  Charge charge = {};

  [[nodiscard]] bool has_index() const { return kind <= SequenceKind::kRange; }
};
using SequencePtr = std::shared_ptr<Sequence>;

// A dict in the order of insertion; look-up is linear, and counted as work.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
  Charge charge = {};
};
using DictPtr = std::shared_ptr<const Dict>;

// Returns an iterator to the pair of that name in a list of pairs.
template <class Items>
[[nodiscard]] auto find_name(Items& items, std::string_view name) {
  return std::ranges::find_if(items, [&](const auto& item) { return item.first == name; });
}

// Variables of a block; look-up goes on in the parent. A template's blocks nest, so that the chain
// is as long as the template is deep. A namespace is a scope without a parent.
struct Scope {
  Scope(Meter& meter, std::shared_ptr<Scope> outer) : parent(std::move(outer)), charge(&meter) {}

  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;
  Charge charge;

  // Finds a variable. Returns null when there is none here or in a parent.
  [[nodiscard]] const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

// Arguments of a call as written.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Functions, bound methods and macros.
struct Callable {
  std::string description;  // "macro 'f'", "method 'split' of str"
  std::function<Result<Value>(Runtime&, const Arguments&)> call;
  Charge charge = {};
};

// Make containers item by item. Beyond the meter's bounds, and beyond kMaxContainerDepth, they drop
// items; the meter then has failed.
class SequenceBuilder {
 public:
  explicit SequenceBuilder(Meter& meter, SequenceKind kind = SequenceKind::kList);
  void push(Value value);
  [[nodiscard]] Value build() &&;

 private:
  Sequence sequence_;
};

class DictBuilder {
 public:
  explicit DictBuilder(Meter& meter) { dict_.charge = Charge(&meter); }
  // Adds an item. Precondition: `key` is hashable and not there yet.
  void push(Value key, Value value);
  // Sets a key as Python does: an equal key keeps its place and takes the new value; false if there
  // was one. Precondition: `key` is hashable.
  bool set(const Value& key, Value value);
  [[nodiscard]] Value build() &&;

 private:
  Dict dict_;
};

[[nodiscard]] Value make_pair(Meter& meter, const Value& first, const Value& second);

// Returns an error for lists and dicts, and for tuples as keys, which chat templates do not need.
Status check_hashable(const Value& key);
// Returns Python's type(x).__name__.
[[nodiscard]] std::string_view type_name(const Value& value);
// Returns the error that using an undefined value raises, or an OK status for any other value.
Status check_defined(const Value& value);

// Returns the items that a loop visits, in order; takes them from a generator. kInvalidArgument
// when the value cannot be iterated.
Result<SequencePtr> iterate(Meter& meter, const Value& value);
// Returns len(value), or nullopt when Python's type has none.
[[nodiscard]] std::optional<std::int64_t> length_of(const Value& value);

[[nodiscard]] bool truth(const Value& value);

// Compares two values. Every visited item is a step, so that shared nested lists cannot make a
// comparison endless.
[[nodiscard]] bool equal(Meter& meter, const Value& a, const Value& b);
// Orders two values. kInvalidArgument when the types have no order; `sign` is the operator of the
// message.
Result<std::partial_ordering> compare(Meter& meter, std::string_view sign, const Value& a,
                                      const Value& b);
// Returns whether `item` is in `container`. kInvalidArgument when the container is none.
Result<bool> contains(Meter& meter, const Value& container, const Value& item);

// Items with what they are sorted by.
struct Keyed {
  Value key;
  Value item;
};

// Sorts stably by key, with O(n log n) comparisons. kInvalidArgument where keys have no order.
Status sort_keyed(Meter& meter, std::vector<Keyed>& items, bool reverse);

// Returns the value of `key`, or null.
[[nodiscard]] const Value* find(Meter& meter, const Dict& dict, const Value& key);
[[nodiscard]] const Value* find(Meter& meter, const Dict& dict, std::string_view key);

}  // namespace quire::text::jinja
