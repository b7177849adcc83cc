#include "quire/tiers/kv_identity.h"

#include <string>
#include <string_view>

#include "quire/base/kv_fingerprint.h"
#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/device/cpu/isa.h"

namespace quire::tiers {

std::string kernels_here() {
  // Counts changes of the kernels that change bits. 2: row scales of quantised products have few
  // bits. 3: AVX-512 takes 2^x of attention from another series. 4: queries carry the scale of
  // scores, and 2^x is of degree 3 there.
  constexpr int kArithmetic = 4;
  return base::str_cat(device::isa_name(device::best_isa()), "-", kArithmetic);
}

base::KVFingerprint kv_fingerprint(std::string_view model_digest, std::string_view kernels) {
  base::FieldHasher hasher;
  hasher.add(model_digest);
  hasher.add(kernels);
  return {.bytes = hasher.finish()};
}

}  // namespace quire::tiers
