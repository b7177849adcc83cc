#include "quire/drafts/options.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/options.h"
#include "quire/result.h"

namespace quire::drafts {
namespace {

using base::JsonView;

constexpr std::int32_t kMostTokens = 64;
constexpr std::int32_t kMostMatch = 16;
constexpr std::int32_t kMostWidth = 8;

// A method, what it guesses at most by default, and its keys beside those of all methods.
struct MethodKind {
  std::string_view name;
  Method method;
  std::int32_t max_tokens;
  std::string_view keys;
};
constexpr MethodKind kMethods[] = {{"ngram", Method::kNgram, 8, "min_match"},
                                   {"suffix", Method::kSuffix, 16, ""},
                                   {"draft", Method::kDraft, 4, "model, width"},
                                   {"custom", Method::kCustom, 8, "width"}};

Error wrong(std::string_view key, JsonView value, std::string_view allowed) {
  return {.code = ErrorCode::kInvalidArgument,
          .message = base::str_cat("speculate: ", base::quoted(key), " must be ", allowed, ", not ",
                                   base::quoted(base::write_json(value), 60))};
}

const MethodKind* find_method(std::string_view name) {
  const auto* const found = std::ranges::find(kMethods, name, &MethodKind::name);
  return found == std::end(kMethods) ? nullptr : found;
}

// Returns whether `key` stands in `keys`, a list of names with ", " between them.
bool stands_in(std::string_view key, std::string_view keys) {
  while (!keys.empty()) {
    const std::size_t end = std::min(keys.find(", "), keys.size());
    if (keys.substr(0, end) == key) {
      return true;
    }
    keys.remove_prefix(std::min(end + 2, keys.size()));
  }
  return false;
}

// Reads {"rule": "exact"} or {"rule": "threshold", "p": 0.9}.
Result<std::optional<double>> threshold_of(JsonView acceptance) {
  const JsonView rule = acceptance.find("rule");
  const bool thresholds = rule == std::string_view("threshold");
  if (!acceptance.is_object() || !(thresholds || rule == std::string_view("exact"))) {
    return wrong("acceptance", acceptance,
                 R"({"rule": "exact"} or {"rule": "threshold", "p": a number})");
  }
  for (const auto [key, value] : acceptance.members()) {
    if (key != "rule" && !(thresholds && key == "p")) {
      return Error{.code = ErrorCode::kInvalidArgument,
                   .message = base::str_cat("speculate: \"acceptance\" has no key ",
                                            base::quoted(key), "; there are rule, p")};
    }
  }
  if (!thresholds) {
    return std::optional<double>();
  }
  const JsonView share = acceptance.find("p");
  if (!share.is_number() || !(share.as_double() > 0 && share.as_double() <= 1)) {
    return wrong("p", share, "a number above 0, at most 1");
  }
  return std::optional(share.as_double());
}

Status read_count(std::string_view key, JsonView value, std::int32_t most, std::int32_t& count) {
  const std::optional<std::int32_t> read = value.exact<std::int32_t>();
  if (!read || *read < 1 || *read > most) {
    return wrong(key, value, base::str_cat("1 to ", most));
  }
  count = *read;
  return {};
}

Status read_key(std::string_view key, JsonView value, SpeculationOptions& options) {
  if (key == "max_tokens") {
    return read_count(key, value, kMostTokens, options.max_tokens);
  }
  if (key == "min_match") {
    return read_count(key, value, kMostMatch, options.min_match);
  }
  if (key == "width") {
    return read_count(key, value, kMostWidth, options.width);
  }
  if (key == "model") {
    if (!value.is_string() || value.as_string().empty()) {
      return wrong(key, value, "the path of a model");
    }
    options.model = value.as_string();
    return {};
  }
  if (key == "adapt") {
    if (!value.is_bool()) {
      return wrong(key, value, "true or false");
    }
    options.adapt = value.as_bool();
    return {};
  }
  QUIRE_TRY(options.threshold, threshold_of(value));
  return {};
}

Result<SpeculationOptions> read_object(JsonView object) {
  constexpr std::string_view kShared = "method, max_tokens, adapt, acceptance";
  const JsonView name = object.find("method");
  const MethodKind* const kind = name.is_string() ? find_method(name.as_string()) : nullptr;
  if (kind == nullptr) {
    return wrong("method", name, R"("ngram", "suffix", "draft" or "custom")");
  }
  SpeculationOptions options{.method = kind->method, .max_tokens = kind->max_tokens};
  for (const auto [key, value] : object.members()) {
    if (!stands_in(key, kShared) && !stands_in(key, kind->keys)) {
      return Error{.code = ErrorCode::kInvalidArgument,
                   .message = base::str_cat("speculate: the method ", base::quoted(kind->name),
                                            " has no key ", base::quoted(key), "; there are ",
                                            kShared, kind->keys.empty() ? "" : ", ", kind->keys)};
    }
    if (key != "method") {
      QUIRE_TRY_STATUS(read_key(key, value, options));
    }
  }
  if (options.method == Method::kDraft && options.model.empty()) {
    return wrong("model", object.find("model"), "the path of a model");
  }
  return options;
}

Result<SpeculationOptions> read_text(const std::string& text) {
  if (text.empty()) {
    return SpeculationOptions();
  }
  if (text.front() != '{') {
    return read_object(base::Json::object({{"method", text}}));
  }
  QUIRE_TRY(const base::Json parsed, base::parse_json(text, "speculate"));
  return read_object(parsed);
}

}  // namespace

Result<SpeculationOptions> speculation_of(const LLMOptions& options) {
  QUIRE_TRY(SpeculationOptions read, read_text(options.speculate));
  if ((read.method == Method::kCustom) != (options.drafter != nullptr)) {
    return {ErrorCode::kInvalidArgument,
            options.drafter == nullptr
                ? "speculate: the method \"custom\" needs a drafter; give one (Python: the key "
                  "\"propose\")"
                : "a drafter needs speculate to be \"custom\""};
  }
  return read;
}

}  // namespace quire::drafts
