// Which layers of a model are attention and which carry a state, as families write it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {

// A list of the kinds of layers: "full_attention" or "attention", or a name of a layer with the
// state of `config.state.kind`.
struct MixerList {
  std::string_view field = "layer_types";
  std::vector<std::string_view> state;
};

// Reads such a list. Sets nothing where there is none.
[[nodiscard]] Status set_mixers(base::JsonView json, const MixerList& list, ModelConfig& config);
// Gives each layer a state but each `interval`th. kInvalidArgument that names `field`.
[[nodiscard]] Status set_mixers_in_turn(std::int64_t interval, std::string_view field,
                                        ModelConfig& config);
// Reads a list of a GGUF file, in which `state` is a layer with a state. It may go on behind the
// layers of the model. Sets nothing where the key holds no list.
[[nodiscard]] Status set_mixers_of_list(const weights::GgufFile& file, const std::string& key,
                                        std::int64_t state, ModelConfig& config);
// Takes the layers for drafts from those of a GGUF file, which counts both: "nextn_predict_layers".
[[nodiscard]] Status read_gguf_drafts(const weights::GgufFile& file, ModelConfig& config);
// Says that a list of KV heads may hold 0, for a layer with a state, or several numbers.
struct KVHeadsRule {
  bool has_states = false;
  bool differ = false;
};

// Returns the number of KV heads of layers that have some, the largest where they may differ. The
// key holds a number or a list. -1: the key is not there.
[[nodiscard]] Result<std::int64_t> read_kv_heads(const weights::GgufFile& file,
                                                 const std::string& key, const KVHeadsRule& rule);

}  // namespace quire::model
