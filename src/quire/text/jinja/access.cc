#include "quire/text/jinja/access.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/compare.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/loop.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/methods.h"
#include "quire/text/jinja/print.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/unicode.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

Value no_attribute(Meter& meter, const Value& value, std::string_view name) {
  return Value::undefined(
      meter, base::str_cat(object_name(value), " has no attribute ", base::quoted(name)));
}

// What Python's getattr gives; nullopt for AttributeError.
Result<std::optional<Value>> own_attribute(Meter& meter, const Value& value,
                                           std::string_view name) {
  if (name.starts_with("__")) {
    return std::optional<Value>(
        Value::undefined(meter, base::str_cat("access to attribute ", base::quoted(name), " of ",
                                              object_name(value), " is unsafe")));
  }
  if (const auto* space = value.get<std::shared_ptr<Namespace>>()) {
    const auto* found = (*space)->find(name);
    return found == nullptr ? std::optional<Value>() : *found;
  }
  if (const auto* loop = value.get<std::shared_ptr<LoopContext>>()) {
    QUIRE_TRY(auto found, LoopContext::attribute(meter, *loop, name));
    return std::optional<Value>(std::move(found));
  }
  return find_method(meter, value, name);
}

// The item of an integer index or a dict's key; nullopt for TypeError and LookupError.
std::optional<Value> own_item(Meter& meter, const Value& value, const Value& key) {
  if (const auto* dict = value.dict()) {
    const auto* found = is_hashable(key) ? find(meter, *dict, key) : nullptr;
    return found == nullptr ? std::nullopt : std::optional<Value>(*found);
  }
  const auto index = key.as_integer();
  if (!index) {
    return std::nullopt;
  }
  if (const auto* sequence = value.sequence()) {
    const auto size = static_cast<std::int64_t>(sequence->items.size());
    const std::int64_t at = *index < 0 ? *index + size : *index;
    if (sequence->kind > SequenceKind::kRange || at < 0 || at >= size) {
      return std::nullopt;
    }
    return sequence->items[static_cast<std::size_t>(at)];
  }
  if (const auto* string = value.get<String>()) {
    meter.step_bytes(string->text->size_bytes());
    const auto size = static_cast<std::int64_t>(string->text->length());
    const std::int64_t at = *index < 0 ? *index + size : *index;
    if (at < 0 || at >= size) {
      return std::nullopt;
    }
    const std::size_t begin = string->text->byte_offset(static_cast<std::size_t>(at));
    const std::size_t bytes = decode_at(string->text->view(), begin).bytes;
    return Value::string(slice_bytes(&meter, string->text, begin, begin + bytes), string->markup);
  }
  return std::nullopt;
}

struct Slice {
  std::int64_t start = 0;
  std::int64_t step = 1;
  std::int64_t count = 0;
};

Result<std::optional<std::int64_t>> slice_bound(const Value& bound) {
  if (bound.is_none()) {
    return std::optional<std::int64_t>();
  }
  if (const auto integer = bound.as_integer()) {
    return integer;
  }
  return invalid("slice indices must be integers or none, got ", type_name(bound));
}

// PySlice_AdjustIndices.
Result<Slice> resolve(const std::array<Value, 3>& bounds, std::int64_t length) {
  QUIRE_TRY(const auto start, slice_bound(bounds[0]));
  QUIRE_TRY(const auto stop, slice_bound(bounds[1]));
  QUIRE_TRY(const auto given_step, slice_bound(bounds[2]));
  const std::int64_t step = std::max(given_step.value_or(1), -INT64_MAX);
  if (step == 0) {
    return invalid("slice step cannot be zero");
  }
  const std::int64_t low = step < 0 ? -1 : 0;
  const std::int64_t high = step < 0 ? length - 1 : length;
  const auto adjust = [&](const std::optional<std::int64_t>& bound, std::int64_t fallback) {
    return bound ? std::clamp(*bound < 0 ? *bound + length : *bound, low, high) : fallback;
  };
  const std::int64_t first = adjust(start, step < 0 ? high : low);
  const std::int64_t last = adjust(stop, step < 0 ? low : high);
  const std::int64_t distance = step < 0 ? first - last : last - first;
  const std::int64_t stride = step < 0 ? -step : step;
  return Slice{first, step, distance <= 0 ? 0 : ((distance - 1) / stride) + 1};
}

TextPtr slice_text(Meter& meter, const TextPtr& text, const Slice& slice) {
  if (slice.step == 1) {
    const std::size_t begin = text->byte_offset(static_cast<std::size_t>(slice.start));
    const std::size_t end = text->byte_offset(static_cast<std::size_t>(slice.start + slice.count));
    return slice_bytes(&meter, text, begin, std::max(begin, end));
  }
  // Offsets of all code points, so that each step is O(1).
  Charge charge(&meter);
  std::vector<std::size_t> offsets;
  if (charge.add(text->length() * sizeof(std::size_t))) {
    for (std::size_t at = 0; at < text->size_bytes(); at += decode_at(text->view(), at).bytes) {
      offsets.push_back(at);
    }
    offsets.push_back(text->size_bytes());
  }
  TextBuilder out(&meter);
  for (std::int64_t i = 0; i < slice.count && !meter.failed(); ++i) {
    const auto at = static_cast<std::size_t>(slice.start + (i * slice.step));
    out.append(*text, offsets[at], offsets[at + 1]);
  }
  return std::move(out).build();
}

}  // namespace

