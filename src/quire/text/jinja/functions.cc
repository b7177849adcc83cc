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
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/access.h"
#include "quire/text/jinja/arguments.h"
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

Result<Value> range(Runtime& runtime, const Arguments& arguments) {
  QUIRE_TRY(const auto bound,
            BoundArguments::bind("range", arguments, {"start", "stop", "step"}, 1));
  QUIRE_TRY(std::int64_t start, bound.integer(0, 0));
  QUIRE_TRY(std::int64_t stop, bound.integer(1, 0));
  QUIRE_TRY(const std::int64_t step, bound.integer(2, 1));
  if (bound[1] == nullptr) {
    stop = std::exchange(start, 0);
  }
  if (step == 0) {
    return invalid("range() step must not be zero");
  }
  // 128 bits, because the distance of two 64-bit integers may need 65.
  const auto distance =
      step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const auto stride = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  const __int128 count = distance <= 0 ? 0 : ((distance - 1) / stride) + 1;
  if (count > kMaxRange) {
    return invalid("range() is larger than ", kMaxRange);
  }
  SequenceBuilder out(&runtime.meter(), SequenceKind::kRange);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(count); ++i) {
    out.push(Value::integer(start + (i * step)));
  }
  return std::move(out).build();
}

using Pairs = std::vector<std::pair<Value, Value>>;

// What dict(from) takes: the entries of a dict, or pairs.
Result<Pairs> pairs_of(Meter& meter, std::string_view function, const Value& from) {
  if (const auto* dict = from.dict()) {
    return dict->items;
  }
  Pairs out;
  QUIRE_TRY(const auto items, iterate(meter, from));
  for (const auto& item : items->items) {
    QUIRE_TRY(const auto pair, iterate(meter, item));
    if (pair->items.size() != 2 || !is_hashable(pair->items[0])) {
      return invalid(function, " needs pairs of a hashable key and a value");
    }
    out.emplace_back(pair->items[0], pair->items[1]);
  }
  return out;
}

// The entries that Python's dict(...) would have.
Result<Pairs> dict_entries(Runtime& runtime, std::string_view function,
                           const Arguments& arguments) {
  Pairs out;
  if (arguments.positional.size() > 1) {
    return invalid(function, " takes at most one positional argument, got ",
                   arguments.positional.size());
  }
  if (!arguments.positional.empty()) {
    QUIRE_TRY(out, pairs_of(runtime.meter(), function, arguments.positional.front()));
  }
  for (const auto& [name, value] : arguments.named) {
    out.emplace_back(Value::string(make_text(&runtime.meter(), name, kFromTemplate)), value);
  }
  return out;
}

Result<Value> dict(Runtime& runtime, const Arguments& arguments) {
  QUIRE_TRY(auto entries, dict_entries(runtime, "dict", arguments));
  DictBuilder out(&runtime.meter());
  for (auto& [key, value] : entries) {
    out.set(key, std::move(value));
  }
  return std::move(out).build();
}

Result<Value> make_namespace(Runtime& runtime, const Arguments& arguments) {
  QUIRE_TRY(auto entries, dict_entries(runtime, "namespace", arguments));
  auto space = runtime.make_namespace();
  for (auto& [key, value] : entries) {
    const auto* name = key.text();
    if (name == nullptr || name->view().starts_with('_')) {
      QUIRE_TRY(const auto shown, to_text(runtime.meter(), key));
      return invalid("a namespace cannot have the attribute ", base::quoted(shown->view()));
    }
    space->set(name->view(), std::move(value));
  }
  return Value(std::move(space), kFromTemplate);
}

Result<Value> raise_exception(Runtime& runtime, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("raise_exception", arguments, {"message"}, 1));
  QUIRE_TRY(const auto message, to_text(runtime.meter(), *bound[0]));
  return invalid(message->view());
}

// Python's own directives, which the C library fills otherwise or not at all.
std::string resolve_python_directives(std::string_view format) {
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    const char next = format[i] == '%' && i + 1 < format.size() ? format[i + 1] : '\0';
    if (next == 'f') {
      out += "000000";
    } else if (next == '%') {
      out += "%%";
    } else if (next != 'z' && next != 'Z') {
      out.push_back(format[i]);
      continue;
    }
    ++i;
  }
  return out;
}

// datetime.now().strftime(format) in the C locale, whatever locale the program has.
Result<Value> strftime_now(Runtime& runtime, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("strftime_now", arguments, {"format"}, 1));
  QUIRE_TRY(const auto format, bound.text(0));
  if (format->size_bytes() > kMaxDateFormat ||
      format->view().find('\0') != std::string_view::npos) {
    return invalid("strftime_now needs a format of at most ", kMaxDateFormat, " bytes");
  }
  const std::unique_ptr<std::remove_pointer_t<locale_t>, void (*)(locale_t)> locale(
      newlocale(LC_ALL_MASK, "C", nullptr), freelocale);
  // One more character tells an empty result from one that does not fit.
  const std::string directives = resolve_python_directives(format->view()) + ".";
  std::string out(std::size_t{16} * kMaxDateFormat, '\0');
  const std::size_t size =
      strftime_l(out.data(), out.size(), directives.c_str(), &runtime.now(), locale.get());
  if (size == 0) {
    return invalid("strftime_now: the date is longer than ", out.size(), " bytes");
  }
  return Value::string(
      make_text(&runtime.meter(), std::string_view(out).substr(0, size - 1), kFromTemplate));
}

template <const char* kName>
Result<Value> not_supported(Runtime& /*runtime*/, const Arguments& /*arguments*/) {
  return unsupported("function '", kName, "' is not supported");
}

constexpr char kCycler[] = "cycler";
constexpr char kJoiner[] = "joiner";
constexpr char kLipsum[] = "lipsum";

constexpr NamedFunction kFunctions[] = {
    {"cycler", not_supported<kCycler>},
    {"dict", dict},
    {"joiner", not_supported<kJoiner>},
    {"lipsum", not_supported<kLipsum>},
    {"namespace", make_namespace},
    {"raise_exception", raise_exception},
    {"range", range},
    {"strftime_now", strftime_now},
};

}  // namespace

std::span<const NamedFunction> global_functions() { return kFunctions; }

Callable self_reference() {
  return {.description = "the template",
          .printed = "<TemplateReference None>",
          .call = [](Runtime& /*runtime*/, const Arguments& /*arguments*/) -> Result<Value> {
            return invalid("'TemplateReference' object is not callable");
          }};
}

}  // namespace quire::text::jinja
