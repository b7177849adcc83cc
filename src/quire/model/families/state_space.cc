#include "quire/model/families/state_space.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/families/ssm_keys.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_shape.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"
#include "quire/weights/tensor_info.h"

namespace quire::model {
namespace {

// Returns a bound, of which infinity has two spellings.
Result<double> bound_of(base::JsonView bound, std::string_view key) {
  const base::JsonView spelled = bound.is_object() ? bound.find("__float__") : bound;
  if (spelled.is_number()) {
    return spelled.as_double();
  }
  if (spelled == "Infinity") {
    return kNoLimit;
  }
  return {
      ErrorCode::kInvalidArgument,
      base::str_cat(base::quoted(key), " holds ", base::write_json(bound), ", which is no bound")};
}

}  // namespace

Result<std::int32_t> get_space_size(base::JsonView json, std::string_view key,
                                    std::int64_t absent) {
  QUIRE_TRY(const std::int64_t size, base::get_int(json, key, absent));
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(size, 0, 1 << 20));
}

Status read_step_limit(base::JsonView json, std::string_view key, ModelConfig& config) {
  StateShape& state = config.state;
  state.least_step = 0;
  state.most_step = kNoLimit;
  const base::JsonView bounds = json.find(key);
  if (bounds.is_null()) {
    return {};
  }
  if (!bounds.is_array() || bounds.size() != 2) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(base::quoted(key), " must be a list of two bounds")};
  }
  QUIRE_TRY(state.least_step, bound_of(bounds[0], key));
  QUIRE_TRY(state.most_step, bound_of(bounds[1], key));
  return {};
}

void set_space_channels(ModelConfig& config) {
  StateShape& state = config.state;
  const std::int64_t channels = std::int64_t{2} * state.key_heads * state.key_dim +
                                std::int64_t{state.value_heads} * state.value_dim;
  state.channels = static_cast<std::int32_t>(std::min<std::int64_t>(channels, 1 << 30));
}

void forget_unused_states(ModelConfig& config) {
  if (std::ranges::find(config.mixers, config.state.kind) == config.mixers.end()) {
    config.mixers.clear();
    config.state = {};
  }
}

Status read_state_spaces(const weights::GgufFile& file, const std::string& prefix,
                         ModelConfig& config) {
  StateShape& state = config.state;
  state.kind = MixerKind::kStateScan;
  QUIRE_TRY_STATUS(read_ssm_sizes(file, prefix, state));
  state.conv_bias = std::ranges::any_of(file.tensors(), [](const weights::TensorInfo& tensor) {
    return tensor.name.ends_with(".ssm_conv1d.bias");
  });
  set_space_channels(config);
  return {};
}

void set_space_names(std::string_view beginning, TensorNames& names) {
  const bool is_mixer = beginning == "mixer.";
  names.state_in = {is_mixer ? "mixer.in_proj" : "mamba.in_proj"};
  names.state_out = is_mixer ? "mixer.out_proj" : "mamba.out_proj";
  names.state_norm = is_mixer ? "mixer.norm" : "mamba.norm";
  names.conv = is_mixer ? "mixer.conv1d" : "mamba.conv1d";
  names.decay = is_mixer ? "mixer.A_log" : "mamba.A_log";
  names.decay_shift = is_mixer ? "mixer.dt_bias" : "mamba.dt_bias";
  names.state_skip = is_mixer ? "mixer.D" : "mamba.D";
  names.decay_is_log = true;
}

void set_space_gguf_names(TensorNames& names) {
  names.state_in = {"ssm_in"};
  names.state_out = "ssm_out";
  names.state_norm = "ssm_norm";
  names.conv = "ssm_conv1d";
  names.decay = "ssm_a";
  names.decay_shift = "ssm_dt.bias";
  names.state_skip = "ssm_d";
}

}  // namespace quire::model
