// The content of a KV file besides its KV: plain structs and the rules that they satisfy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/kv_fingerprint.h"
#include "quire/kv_store/saved_states.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/types.h"

namespace quire::kv_store {

inline constexpr std::size_t kMaxMetadataBytes = std::size_t{1} << 20;

// The type that KV is computed in, and the format in which it is stored.
struct KVType {
  tensor::DType dtype = tensor::DType::kFloat32;
  tensor::KVFormat format = tensor::KVFormat::kPlain;
  friend bool operator==(const KVType&, const KVType&) = default;
};
[[nodiscard]] KVType kv_type_of(const tensor::KVGeometry& geometry);
// Returns a geometry whose KV has this type, if one is given. O(layers).
[[nodiscard]] tensor::KVGeometry with_type(tensor::KVGeometry geometry,
                                           const std::optional<KVType>& type);
// Returns the kv_dtype of a type.
[[nodiscard]] const char* kv_type_name(const KVType& type);

// A run of consecutive tokens with KV. Token i is in block i / block_tokens. The first blocks may
// be lost: the model's window has freed their KV, and only the ids of their tokens are known. Where
// some layers have a window and others none, they may have lost their window parts alone.
struct SavedRun {
  std::vector<TokenId> tokens;      // at least one
  std::int32_t start_position = 0;  // use position of token 0
  std::int32_t lost_blocks = 0;     // lost leading blocks, all of them full
  std::int32_t lost_parts = 0;      // leading full blocks without KV in layers with a window
  std::optional<KVType> type = {};  // absent: that of the file, which is never repeated here

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
  // Returns how many leading blocks have no KV in a layer.
  [[nodiscard]] std::int32_t lost_in(const tensor::KVGeometry& geometry, int layer) const {
    return geometry.window_of(layer) > 0 ? lost_blocks + lost_parts : lost_blocks;
  }
};

// Everything in a KV file but the KV itself.
struct KVFileContent {
  base::KVFingerprint fingerprint;  // never empty
  tensor::KVGeometry geometry;      // geometry of the payload, but of runs with a type of their own
  std::vector<SavedRun> runs;       // may be empty: a file of metadata only
  std::string metadata_json = "{}";  // an object; the caller's; at most kMaxMetadataBytes
  std::string object_hash;  // 64 hexadecimal digits that identify the KV in a Store; else ""
  SavedStates states = {};  // of a model whose layers carry some
  // Returns the tokens of all runs.
  [[nodiscard]] std::int64_t num_tokens() const;
  // Returns the geometry of one run. O(layers).
  [[nodiscard]] tensor::KVGeometry geometry_of(std::size_t run) const;
  // Returns the bytes of one of its head blocks. O(1).
  [[nodiscard]] std::int64_t head_block_bytes(std::size_t run) const;
};

// Returns the number of a run's head blocks with KV over all layers and heads, or nullopt if it
// does not fit int64. Precondition: check_lost() is OK.
[[nodiscard]] std::optional<std::int64_t> head_blocks_of(const tensor::KVGeometry& geometry,
                                                         const SavedRun& run);

// Returns whether the runs are these tokens, one run behind the other.
[[nodiscard]] bool holds_tokens(const KVFileContent& content, std::span<const TokenId> tokens);

inline constexpr std::size_t kHashDigits = 64;
// Returns true if the text is kHashDigits lower-case hexadecimal digits.
[[nodiscard]] bool is_hash(std::string_view text);

// Returns kInvalidArgument unless it is a JSON object of at most kMaxMetadataBytes.
[[nodiscard]] Status check_metadata(const std::string& metadata);

// Returns kInvalidArgument for more lost blocks or window parts than the run has. Likewise for lost
// blocks in a model without windows in all layers, and for lost parts in one without some.
[[nodiscard]] Status check_lost(const tensor::KVGeometry& geometry, const SavedRun& run);
// Returns kCorrupt if a row right behind the run would see a lost block or window part.
[[nodiscard]] Status check_goes_on(const tensor::KVGeometry& geometry, const SavedRun& run);

// Returns kInvalidArgument that names the first thing that a file cannot hold.
[[nodiscard]] Status check_content(const KVFileContent& content);

// Returns the first difference with both values ("block_tokens is 32, here it is 16"), or "" for
// one layout.
[[nodiscard]] std::string geometry_difference(const tensor::KVGeometry& theirs,
                                              const tensor::KVGeometry& ours);

}  // namespace quire::kv_store
