// Which layers of a model are attention and which carry a state, as families write it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {

// Reads "layer_types": "full_attention" for attention, `name` for a layer with the state of
// `config.state.kind`. Sets nothing where there is no such list.
[[nodiscard]] Status set_mixers(base::JsonView json, std::string_view name, ModelConfig& config);
// Gives each layer a state but each `interval`th. kInvalidArgument that names `field`.
[[nodiscard]] Status set_mixers_in_turn(std::int64_t interval, std::string_view field,
                                        ModelConfig& config);
// Reads a list of a GGUF file, in which `state` is a layer with a state. It may go on behind the
// layers of the model. Sets nothing where the key holds no list.
[[nodiscard]] Status set_mixers_of_list(const weights::GgufFile& file, const std::string& key,
                                        std::int64_t state, ModelConfig& config);
// Returns the number of KV heads of layers that have some. The key holds a number or a list, in
// which 0 is a layer with a state where `has_states` allows that. -1: the key is not there.
[[nodiscard]] Result<std::int64_t> read_kv_heads(const weights::GgufFile& file,
                                                 const std::string& key, bool has_states);

}  // namespace quire::model
