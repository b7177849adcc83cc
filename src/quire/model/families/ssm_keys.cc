#include "quire/model/families/ssm_keys.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "quire/base/str.h"
#include "quire/model/state_shape.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {

Result<std::int32_t> get_gguf_size(const weights::GgufFile& file, const std::string& key) {
  QUIRE_TRY(const std::int64_t value, file.get_int(key, 0));
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(value, 0, 1 << 20));
}

Status read_ssm_sizes(const weights::GgufFile& file, const std::string& prefix, StateShape& state) {
  QUIRE_TRY(state.taps, get_gguf_size(file, prefix + "ssm.conv_kernel"));
  QUIRE_TRY(state.key_dim, get_gguf_size(file, prefix + "ssm.state_size"));
  QUIRE_TRY(state.key_heads, get_gguf_size(file, prefix + "ssm.group_count"));
  QUIRE_TRY(state.value_heads, get_gguf_size(file, prefix + "ssm.time_step_rank"));
  QUIRE_TRY(const std::int32_t inner, get_gguf_size(file, prefix + "ssm.inner_size"));
  if (state.value_heads == 0 || inner % state.value_heads != 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("GGUF key ", prefix, "ssm.inner_size is ", inner,
                          ", which is no multiple of ", state.value_heads, ", ", prefix,
                          "ssm.time_step_rank")};
  }
  state.value_dim = inner / state.value_heads;
  return {};
}

}  // namespace quire::model
