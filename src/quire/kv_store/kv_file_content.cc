#include "quire/kv_store/kv_file_content.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/kv/behind_window.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_states.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/types.h"

namespace quire::kv_store {
namespace {

// Returns how many leading blocks no row behind so many tokens sees in layers with a window, where
// others have none.
std::int32_t passed_parts(const tensor::KVGeometry& geometry, std::int64_t tokens) {
  return kv::parts_behind_window({.block_tokens = geometry.block_tokens,
                                  .window_group = {.tokens = geometry.window_group().tokens}},
                                 static_cast<std::int32_t>(tokens));
}

Status check_run(const SavedRun& run) {
  if (run.tokens.empty()) {
    return {ErrorCode::kInvalidArgument, "has no tokens"};
  }
  const auto room = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
  if (run.start_position < 0 || run.tokens.size() > room ||
      static_cast<std::size_t>(run.start_position) > room - run.tokens.size()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("begins at position ", run.start_position, " with ", run.tokens.size(),
                          " tokens; positions are 0 to 2147483647")};
  }
  const auto bad =
      std::find_if(run.tokens.begin(), run.tokens.end(), [](TokenId id) { return id < 0; });
  if (bad != run.tokens.end()) {
    return {ErrorCode::kInvalidArgument, base::str_cat("token id ", *bad, " is negative")};
  }
  return {};
}

}  // namespace

KVType kv_type_of(const tensor::KVGeometry& geometry) {
  return {.dtype = geometry.dtype, .format = geometry.format};
}

tensor::KVGeometry with_type(tensor::KVGeometry geometry, const std::optional<KVType>& type) {
  geometry.dtype = type ? type->dtype : geometry.dtype;
  geometry.format = type ? type->format : geometry.format;
  return geometry;
}

const char* kv_type_name(const KVType& type) {
  return tensor::kv_format_name(type.format, type.dtype);
}

tensor::KVGeometry KVFileContent::geometry_of(std::size_t run) const {
  return with_type(geometry, runs[run].type);
}

std::int64_t KVFileContent::num_tokens() const {
  std::int64_t tokens = 0;
  for (const SavedRun& run : runs) {
    tokens += std::ssize(run.tokens);
  }
  return tokens;
}

std::int64_t KVFileContent::head_block_bytes(std::size_t run) const {
  const KVType type = runs[run].type.value_or(kv_type_of(geometry));
  const tensor::KVGeometry head{.layers = geometry.layers,
                                .kv_heads = geometry.kv_heads,
                                .head_dim = geometry.head_dim,
                                .dtype = type.dtype,
                                .block_tokens = geometry.block_tokens,
                                .window_tokens = {},
                                .format = type.format};
  return head.head_block_bytes();
}

Status check_metadata(const std::string& metadata) {
  if (metadata.size() > kMaxMetadataBytes) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("metadata of ", metadata.size(), " bytes; at most ", kMaxMetadataBytes)};
  }
  QUIRE_TRY(const auto value, base::parse_json(metadata, "metadata"));
  if (!value.view().is_object()) {
    return {ErrorCode::kInvalidArgument, "metadata is not a json object"};
  }
  return {};
}

std::optional<std::int64_t> head_blocks_of(const tensor::KVGeometry& geometry,
                                           const SavedRun& run) {
  std::int64_t count = run.num_blocks_with_kv(geometry.block_tokens);
  const bool is_mixed = !geometry.layer_sizes.empty();
  const std::int64_t layers = is_mixed ? 1 : geometry.layers;
  const std::int64_t heads = is_mixed ? geometry.all_stored_heads() : geometry.kv_heads;
  if (__builtin_mul_overflow(count, layers, &count) ||
      __builtin_mul_overflow(count, heads, &count)) {
    return std::nullopt;
  }
  for (int layer = 0; run.lost_parts > 0 && layer < geometry.layers; ++layer) {
    const std::int64_t lost = run.lost_in(geometry, layer) - run.lost_blocks;
    count -= lost * geometry.stored_heads(layer);
  }
  return count;
}

Status check_lost(const tensor::KVGeometry& geometry, const SavedRun& run) {
  if (run.lost_parts < 0 ||
      std::int64_t{run.lost_parts} * geometry.block_tokens > std::ssize(run.tokens)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("has lost the window parts of ", run.lost_parts, " blocks, its ",
                          run.tokens.size(), " tokens fill ",
                          run.tokens.size() / static_cast<std::size_t>(geometry.block_tokens))};
  }
  if (run.lost_parts > 0 && geometry.window_group().tokens == 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("has lost the window parts of ", run.lost_parts,
                          " blocks in a model whose blocks have none")};
  }
  if (run.lost_blocks < 0 || run.lost_tokens(geometry.block_tokens) > std::ssize(run.tokens)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("has lost ", run.lost_blocks, " blocks, its ", run.tokens.size(),
                          " tokens fill ",
                          run.tokens.size() / static_cast<std::size_t>(geometry.block_tokens))};
  }
  if (run.lost_blocks > 0 && geometry.forget_after_tokens() == 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("has lost ", run.lost_blocks,
                          " blocks in a model that forgets none: a layer has no window")};
  }
  return {};
}

