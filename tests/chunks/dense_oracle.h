// The oracle of composed requests: a transformer of its own in double precision, in naive loops.
// It shares no code with the engine but the readers of JSON and of tensors.
//
// Keys are kept without rotation; what a token sees of another is told by the caller as a relative
// position, and the pair's score is <R(relative) q, k>. So one pass computes any mask at any
// positions, also those that no single list of position ids could express.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/base/json.h"
#include "quire/types.h"

namespace quire::chunks {

using Ids = std::vector<TokenId>;

// How far token `key` lies before token `query` as `query` sees it (negative: behind it); nullopt
// when it does not see it. Indices into the ids of one pass, every token sees itself.
using Sight = std::function<std::optional<std::int64_t>(std::size_t query, std::size_t key)>;

// A sight that differs from layer to layer.
using LayerSight = std::function<std::optional<std::int64_t>(std::size_t layer, std::size_t query,
                                                             std::size_t key)>;

// Token i stands at position i and sees what is not behind it.
[[nodiscard]] Sight causal();

// [rows][columns].
struct Matrix {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<double> values;
  [[nodiscard]] std::span<const double> row(std::size_t i) const {
    return std::span(values).subspan(i * columns, columns);
  }
  [[nodiscard]] std::span<double> row(std::size_t i) {
    return std::span(values).subspan(i * columns, columns);
  }
};

// Quantities that a pass shows on the way.
struct Watch {
  Matrix values;              // [tokens][kv heads * head size] of layer 1, empty when there is none
  std::size_t first_row = 0;  // rows from here on look
  std::vector<double> looked;  // [tokens] at each: the sum over those rows, all heads and layers
};

class DenseModel {
 public:
  // A folder with config.json and safetensors of a dense text model, whose queries do not grow with
  // their position. The frequencies of a scaled RoPE are those that golden.json holds, which
  // transformers computed. A layer's window hides more than Sight does. Fails the test on anything
  // unexpected.
  explicit DenseModel(const std::filesystem::path& folder);

  // Logits of all tokens.
  [[nodiscard]] Matrix forward(std::span<const TokenId> ids, const Sight& sight,
                               Watch* watch = nullptr) const;
  [[nodiscard]] Matrix forward(std::span<const TokenId> ids, const LayerSight& sight,
                               Watch* watch = nullptr) const;

 private:
  // Frequencies of a rotation, and the factor on queries and keys.
  struct Rope {
    std::vector<double> frequencies;
    double scale = 1;
  };
  [[nodiscard]] Rope rope_of(const std::filesystem::path& folder, base::JsonView rope) const;
  void read_rotary(const std::filesystem::path& folder, base::JsonView config);
  void read_switches(base::JsonView config);
  void read_windows(base::JsonView config);
  [[nodiscard]] const Matrix& weight(const std::string& name) const;
  [[nodiscard]] Matrix linear(const Matrix& in, const std::string& name) const;
  [[nodiscard]] Matrix normed(const Matrix& in, const std::string& name) const;
  // Queries, keys or values: their own tensor, or a part of the fused one.
  [[nodiscard]] Matrix projected(const Matrix& in, const std::string& layer, char which) const;
  // Norms queries or keys in place, if the layer has such a norm: each head, or the row as one.
  void norm_heads(Matrix& rows, std::size_t heads, const std::string& name) const;
  [[nodiscard]] Matrix attended(const Matrix& in, std::size_t index, const Sight& sight,
                                Watch* watch) const;
  // Adds what a part of a layer computed, normed and scaled as the family has it.
  void add_output(Matrix& hidden, Matrix output, const std::string& norm) const;
  [[nodiscard]] Matrix gated(const Matrix& in, const std::string& layer) const;
  // A rotation of each pair, times the scale of scores.
  using Turn = std::vector<std::complex<double>>;
  [[nodiscard]] static Turn turn(const Rope& rope, std::int64_t relative);
  [[nodiscard]] double score(std::span<const double> query, std::span<const double> key,
                             const Turn& turn) const;

  std::map<std::string, Matrix> weights_;
  std::vector<Rope> ropes_;            // [layers]; without frequencies: none
  std::vector<std::int64_t> windows_;  // [layers]; 0: none
  double epsilon_ = 0;
  // Switches; see model/layer_plan.h.
  bool norms_lack_one_ = false, norms_input_ = true, gelu_ = false;
  std::string mlp_norm_ = "post_attention_layernorm", attention_out_norm_, mlp_out_norm_;
  double embedding_scale_ = 1, residual_scale_ = 1, score_scale_ = 0, score_cap_ = 0;
  double logits_divisor_ = 1, logit_cap_ = 0;
  std::size_t layers_ = 0, heads_ = 0, kv_heads_ = 0, head_dim_ = 0;
};

}  // namespace quire::chunks
