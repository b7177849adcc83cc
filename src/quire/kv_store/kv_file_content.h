// What a KV file holds besides KV: plain structs and what they must satisfy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/kv_fingerprint.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/types.h"

namespace quire::kv_store {

inline constexpr std::size_t kMaxMetadataBytes = std::size_t{1} << 20;

// A run of consecutive tokens with KV; token i is in block i / block_tokens. The first blocks may
// be lost: the model's window has freed their KV, and of their tokens the ids alone are known.
struct SavedRun {
  std::vector<TokenId> tokens;      // at least one
  std::int32_t start_position = 0;  // use position of token 0
  std::int32_t lost_blocks = 0;     // all of them full

  [[nodiscard]] std::int32_t num_blocks(int block_tokens) const {
    return static_cast<std::int32_t>((tokens.size() + static_cast<std::size_t>(block_tokens) - 1) /
                                     static_cast<std::size_t>(block_tokens));
  }
  [[nodiscard]] std::int32_t num_blocks_with_kv(int block_tokens) const {
    return num_blocks(block_tokens) - lost_blocks;
  }
  [[nodiscard]] std::int64_t lost_tokens(int block_tokens) const {
    return std::int64_t{lost_blocks} * block_tokens;
  }
};

// What a KV file says besides the KV itself.
struct KVFileContent {
  base::KVFingerprint fingerprint;   // never empty
  tensor::KVGeometry geometry;       // of the payload
  std::vector<SavedRun> runs;        // may be empty: a file of metadata only
  std::string metadata_json = "{}";  // an object; the caller's; at most kMaxMetadataBytes
  std::string object_hash;  // 64 hexadecimal digits: what the KV is, given by Store; "" elsewhere
};

// Head blocks with KV of a run over all layers and heads; nothing if that is no int64.
// Precondition: check_lost is ok.
[[nodiscard]] std::optional<std::int64_t> head_blocks_of(const tensor::KVGeometry& geometry,
                                                         const SavedRun& run);

// kHashDigits lower-case hexadecimal digits.
inline constexpr std::size_t kHashDigits = 64;
[[nodiscard]] bool is_hash(std::string_view text);

// kInvalidArgument unless it is a JSON object of at most kMaxMetadataBytes.
[[nodiscard]] Status check_metadata(const std::string& metadata);

// kInvalidArgument for more lost blocks than there are, and in a model that forgets none.
[[nodiscard]] Status check_lost(const tensor::KVGeometry& geometry, const SavedRun& run);
// kCorrupt where a row right behind the run would see a block that is lost.
[[nodiscard]] Status check_goes_on(const tensor::KVGeometry& geometry, const SavedRun& run);

// Lets only through what a file can hold: kInvalidArgument naming what is wrong.
[[nodiscard]] Status check_content(const KVFileContent& content);

// What differs, with both values ("block_tokens is 32, here it is 16"); "" for the same layout.
[[nodiscard]] std::string geometry_difference(const tensor::KVGeometry& theirs,
                                              const tensor::KVGeometry& ours);

}  // namespace quire::kv_store
