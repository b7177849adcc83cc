#include "quire/model/expert_fields.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

Result<std::int32_t> as_count(std::int64_t value, std::string_view name) {
  if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(name, " is ", value, "; must be a 32-bit count")};
  }
  return static_cast<std::int32_t>(value);
}

Result<std::int32_t> read_count(base::JsonView json, std::string_view key, std::int32_t absent) {
  QUIRE_TRY(const std::int64_t value, base::get_int(json, key, absent));
  return as_count(value, base::quoted(key));
}

// Gives all layers experts, if there are any.
void set_all_layers(ModelConfig& config) {
  config.mlps.clear();
  if (config.experts.count > 0) {
    config.mlps.assign(static_cast<std::size_t>(config.layers), MlpKind::kExperts);
  } else {
    config.experts = {};
  }
}

// Leaves nothing of experts where no layer has any.
void forget_unused(ModelConfig& config) {
  if (std::ranges::find(config.mlps, MlpKind::kExperts) == config.mlps.end()) {
    config.experts = {};
    config.mlps.clear();
  }
}

RouterRule rule_of(bool by_sigmoid, bool normalised) {
  if (by_sigmoid) {
    return normalised ? RouterRule::kSigmoidOfChosen : RouterRule::kSigmoidOfAll;
  }
  return normalised ? RouterRule::kSoftmaxOfChosen : RouterRule::kSoftmaxOfAll;
}

FieldNames expert_names(std::string_view count, std::string_view chosen, std::string_view size) {
  FieldNames names;
  names.experts = count;
  names.chosen_experts = chosen;
  names.expert_size = size;
  return names;
}

// Checks bounds here, where the names of the fields are known.
Status check_bounds(const Experts& experts, const FieldNames& names) {
  if (experts.count == 0) {
    return {};
  }
  struct Bound {
    std::string_view name;
    std::int64_t value;
    std::int64_t most;
  };
  for (const Bound& bound :
       {Bound{names.experts, experts.count, 1024},
        Bound{names.chosen_experts, experts.chosen, experts.count},
        Bound{names.expert_size, experts.intermediate_size, std::int64_t{1} << 20}}) {
    if (bound.value < 1 || bound.value > bound.most) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat(bound.name, " is ", bound.value, "; must be in [1, ", bound.most, "]")};
    }
  }
  return {};
}

}  // namespace

Status read_experts(base::JsonView json, const ExpertDefaults& defaults, ModelConfig& config) {
  const bool has_own = !defaults.count_field.empty();
  const std::string_view one_field = has_own ? defaults.count_field : "num_experts";
  constexpr std::string_view kOther = "num_local_experts";
  const std::string_view chosen_field = defaults.chosen_field;
  Experts& experts = config.experts;
  QUIRE_TRY(const std::int32_t local,
            has_own ? defaults.count : read_count(json, kOther, defaults.count));
  QUIRE_TRY(experts.count, read_count(json, one_field, local));
  if (!has_own && !json.find(kOther).is_null() && local != experts.count) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(base::quoted(one_field), " is ", experts.count, ", but ",
                          base::quoted(kOther), " is ", local)};
  }
  QUIRE_TRY(experts.chosen, read_count(json, chosen_field, defaults.chosen));
  QUIRE_TRY(experts.intermediate_size, read_count(json, defaults.size_field, defaults.size));
  const std::string_view count_name =
      json.find(one_field).is_null() && !has_own ? kOther : one_field;
  QUIRE_TRY_STATUS(
      check_bounds(experts, expert_names(base::quoted(count_name), base::quoted(chosen_field),
                                         base::quoted(defaults.size_field))));
  set_all_layers(config);
  return {};
}

Status read_dense_layers(base::JsonView json, ModelConfig& config) {
  constexpr std::string_view kStep = "decoder_sparse_step";
  constexpr std::string_view kDense = "mlp_only_layers";
  QUIRE_TRY(const std::int64_t step, base::get_int(json, kStep, 1));
  if (step < 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(base::quoted(kStep), " is ", step, "; must be 1 or more")};
  }
  const base::JsonView list = json.find(kDense);
  if (!list.is_null() && !list.is_array()) {
    return {ErrorCode::kInvalidArgument, base::str_cat(base::quoted(kDense), " must be a list")};
  }
  for (std::size_t i = 0; i < config.mlps.size(); ++i) {
    if ((static_cast<std::int64_t>(i) + 1) % step != 0) {
      config.mlps[i] = MlpKind::kDense;
    }
  }
  for (const base::JsonView item : list.elements()) {
    const auto layer = item.exact<std::int64_t>();
    if (!layer || *layer < 0 || *layer >= config.layers) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat(base::quoted(kDense), " holds ", base::write_json(item),
                            ", which is no layer of ", config.layers)};
    }
    if (!config.mlps.empty()) {
      config.mlps[static_cast<std::size_t>(*layer)] = MlpKind::kDense;
    }
  }
  forget_unused(config);
  return {};
}

