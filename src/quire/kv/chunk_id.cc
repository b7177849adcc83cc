#include "quire/kv/chunk_id.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "quire/base/sha256.h"
#include "quire/chunk_types.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

void add_identity(base::FieldHasher& hasher, const ChunkIdentity& identity) {
  hasher.add(identity.model)
      .add(identity.salt)
      .add(identity.anchor)
      .add(chunk_type_name(identity.type))
      .add(identity.serial);
  if (!identity.kv_dtype.empty()) {  // chunks in the pool's own format keep the ids that they had
    hasher.add("kv_dtype").add(identity.kv_dtype);
  }
}

}  // namespace

std::string chunk_id(const ChunkIdentity& identity, std::span<const TokenId> tokens) {
  base::FieldHasher hasher;
  hasher.add("quire chunk 1");
  add_identity(hasher, identity);
  hasher.add_bytes(std::as_bytes(tokens));
  return base::to_hex(hasher.finish());
}

std::string variant_id(std::string_view chunk_id, std::string_view before, std::int32_t gap) {
  base::FieldHasher hasher;
  hasher.add("quire chunk variant 1").add(chunk_id).add(before).add(std::to_string(gap));
  return base::to_hex(hasher.finish());
}

std::string narrowed_id(std::string_view chunk_id, std::string_view kv_dtype) {
  base::FieldHasher hasher;
  hasher.add("quire chunk narrowed 1").add(chunk_id).add(kv_dtype);
  return base::to_hex(hasher.finish());
}

std::string chunk_text_id(const ChunkIdentity& identity, const ChunkAffixes& around,
                          std::string_view text) {
  base::FieldHasher hasher;
  hasher.add("quire chunk text 1");
  add_identity(hasher, identity);
  hasher.add(around.prefix).add(around.suffix).add(text);
  return base::to_hex(hasher.finish());
}

}  // namespace quire::kv
