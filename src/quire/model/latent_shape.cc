#include "quire/model/latent_shape.h"

#include <cstdint>
#include <string_view>

#include "quire/base/str.h"
#include "quire/kernels/kv_codes.h"
#include "quire/result.h"

namespace quire::model {
namespace {

Status check_size(std::string_view name, std::int64_t value, std::int64_t least,
                  std::int64_t most) {
  if (value >= least && value <= most) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(name, " is ", value, "; must be in [", least, ", ", most, "]")};
}

}  // namespace

Status LatentShape::validate() const {
  if (!is_there()) {
    return {};
  }
  constexpr std::int64_t kMostHead = 1024;
  QUIRE_TRY_STATUS(check_size("the rank of keys and values", rank, 1, kMostHead));
  QUIRE_TRY_STATUS(check_size("the rank of queries", query_rank, 0, std::int64_t{1} << 17));
  QUIRE_TRY_STATUS(check_size("the rotated size of a head", rope_dim, 2, kMostHead));
  QUIRE_TRY_STATUS(check_size("the size of a head that is not rotated", plain_dim, 1, kMostHead));
  QUIRE_TRY_STATUS(check_size("the size of a value head", value_dim, 1, kMostHead));
  if (kv_dim() > kernels::kMaxHeadDim) {
    return {ErrorCode::kUnsupported,
            base::str_cat("a latent of ", rank, " and a rotated key of ", rope_dim,
                          " are more than the ", kernels::kMaxHeadDim,
                          " values of a head that are implemented")};
  }
  if (rope_dim % 2 != 0) {
    return {ErrorCode::kUnsupported,
            base::str_cat("the rotated size of a head is ", rope_dim, "; must be even")};
  }
  return {};
}

}  // namespace quire::model
