#include "quire/model/state_shape.h"

#include <cstdint>
#include <string_view>

#include "quire/base/str.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"

namespace quire::model {
namespace {

Status check(std::string_view name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(name, " is ", value, "; must be in [", least, ", ", most, "]")};
}

}  // namespace

Status StateShape::validate() const {
  if (kind == MixerKind::kAttention) {
    return {};
  }
  QUIRE_TRY_STATUS(check("the number of inputs of a convolution", taps, 2, 64));
  QUIRE_TRY_STATUS(check("the number of channels of a convolution", channels, 1, 1 << 20));
  if (kind == MixerKind::kShortConv) {
    return {};
  }
  QUIRE_TRY_STATUS(check("the number of key heads of a layer with a state", key_heads, 1, 1024));
  QUIRE_TRY_STATUS(
      check("the number of value heads of a layer with a state", value_heads, 1, 1024));
  QUIRE_TRY_STATUS(check("the key size of a layer with a state", key_dim, 1, 1024));
  QUIRE_TRY_STATUS(check("the value size of a layer with a state", value_dim, 1, 1024));
  if (value_heads % key_heads != 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("a layer with a state has ", value_heads,
                          " value heads, which is no multiple of its ", key_heads, " key heads")};
  }
  if (kind == MixerKind::kStateScan && !(least_step >= 0 && least_step <= most_step)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("steps of a state space are bounded by ", least_step, " and ", most_step,
                          "; must be 0 or more, the lower one first")};
  }
  return {};
}

const char* mixer_name(MixerKind kind) {
  switch (kind) {
    case MixerKind::kAttention:
      return "attention";
    case MixerKind::kShortConv:
      return "short convolution";
    case MixerKind::kGatedDelta:
      return "gated delta rule";
    case MixerKind::kStateScan:
      return "state space";
    case MixerKind::kNone:
      return "no mixer";
  }
  return "";
}

}  // namespace quire::model