Status check_goes_on(const tensor::KVGeometry& geometry, const SavedRun& run) {
  const kv::LedgerConfig ledger{.block_tokens = geometry.block_tokens,
                                .window_tokens = geometry.forget_after_tokens()};
  const auto tokens = static_cast<std::int32_t>(run.tokens.size());
  const std::int32_t parts = passed_parts(geometry, tokens);
  if (run.lost_parts > parts) {
    return {ErrorCode::kCorrupt,
            base::str_cat("a saved run of ", tokens, " tokens has lost the window parts of its ",
                          "first ", run.lost_parts, " blocks, of which the window of ",
                          geometry.window_group().tokens, " tokens has passed ", parts,
                          "; save the sequence again")};
  }
  const std::int32_t unseen = kv::blocks_behind_window(ledger, tokens);
  if (run.lost_blocks <= unseen) {
    return {};
  }
  return {ErrorCode::kCorrupt,
          base::str_cat("a saved run of ", run.tokens.size(), " tokens has lost its first ",
                        run.lost_blocks, " blocks, of which the window of ", ledger.window_tokens,
                        " tokens has passed ", unseen, "; save the sequence again")};
}

bool holds_tokens(const KVFileContent& content, std::span<const TokenId> tokens) {
  for (const SavedRun& run : content.runs) {
    if (run.tokens.size() > tokens.size() ||
        !std::ranges::equal(run.tokens, tokens.first(run.tokens.size()))) {
      return false;
    }
    tokens = tokens.subspan(run.tokens.size());
  }
  return tokens.empty();
}

bool is_hash(std::string_view text) {
  return text.size() == kHashDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

Status check_content(const KVFileContent& content) {
  if (content.fingerprint.empty()) {
    return {ErrorCode::kInvalidArgument, "the fingerprint is empty"};
  }
  if (!content.object_hash.empty() && !is_hash(content.object_hash)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("object hash ", base::quoted(content.object_hash),
                          " is not 64 hexadecimal digits")};
  }
  const tensor::KVGeometry& geometry = content.geometry;
  QUIRE_TRY_STATUS(check_geometry(geometry));
  if (geometry.window_tokens.size() != static_cast<std::size_t>(geometry.layers)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("the geometry has ", geometry.window_tokens.size(), " windows for ",
                          geometry.layers, " layers")};
  }
  for (std::size_t i = 0; i < content.runs.size(); ++i) {
    if (const Status run = check_run(content.runs[i]); !run.ok()) {
      return {run.error().code, base::str_cat("run ", i, " ", run.error().message)};
    }
    if (const Status lost = check_lost(geometry, content.runs[i]); !lost.ok()) {
      return {lost.error().code, base::str_cat("run ", i, " ", lost.error().message)};
    }
    if (content.runs[i].type == kv_type_of(geometry)) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("run ", i, " repeats the type of the file's KV")};
    }
    if (!content.geometry_of(i).fits_format()) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("run ", i, " has blocks of ", geometry.block_tokens,
                            " tokens, int4 needs a multiple of ", tensor::kInt4RunTokens)};
    }
    if (!head_blocks_of(geometry, content.runs[i])) {
      return {ErrorCode::kInvalidArgument, base::str_cat("run ", i, " is too large")};
    }
  }
  if (!geometry.layer_sizes.empty() && !content.states.at.empty()) {
    return {ErrorCode::kInvalidArgument, "states stand beside layers whose heads differ"};
  }
  const auto lacks_parts = [](const SavedRun& run) { return run.lost_parts > 0; };
  if (std::ranges::any_of(content.runs, lacks_parts) && !content.states.at.empty()) {
    return {ErrorCode::kInvalidArgument, "states stand beside lost window parts"};
  }
  QUIRE_TRY_STATUS(check_states(content.states, content.num_tokens()));
  return check_metadata(content.metadata_json);
}

std::string geometry_difference(const tensor::KVGeometry& theirs, const tensor::KVGeometry& ours) {
  const auto differs = [](std::string_view name, const auto& a, const auto& b) {
    return base::str_cat(name, " is ", a, ", here it is ", b);
  };
  if (theirs.layers != ours.layers) {
    return differs("layers", theirs.layers, ours.layers);
  }
  if (theirs.kv_heads != ours.kv_heads) {
    return differs("kv_heads", theirs.kv_heads, ours.kv_heads);
  }
  if (theirs.head_dim != ours.head_dim) {
    return differs("head_dim", theirs.head_dim, ours.head_dim);
  }
  if (theirs.layer_sizes != ours.layer_sizes) {
    return "the sizes of the layers' heads are others than here";
  }
  if (theirs.format != ours.format) {
    return differs("kv_dtype", tensor::kv_format_name(theirs.format, theirs.dtype),
                   tensor::kv_format_name(ours.format, ours.dtype));
  }
  if (theirs.dtype != ours.dtype) {
    return differs("dtype", tensor::dtype_name(theirs.dtype), tensor::dtype_name(ours.dtype));
  }
  if (theirs.block_tokens != ours.block_tokens) {
    return differs("block_tokens", theirs.block_tokens, ours.block_tokens);
  }
  for (std::size_t i = 0; i < ours.window_tokens.size() && i < theirs.window_tokens.size(); ++i) {
    if (theirs.window_tokens[i] != ours.window_tokens[i]) {
      return differs(base::str_cat("the window of layer ", i), theirs.window_tokens[i],
                     ours.window_tokens[i]);
    }
  }
  return {};
}

}  // namespace quire::kv_store
