// SmolLM3: Llama with no rope on every fourth layer.
#include <cstddef>
#include <cstdint>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/model/layer_plan.h"
#include "quire/model/layer_windows.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {
namespace {

constexpr std::int64_t kNoRopeInterval = 4;  // of GGUF files, and where config.json says nothing

// Takes the rope from each layer whose number is a multiple of the interval, counting from 1.
void leave_out_rope(std::int64_t interval, ModelConfig& config) {
  config.ropes.assign(static_cast<std::size_t>(config.layers), RopeKind::kMain);
  for (std::size_t i = 0; i < config.ropes.size(); ++i) {
    if ((static_cast<std::int64_t>(i) + 1) % interval == 0) {
      config.ropes[i] = RopeKind::kNone;
    }
  }
}

// A list of 1 for each layer with a rope, and 0 for each without; it may be longer than needed.
Status read_rope_layers(base::JsonView list, ModelConfig& config) {
  if (!list.is_array() || list.size() < static_cast<std::size_t>(config.layers)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("\"no_rope_layers\" must be a list of at least ", config.layers,
                          " numbers, 1 for a layer with a rope")};
  }
  config.ropes.assign(static_cast<std::size_t>(config.layers), RopeKind::kMain);
  for (std::size_t i = 0; i < config.ropes.size(); ++i) {
    const auto has_rope = list[i].exact<std::int64_t>();
    if (!has_rope || *has_rope < 0 || *has_rope > 1) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("\"no_rope_layers\" holds ", base::write_json(list[i]), " for layer ",
                            i, "; must be 0 or 1")};
    }
    config.ropes[i] = *has_rope == 0 ? RopeKind::kNone : RopeKind::kMain;
  }
  return {};
}

Status configure_smollm3(base::JsonView json, ModelConfig& config) {
  QUIRE_TRY(const bool attention_bias, base::get_bool(json, "attention_bias", false));
  config.qkv_bias = attention_bias;
  config.output_bias = attention_bias;
  QUIRE_TRY(config.mlp_bias, base::get_bool(json, "mlp_bias", false));
  if (const base::JsonView list = json.find("no_rope_layers"); !list.is_null()) {
    QUIRE_TRY_STATUS(read_rope_layers(list, config));
  } else {
    QUIRE_TRY(const std::int64_t interval,
              base::get_int(json, "no_rope_layer_interval", kNoRopeInterval));
    if (interval < 1) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("\"no_rope_layer_interval\" is ", interval, "; must be 1 or more")};
    }
    leave_out_rope(interval, config);
  }
  return set_windows_without_rope(json, config);
}

Status configure_smollm3_gguf(const weights::GgufFile& /*file*/, ModelConfig& config) {
  leave_out_rope(kNoRopeInterval, config);
  return {};
}

}  // namespace

const Family& smollm3_family() {
  static const Family family = [] {
    TensorNames gguf = gguf_names();
    gguf.interleaved = true;
    return Family{.name = "smollm3",
                  .architecture = "SmolLM3ForCausalLM",
                  .gguf_architecture = "smollm3",
                  .defaults = {.context_length = 32768,
                               .kv_heads = 4,
                               .vocab_size = 128256,
                               .hidden_size = 2048,
                               .intermediate_size = 11008,
                               .layers = 36,
                               .heads = 16,
                               .tied_embeddings = true,
                               .theta = 2e6},
                  .fields = {"attention_bias", "layer_types", "mlp_bias", "no_rope_layer_interval",
                             "no_rope_layers", "sliding_window", "use_sliding_window"},
                  .fixed = {},
                  .configure = configure_smollm3,
                  .configure_gguf = configure_smollm3_gguf,
                  .hf = hf_names(),
                  .gguf = gguf};
  }();
  return family;
}

}  // namespace quire::model