Result<Value> get_attribute(Meter& meter, const Value& value, std::string_view name) {
  meter.step();
  if (const auto* undefined = value.get<Undefined>()) {
    return invalid(undefined->message());
  }
  QUIRE_TRY(auto attribute, own_attribute(meter, value, name));
  if (attribute) {
    return *std::move(attribute);
  }
  if (const auto* dict = value.dict()) {
    if (const auto* found = find(meter, *dict, name)) {
      return *found;
    }
  }
  return no_attribute(meter, value, name);
}

Result<Value> get_item(Meter& meter, const Value& value, const Value& key) {
  meter.step();
  if (const auto* undefined = value.get<Undefined>()) {
    return invalid(undefined->message());
  }
  if (auto item = own_item(meter, value, key)) {
    return *std::move(item);
  }
  if (const auto* name = key.text()) {
    QUIRE_TRY(auto attribute, own_attribute(meter, value, name->view()));
    return attribute ? *std::move(attribute) : no_attribute(meter, value, name->view());
  }
  QUIRE_TRY(const auto shown, to_text(meter, key));
  return Value::undefined(
      meter, base::str_cat(object_name(value), " has no element ", base::quoted(shown->view())));
}

Result<Value> get_slice(Meter& meter, const Value& value, const std::array<Value, 3>& bounds) {
  if (const auto* undefined = value.get<Undefined>()) {
    return invalid(undefined->message());
  }
  if (const auto* string = value.get<String>()) {
    meter.step_bytes(string->text->size_bytes());
    QUIRE_TRY(const auto slice, resolve(bounds, static_cast<std::int64_t>(string->text->length())));
    return Value::string(slice_text(meter, string->text, slice), string->markup);
  }
  const auto* sequence = value.sequence();
  if (sequence == nullptr || sequence->kind > SequenceKind::kRange) {
    return invalid(type_name(value), " cannot be sliced");
  }
  QUIRE_TRY(const auto slice, resolve(bounds, static_cast<std::int64_t>(sequence->items.size())));
  SequenceBuilder out(&meter, sequence->kind);
  for (std::int64_t i = 0; i < slice.count && !meter.failed(); ++i) {
    out.push(sequence->items[static_cast<std::size_t>(slice.start + (i * slice.step))]);
  }
  return std::move(out).build();
}

Result<SequencePtr> iterate(Meter& meter, const Value& value) {
  if (const auto* shared = value.get<SequencePtr>()) {
    Sequence& sequence = **shared;
    if (sequence.kind != SequenceKind::kGenerator) {
      return *shared;
    }
    auto rest = std::make_shared<Sequence>(std::move(sequence));
    rest->kind = SequenceKind::kList;
    rest->items.erase(rest->items.begin(),
                      rest->items.begin() + static_cast<std::ptrdiff_t>(rest->next));
    sequence = Sequence{.kind = SequenceKind::kGenerator};
    return rest;
  }
  SequenceBuilder list(&meter);
  if (const auto* string = value.get<String>()) {
    const std::string_view view = string->text->view();
    for (std::size_t at = 0; at < view.size() && !meter.failed();) {
      const std::size_t end = at + decode_at(view, at).bytes;
      list.push(Value::string(slice_bytes(&meter, string->text, at, end)));
      at = end;
    }
  } else if (const auto* dict = value.dict()) {
    for (const auto& item : dict->items) {
      list.push(item.first);
    }
  } else if (!value.is_undefined()) {
    return invalid("'", type_name(value), "' object is not iterable");
  }
  const Value built = std::move(list).build();
  return *built.get<SequencePtr>();
}

std::optional<std::int64_t> length_of(const Value& value) {
  if (const auto* text = value.text()) {
    return static_cast<std::int64_t>(text->length());
  }
  if (const auto* sequence = value.sequence()) {
    return sequence->kind == SequenceKind::kGenerator
               ? std::nullopt
               : std::optional(static_cast<std::int64_t>(sequence->items.size()));
  }
  if (const auto* dict = value.dict()) {
    return static_cast<std::int64_t>(dict->items.size());
  }
  return value.is_undefined() ? std::optional<std::int64_t>(0) : std::nullopt;
}

IndexRange clamp_range(std::optional<std::int64_t> start, std::optional<std::int64_t> stop,
                       std::int64_t length) {
  const auto adjust = [&](std::int64_t bound) {
    return std::clamp<std::int64_t>(bound < 0 ? bound + length : bound, 0, length);
  };
  return {start && *start > length ? length + 1 : adjust(start.value_or(0)),
          adjust(stop.value_or(length))};
}

}  // namespace quire::text::jinja
