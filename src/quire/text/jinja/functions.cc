#include "quire/text/jinja/functions.h"

// POSIX: newlocale and strftime_l.
#include <locale.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/builtin.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/print.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

constexpr std::int64_t kMaxRange = 100'000;  // of jinja2's sandbox
constexpr std::size_t kMaxDateFormat = 1024;

Result<Value> range(Runtime& runtime, const Value& /*self*/, const Bound& bound) {
  QUIRE_TRY(std::int64_t start, bound.integer(0, 0));
  QUIRE_TRY(std::int64_t stop, bound.integer(1, 0));
  QUIRE_TRY(const std::int64_t step, bound.integer(2, 1));
  if (bound.values[1] == nullptr) {
    stop = std::exchange(start, 0);
  }
  if (step == 0) {
    return invalid("range() step must not be zero");
  }
  // 128 bits, because the distance of two 64-bit integers may need 65.
  const __int128 distance = static_cast<__int128>(stop) - start;
  const __int128 count = distance == 0 || (distance < 0) != (step < 0)
                             ? 0
                             : (distance + step - (step < 0 ? -1 : 1)) / step;
  if (count > kMaxRange) {
    return invalid("range() is larger than ", kMaxRange);
  }
  SequenceBuilder out(&runtime.meter(), SequenceKind::kRange);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(count); ++i) {
    out.push(Value::integer(start + (i * step)));
  }
  return std::move(out).build();
}

Result<Value> make_namespace(Runtime& runtime, const Value& /*self*/, const Bound& bound) {
  if (!bound.given.positional.empty()) {
    return unsupported("a namespace of a dict");
  }
  auto space = runtime.make_namespace();
  for (const auto& [name, value] : bound.given.named) {
    if (name.starts_with('_')) {
      return invalid("a namespace cannot have the attribute ", base::quoted(name));
    }
    space->set(name, value);
  }
  return Value(std::move(space), kFromTemplate);
}

Result<Value> raise_exception(Runtime& runtime, const Value& /*self*/, const Bound& bound) {
  QUIRE_TRY(const auto message, to_text(runtime.meter(), *bound.values[0]));
  return invalid(message->view());
}

// datetime.now().strftime(format) in the C locale, whatever locale the program has.
Result<Value> strftime_now(Runtime& runtime, const Value& /*self*/, const Bound& bound) {
  QUIRE_TRY(const auto given, bound.text(0));
  const std::string format(given.value_or(""));
  if (format.empty() || format.size() > kMaxDateFormat || format.find('\0') != std::string::npos) {
    return invalid("strftime_now needs a format of at most ", kMaxDateFormat, " bytes");
  }
  // Python fills these otherwise than the C library.
  for (const std::string_view directive : {"%f", "%z", "%Z"}) {
    if (format.find(directive) != std::string::npos) {
      return unsupported("'", directive, "' of strftime_now");
    }
  }
  const std::unique_ptr<std::remove_pointer_t<locale_t>, void (*)(locale_t)> locale(
      newlocale(LC_ALL_MASK, "C", nullptr), freelocale);
  std::string out(std::size_t{16} * kMaxDateFormat, '\0');
  const std::size_t size =
      strftime_l(out.data(), out.size(), format.c_str(), &runtime.now(), locale.get());
  if (size == 0) {
    return invalid("strftime_now: the date is empty or longer than ", out.size(), " bytes");
  }
  return Value::string(
      make_text(&runtime.meter(), std::string_view(out).substr(0, size), kFromTemplate));
}

constexpr Builtin kFunctions[] = {
    {.name = "namespace", .run = make_namespace, .takes_any = true},
    {"raise_exception", raise_exception, {"message"}, 1},
    {"range", range, {"start", "stop", "step"}, 1},
    {"strftime_now", strftime_now, {"format"}, 1},
};

}  // namespace

std::span<const Builtin> global_functions() { return kFunctions; }

}  // namespace quire::text::jinja
