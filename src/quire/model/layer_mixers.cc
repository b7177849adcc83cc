#include "quire/model/layer_mixers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"
#include "quire/weights/gguf_value.h"

namespace quire::model {

Status set_mixers(base::JsonView json, const MixerList& list, ModelConfig& config) {
  const base::JsonView types = json.find(list.field);
  if (types.is_null()) {
    return {};
  }
  if (!types.is_array() || types.size() != static_cast<std::size_t>(config.layers)) {
    return {
        ErrorCode::kInvalidArgument,
        base::str_cat(base::quoted(list.field), " must be a list of ", config.layers, " names")};
  }
  config.mixers.clear();
  for (std::size_t i = 0; i < types.size(); ++i) {
    const base::JsonView type = types[i];
    const bool is_attention = type == "full_attention" || type == "attention";
    if (!is_attention &&
        std::ranges::none_of(list.state, [&](auto name) { return type == name; })) {
      return {ErrorCode::kUnsupported,
              base::str_cat(base::quoted(list.field), " has ", base::quoted(base::write_json(type)),
                            " for layer ", i, "; known: full_attention, ", list.state.front())};
    }
    config.mixers.push_back(is_attention ? MixerKind::kAttention : config.state.kind);
  }
  return {};
}

Status set_mixers_in_turn(std::int64_t interval, std::string_view field, ModelConfig& config) {
  if (interval < 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(field, " is ", interval, "; must be 1 or more")};
  }
  config.mixers.clear();
  for (std::int32_t i = 0; i < config.layers; ++i) {
    config.mixers.push_back((i + 1) % interval == 0 ? MixerKind::kAttention : config.state.kind);
  }
  return {};
}

Status set_mixers_of_list(const weights::GgufFile& file, const std::string& key, std::int64_t state,
                          ModelConfig& config) {
  const weights::GgufValue* value = file.find(key);
  const auto* list = value == nullptr ? nullptr : std::get_if<std::vector<std::int64_t>>(value);
  if (list == nullptr) {
    return {};
  }
  const auto layers = static_cast<std::size_t>(config.layers);
  if (list->size() != layers && list->size() != layers + config.draft_layers) {
    return {ErrorCode::kInvalidArgument, base::str_cat("GGUF key ", key, " lists ", list->size(),
                                                       " of ", config.layers, " layers")};
  }
  config.mixers.clear();
  for (const std::int64_t item : std::span(*list).first(layers)) {
    config.mixers.push_back(item == state ? config.state.kind : MixerKind::kAttention);
  }
  return {};
}

Status read_gguf_drafts(const weights::GgufFile& file, ModelConfig& config) {
  QUIRE_TRY(const auto architecture, file.get_string("general.architecture", ""));
  const std::string key = architecture + ".nextn_predict_layers";
  QUIRE_TRY(const std::int64_t drafts, file.get_int(key, 0));
  if (drafts < 0 || drafts >= config.layers) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("GGUF key ", key, " is ", drafts, " of ", config.layers, " layers")};
  }
  config.draft_layers = static_cast<std::int32_t>(drafts);
  config.layers -= config.draft_layers;
  config.window_tokens.resize(static_cast<std::size_t>(config.layers));
  return {};
}

Result<std::int64_t> read_kv_heads(const weights::GgufFile& file, const std::string& key,
                                   const KVHeadsRule& rule) {
  const weights::GgufValue* value = file.find(key);
  const auto* list = value == nullptr ? nullptr : std::get_if<std::vector<std::int64_t>>(value);
  if (list == nullptr || list->empty()) {
    return file.get_int(key, -1);
  }
  const std::int64_t most = std::ranges::max(*list);
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::int64_t heads = (*list)[i];
    if (heads != most && !(heads == 0 && rule.has_states) && !(heads > 0 && rule.differ)) {
      return {ErrorCode::kUnsupported,
              base::str_cat("GGUF key ", key, " is ", heads, " for layer ", i, " and ", most,
                            " for others, which is not implemented")};
    }
  }
  return most;
}

}  // namespace quire::model
