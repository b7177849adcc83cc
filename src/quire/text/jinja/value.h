// Values of the template language: Python's, as far as templates can see them. All but namespaces
// never change after they are made, as the sandbox demands.
//
// Thread rule: values of one rendering belong to its thread; those of a parsed template are shared.
#pragma once

#include <cstddef>
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
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/text.h"

namespace quire::text::jinja {

class LoopContext;
class Runtime;
class Value;
struct Arguments;
struct Callable;
struct Dict;
struct Namespace;
struct Sequence;

struct Undefined {
  struct Reason {
    std::string message;  // of the error that using it raises
    Charge charge = {};
  };
  std::shared_ptr<const Reason> reason;

  [[nodiscard]] const std::string& message() const { return reason->message; }
};
struct None {};
struct String {
  TextPtr text;
  bool markup = false;  // made by |safe or |escape: `+` escapes the other side
};

class Value {
 public:
  using Data =
      std::variant<Undefined, None, bool, std::int64_t, double, String, std::shared_ptr<Sequence>,
                   std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                   std::shared_ptr<const Callable>, std::shared_ptr<LoopContext>>;

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

  // Null or nullopt when the value is something else.
  template <class T>
  [[nodiscard]] const T* get() const {
    return std::get_if<T>(&data_);
  }
  [[nodiscard]] const Text* text() const;
  [[nodiscard]] Sequence* sequence() const;
  [[nodiscard]] const Dict* dict() const;
  [[nodiscard]] std::optional<std::int64_t> as_integer() const;  // of bool too
  [[nodiscard]] std::optional<double> as_number() const;         // of bool and int too

  [[nodiscard]] bool is_undefined() const { return get<Undefined>() != nullptr; }
  [[nodiscard]] bool is_none() const { return get<None>() != nullptr; }

  // Where a scalar came from, kept when it is printed. Strings know it byte by byte.
  [[nodiscard]] std::int32_t source() const { return source_; }
  [[nodiscard]] const Data& data() const { return data_; }

 private:
  Data data_;
  std::int32_t source_ = kFromTemplate;
};

enum class SequenceKind : std::uint8_t {
  kList,
  kTuple,
  kRange,
  kKeys,
  kValues,
  kItems,
  kGenerator,
};

struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  int depth = 1;          // levels of containers, this one included
  bool hashable = false;  // a tuple of hashable items
  std::size_t next = 0;   // kGenerator: items before it have been taken
  Charge charge = {};
};
using SequencePtr = std::shared_ptr<Sequence>;

// A dict in the order of insertion; look-up is linear, and counted as work.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
  Charge charge = {};
};
using DictPtr = std::shared_ptr<const Dict>;

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  Charge charge = {};

  [[nodiscard]] const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

// Arguments of a call as written, after * and ** are spread.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Functions, bound methods and macros.
struct Callable {
  std::string description;  // "macro 'f'", "method 'split' of str"
  std::string printed;      // what print shows; empty when Python shows an address
  std::function<Result<Value>(Runtime&, const Arguments&)> call;
  Charge charge = {};
};

// Make containers item by item. Beyond the meter's bounds, and beyond kMaxContainerDepth, they drop
// items; the meter then has failed.
class SequenceBuilder {
 public:
  explicit SequenceBuilder(Meter* meter, SequenceKind kind = SequenceKind::kList);
  void push(Value value);
  [[nodiscard]] Value build() &&;

 private:
  Sequence sequence_;
  bool hashable_ = true;
};

class DictBuilder {
 public:
  explicit DictBuilder(Meter* meter);
  // Precondition: `key` is hashable and not there yet.
  void push(Value key, Value value);
  // As Python: an equal key keeps its place and takes the new value; false if there was one.
  // Precondition: `key` is hashable.
  bool set(const Value& key, Value value);
  [[nodiscard]] Value build() &&;

 private:
  Dict dict_;
};

[[nodiscard]] bool is_hashable(const Value& value);
// As Python's type(x).__name__.
[[nodiscard]] std::string_view type_name(const Value& value);
// How jinja2 names an object in the message of an undefined value ("dict object").
[[nodiscard]] std::string object_name(const Value& value);

}  // namespace quire::text::jinja
