#include "quire/model/config.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/model/config_internal.h"
#include "quire/model/family.h"
#include "quire/model/rope.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/types.h"
#include "quire/weights/model_files.h"

namespace quire::model {
namespace {

Status in_range(std::string_view name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(name, " is ", value, "; must be in [", low, ", ", high, "]")};
}

Status check_heads(const ModelConfig& config, const FieldNames& names) {
  QUIRE_TRY_STATUS(in_range(names.heads, config.heads, 1, 1024));
  QUIRE_TRY_STATUS(in_range(names.kv_heads, config.kv_heads, 1, config.heads));
  QUIRE_TRY_STATUS(in_range(names.head_dim, config.head_dim, 2, 256));
  if (config.heads % config.kv_heads != 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(names.heads, " is ", config.heads, ", which is no multiple of ",
                          names.kv_heads, ", ", config.kv_heads)};
  }
  if (config.head_dim % 2 != 0) {
    return {ErrorCode::kUnsupported,
            base::str_cat(names.head_dim, " is ", config.head_dim, "; must be even")};
  }
  return {};
}

Status check_rotary(const ModelConfig& config) {
  if (config.rotary.rotary_dim() > config.head_dim) {
    return {ErrorCode::kInvalidArgument, base::str_cat("rope turns ", config.rotary.rotary_dim(),
                                                       " values of heads of ", config.head_dim)};
  }
  for (const double frequency : config.rotary.inverse_frequencies) {
    if (!std::isfinite(frequency) || frequency < 0.0) {
      return {ErrorCode::kInvalidArgument, base::str_cat("a rope frequency is ", frequency)};
    }
  }
  if (!std::isfinite(config.rotary.scale) || config.rotary.scale <= 0.0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("the rope factor on cos and sin is ", config.rotary.scale)};
  }
  return {};
}

Status check_windows(const ModelConfig& config) {
  if (config.window_tokens.size() != static_cast<std::size_t>(config.layers)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("the model has windows for ", config.window_tokens.size(), " of ",
                          config.layers, " layers")};
  }
  for (const std::int32_t window : config.window_tokens) {
    QUIRE_TRY_STATUS(in_range("the sliding window", window, 0, std::int64_t{1} << 30));
  }
  return {};
}

void add_double(base::FieldHasher& hasher, double value) {
  hasher.add_int(std::bit_cast<std::int64_t>(value));
}

}  // namespace

void add_config(base::FieldHasher& hasher, const ModelConfig& config) {
  for (const std::int64_t value :
       {std::int64_t{config.vocab_size}, std::int64_t{config.hidden_size},
        std::int64_t{config.intermediate_size}, std::int64_t{config.layers},
        std::int64_t{config.heads}, std::int64_t{config.kv_heads}, std::int64_t{config.head_dim},
        std::int64_t{config.tied_embeddings}, std::int64_t{config.qkv_bias},
        std::int64_t{config.output_bias}, std::int64_t{config.mlp_bias},
        std::int64_t{config.qk_norm}}) {
    hasher.add_int(value);
  }
  add_double(hasher, config.norm_epsilon);
  add_double(hasher, config.rotary.scale);
  hasher.add_int(config.rotary.rotary_dim());
  for (const double frequency : config.rotary.inverse_frequencies) {
    add_double(hasher, frequency);
  }
  for (const std::int32_t window : config.window_tokens) {
    hasher.add_int(window);
  }
}

tensor::KVGeometry ModelConfig::kv_geometry(tensor::DType kv_dtype, std::int32_t block_tokens,
                                            tensor::KVFormat format) const {
  return {.layers = layers,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .dtype = kv_dtype,
          .block_tokens = block_tokens,
          .window_tokens = {window_tokens.begin(), window_tokens.end()},
          .format = format};
}

Status ModelConfig::validate(const FieldNames& names) const {
  if (find_family(family) == nullptr) {
    return {ErrorCode::kUnsupported,
            base::str_cat("model family ", base::quoted(family), " is unknown")};
  }
  QUIRE_TRY_STATUS(in_range(names.vocab_size, vocab_size, 1, std::int64_t{1} << 21));
  QUIRE_TRY_STATUS(in_range(names.hidden_size, hidden_size, 1, std::int64_t{1} << 17));
  QUIRE_TRY_STATUS(in_range(names.intermediate_size, intermediate_size, 1, std::int64_t{1} << 20));
  QUIRE_TRY_STATUS(in_range(names.layers, layers, 1, 1024));
  QUIRE_TRY_STATUS(in_range(names.context_length, context_length, 1, std::int64_t{1} << 28));
  QUIRE_TRY_STATUS(check_heads(*this, names));
  QUIRE_TRY_STATUS(check_rotary(*this));
  QUIRE_TRY_STATUS(check_windows(*this));
  if (!(norm_epsilon > 0.0 && norm_epsilon < 1.0)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(names.norm_epsilon, " is ", norm_epsilon, "; must be in (0, 1)")};
  }
  for (const TokenId id : eos_token_ids) {
    QUIRE_TRY_STATUS(in_range("an end-of-sequence id", id, 0, vocab_size - 1));
  }
  return {};
}

std::string ModelConfig::context_text() const {
  if (longrope_positions == 0) {
    return std::to_string(context_length);
  }
  return base::str_cat(context_length,
                       " (longrope has other frequencies beyond, which no stored key "
                       "could follow; with \"short_factor\" equal to \"long_factor\" all ",
                       longrope_positions, " are served)");
}

void take_dtype(const weights::ModelFiles& model_files, ModelConfig& config) {
  using weights::Encoding;
  std::set<Encoding> encodings;
  for (const weights::TensorInfo& tensor : model_files.tensors()) {
    if (tensor.shape.size() == 2) {
      encodings.insert(tensor.encoding);
    }
  }
  if (config.dtype_is_given || encodings.size() != 1) {
    return;
  }
  if (*encodings.begin() == Encoding::kF16) {
    config.stored_dtype = tensor::DType::kFloat16;
  } else if (*encodings.begin() == Encoding::kBF16) {
    config.stored_dtype = tensor::DType::kBFloat16;
  }
}

Status finish_config(const RopeSpec& spec, const FieldNames& names, ModelConfig& config) {
  std::erase_if(config.eos_token_ids, [&](TokenId id) {
    return id >= config.vocab_size;  // can never be sampled
  });
  QUIRE_TRY_STATUS(config.validate(names));  // before the shape sizes anything
  QUIRE_TRY(auto rope, make_rope(spec));
  config.rotary = std::move(rope.rotary);
  if (rope.context_length < config.context_length) {
    config.remarks.push_back(base::str_cat(
        "longrope: ", rope.context_length, " of ", config.context_length,
        " positions are served; beyond them all frequencies would change, and stored keys with "
        "them"));
    config.longrope_positions = config.context_length;
  } else if (rope.context_length > config.context_length) {
    config.remarks.push_back(base::str_cat(spec.type, ": ", rope.context_length,
                                           " positions are served, to which it stretches the ",
                                           config.context_length, " that the model states"));
  }
  config.context_length = rope.context_length;
  for (std::int32_t& window : config.window_tokens) {
    window = window >= config.context_length ? 0 : window;
  }
  return config.validate(names);
}

}  // namespace quire::model
