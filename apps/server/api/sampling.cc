#include "api/sampling.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "api/errors.h"
#include "api/fields.h"
#include "api/json.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire::server {
namespace {

constexpr double kMaxId = 2147483647;
constexpr std::size_t kMaxBias = 1024;

constexpr FieldRule kSamplingRules[] = {
    {.name = "temperature", .kinds = kNumber, .help = "0 is greedy; default 1", .min = 0, .max = 2},
    {.name = "top_p",
     .kinds = kNumber,
     .help = "share of probability kept",
     .min = 0,
     .max = 1,
     .above = true},
    {.name = "top_k",
     .kinds = kInteger,
     .help = "tokens kept; 0 and -1 keep all",
     .min = -1,
     .max = kMaxId},
    {.name = "min_p",
     .kinds = kNumber,
     .help = "kept: at least so much of the likeliest token",
     .min = 0,
     .max = 1},
    {.name = "repetition_penalty",
     .kinds = kNumber,
     .help = "divides logits of tokens in prompt and output",
     .min = 0,
     .max = 1e6,
     .above = true},
    {.name = "presence_penalty",
     .kinds = kNumber,
     .help = "subtracted from logits of tokens in the output",
     .min = -2,
     .max = 2},
    {.name = "frequency_penalty",
     .kinds = kNumber,
     .help = "subtracted for each occurrence in the output",
     .min = -2,
     .max = 2},
    {.name = "seed",
     .kinds = kInteger,
     .help = "one seed gives one output; choice i uses seed + i"},
    {.name = "logit_bias",
     .kinds = kObject,
     .help = "at most 1,024 pairs of id and number from -100 to 100"},
    {.name = "min_tokens",
     .kinds = kInteger,
     .help = "tokens before an end is allowed",
     .min = 0,
     .max = kMaxId},
    {.name = "stop",
     .kinds = kString | kArray,
     .help = "up to 16 texts of 1 to 256 bytes that end the output",
     .max_size = 256,
     .elements = kString},
    {.name = "stop_token_ids",
     .kinds = kArray,
     .help = "ids that end the output",
     .max_size = 65536,
     .elements = kInteger},
    {.name = "ignore_eos", .kinds = kBool, .help = "go on after the end token"},
    {.name = "speculate",
     .kinds = kBool | kInteger,
     .help = "most tokens to guess where the server does; false or 0: none",
     .min = 0,
     .max = 64},
};

Checked<std::vector<std::pair<TokenId, double>>> read_bias(const json::object& object,
                                                           const std::string& path) {
  std::vector<std::pair<TokenId, double>> bias;
  if (object.size() > kMaxBias) {
    return invalid(path,
                   "has " + std::to_string(object.size()) + " pairs, at most 1024 are allowed");
  }
  for (const auto& member : object) {
    const std::string_view key(member.key().data(), member.key().size());
    const std::string place = member_path(path, key);
    TokenId id = 0;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
    if (read.ec != std::errc() || read.ptr != key.data() + key.size() || id < 0) {
      return invalid(place, "the key must be the id of a token");
    }
    if (!member.value().is_number()) {
      return invalid(place, "must be a number");
    }
    const double value = member.value().to_number<double>();
    if (value < -100 || value > 100) {
      return invalid(place, "must be from -100 to 100");
    }
    if (std::ranges::find(bias, id, &std::pair<TokenId, double>::first) != bias.end()) {
      return invalid(place, "the id stands twice");
    }
    bias.emplace_back(id, value);
  }
  return bias;
}

Checked<std::vector<std::string>> read_stops(const json::value& value, const std::string& path) {
  constexpr std::size_t kMaxStops = 16;
  constexpr std::size_t kMaxBytes = 256;
  std::vector<std::string> stops;
  if (value.is_string()) {
    stops.emplace_back(view_of(value.get_string()));
  } else {
    for (const json::value& element : value.get_array()) {
      stops.emplace_back(view_of(element.get_string()));
    }
  }
  if (stops.size() > kMaxStops) {
    return invalid(path, "has " + std::to_string(stops.size()) + " texts, at most 16 are allowed");
  }
  for (std::size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty() || stops[i].size() > kMaxBytes) {
      return invalid(value.is_string() ? path : element_path(path, i), "must have 1 to 256 bytes");
    }
  }
  return stops;
}

void set(double& to, std::optional<double> value) { to = value.value_or(to); }

}  // namespace

std::span<const FieldRule> sampling_rules() { return kSamplingRules; }

Checked<SamplingParams> read_sampling(const json::object& object, std::string_view path) {
  const Members members(object);
  SamplingParams params;
  set(params.temperature, members.number("temperature"));
  set(params.top_p, members.number("top_p"));
  set(params.min_p, members.number("min_p"));
  set(params.repetition_penalty, members.number("repetition_penalty"));
  set(params.presence_penalty, members.number("presence_penalty"));
  set(params.frequency_penalty, members.number("frequency_penalty"));
  params.top_k =
      static_cast<std::int32_t>(std::max<std::int64_t>(members.integer("top_k").value_or(0), 0));
  params.min_tokens = static_cast<std::int32_t>(members.integer("min_tokens").value_or(0));
  params.ignore_eos = members.flag("ignore_eos");
  if (const json::value* const guesses = members.value("speculate")) {
    if (!guesses->is_bool()) {
      params.speculate = static_cast<std::int32_t>(guesses->to_number<std::int64_t>());
    } else if (!guesses->get_bool()) {
      params.speculate = 0;
    }
  }
  if (const auto seed = members.integer("seed")) {
    params.seed = static_cast<std::uint64_t>(*seed);
  }
  if (const json::object* const bias = members.object("logit_bias")) {
    QUIRE_TRY(params.logit_bias, read_bias(*bias, member_path(path, "logit_bias")));
  }
  if (const json::value* const stop = members.value("stop")) {
    QUIRE_TRY(params.stop, read_stops(*stop, member_path(path, "stop")));
  }
  if (const json::array* const ids = members.array("stop_token_ids")) {
    QUIRE_TRY(params.stop_token_ids,
              read_ids(*ids, member_path(path, "stop_token_ids"), INT32_MAX));
  }
  return params;
}

std::int32_t output_length(std::optional<std::int64_t> given, std::int64_t otherwise,
                           std::int64_t room, std::optional<std::int64_t> tenant_limit) {
  std::int64_t length = std::min(given.value_or(otherwise), std::max<std::int64_t>(room, 0));
  if (tenant_limit) {
    length = std::min(length, *tenant_limit);
  }
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(length, 0, INT32_MAX));
}

Checked<std::vector<TokenId>> read_ids(const json::array& list, std::string_view path,
                                       std::int32_t vocab_size) {
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::int64_t* const id = list[i].if_int64();
    if (id == nullptr || *id < 0 || *id >= vocab_size) {
      return invalid(element_path(path, i),
                     "must be an id from 0 to " + std::to_string(vocab_size - 1));
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

}  // namespace quire::server