void forget_unused_experts(ModelConfig& config) {
  if (std::ranges::find(config.mlps, MlpKind::kExperts) == config.mlps.end()) {
    config.experts = {};
  }
}

Status set_first_dense(std::int64_t count, std::string_view name, ModelConfig& config) {
  if (count < 0 || count > config.layers) {
    return {ErrorCode::kInvalidArgument, base::str_cat(name, " is ", count, "; must be in [0, ",
                                                       config.layers, "], of the layers")};
  }
  const auto first = std::min(static_cast<std::size_t>(count), config.mlps.size());
  std::fill_n(config.mlps.begin(), first, MlpKind::kDense);
  forget_unused(config);
  return {};
}

Status set_shared_size(std::int64_t size, std::string_view name, ModelConfig& config) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  if (size < 1 || size > kMost) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(name, " is ", size, "; must be in [1, ", kMost, "]")};
  }
  config.experts.shared_size = static_cast<std::int32_t>(size);
  return {};
}

Status read_gguf_experts(const weights::GgufFile& file, const GgufExperts& given,
                         ModelConfig& config) {
  const auto key = [&](std::string_view name) {
    return base::str_cat(given.architecture, ".", name);
  };
  const auto count = [&](std::string_view name, std::int64_t absent) -> Result<std::int32_t> {
    QUIRE_TRY(const std::int64_t value, file.get_int(key(name), absent));
    return as_count(value, base::str_cat("GGUF key ", key(name)));
  };
  Experts& experts = config.experts;
  QUIRE_TRY(experts.count, count("expert_count", 0));
  QUIRE_TRY(experts.chosen, count("expert_used_count", 0));
  QUIRE_TRY(experts.intermediate_size, count("expert_feed_forward_length", given.absent_size));
  QUIRE_TRY(const bool normalised, file.get_bool(key("expert_weights_norm"), true));
  experts.rule = rule_of(given.by_sigmoid, normalised);
  const std::int64_t implemented = given.by_sigmoid ? 2 : 1;  // of llama_expert_gating_func_type
  const std::string gating = key("expert_gating_func");
  QUIRE_TRY(const std::int64_t gating_func, file.get_int(gating, implemented));
  if (gating_func != implemented && gating_func != 0) {
    return {ErrorCode::kUnsupported,
            base::str_cat("GGUF key ", gating, " is ", gating_func, "; only ",
                          given.by_sigmoid ? "sigmoid, 2" : "softmax, 1", ", is implemented for ",
                          config.family, " models")};
  }
  const std::string groups = key("expert_group_count");
  QUIRE_TRY(const std::int64_t group_count, file.get_int(groups, 1));
  if (group_count > 1 && !given.may_group) {
    return {ErrorCode::kUnsupported,
            base::str_cat("GGUF key ", groups, " is ", group_count, "; only 1 is implemented")};
  }
  if (group_count > 1) {
    QUIRE_TRY(experts.groups, as_count(group_count, base::str_cat("GGUF key ", groups)));
    QUIRE_TRY(experts.chosen_groups, count("expert_group_used_count", 0));
  }
  const std::string scale = key("expert_weights_scale");
  QUIRE_TRY(const double factor, file.get_double(scale, 1.0));
  experts.weight_scale = factor == 0.0 ? 1.0 : factor;  // 0 stands for none
  QUIRE_TRY_STATUS(check_bounds(
      experts, expert_names(base::str_cat("GGUF key ", key("expert_count")),
                            base::str_cat("GGUF key ", key("expert_used_count")),
                            base::str_cat("GGUF key ", key("expert_feed_forward_length")))));
  set_all_layers(config);
  return {};
}

}  // namespace quire::model
