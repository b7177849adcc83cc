#include "dense_oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <numbers>
#include <string>
#include <utility>

#include "quire/weights/model_files.h"
#include "quire/weights/tensor_info.h"

namespace quire::chunks {
namespace {

base::Json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return base::parse_json(text, path.string()).value();
}

template <class T>
T number(base::JsonView object, std::string_view key, T otherwise) {
  const base::JsonView value = object.find(key);
  return value.is_null() ? otherwise : static_cast<T>(value.as_double());
}

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

void add(Matrix& to, const Matrix& what) {
  for (std::size_t i = 0; i < to.values.size(); ++i) {
    to.values[i] += what.values[i];
  }
}

Matrix zeros(std::size_t rows, std::size_t columns) {
  return {.rows = rows, .columns = columns, .values = std::vector<double>(rows * columns)};
}

Matrix columns_of(const Matrix& from, std::size_t first, std::size_t count) {
  Matrix out = zeros(from.rows, count);
  for (std::size_t i = 0; i < from.rows; ++i) {
    std::ranges::copy(from.row(i).subspan(first, count), out.row(i).begin());
  }
  return out;
}

void norm(std::span<double> row, std::span<const double> gain, double epsilon) {
  const double mean = dot(row, row) / static_cast<double>(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    row[i] *= gain[i] / std::sqrt(mean + epsilon);
  }
}

// Returns cap * tanh(x / cap); x where there is no cap.
double capped(double x, double cap) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

void softmax(std::vector<double>& scores) {
  const double most = *std::ranges::max_element(scores);
  double sum = 0;
  for (double& score : scores) {
    score = std::exp(score - most);
    sum += score;
  }
  for (double& score : scores) {
    score /= sum;
  }
}

}  // namespace

Sight causal() {
  return [](std::size_t query, std::size_t key) -> std::optional<std::int64_t> {
    if (key > query) {
      return std::nullopt;
    }
    return static_cast<std::int64_t>(query - key);
  };
}

DenseModel::DenseModel(const std::filesystem::path& folder) {
  const base::Json config = read_json(folder / "config.json");
  layers_ = number(config, "num_hidden_layers", std::size_t{0});
  heads_ = number(config, "num_attention_heads", std::size_t{0});
  kv_heads_ = number(config, "num_key_value_heads", std::size_t{0});
  head_dim_ = number(config, "head_dim", number(config, "hidden_size", std::size_t{0}) / heads_);
  epsilon_ = number(config, "rms_norm_eps", 0.0);
  read_rotary(folder, config);
  read_switches(config);
  read_windows(config);
  const auto model_files = weights::ModelFiles::open(folder);
  if (!model_files.ok()) {
    ADD_FAILURE() << model_files.error().message;
    return;
  }
  for (const weights::TensorInfo& tensor : model_files->tensors()) {
    std::vector<float> values(static_cast<std::size_t>(tensor.num_values()));
    weights::read_rows(tensor, 0, tensor.rows(), values);
    weights_[tensor.name] = {.rows = static_cast<std::size_t>(tensor.rows()),
                             .columns = static_cast<std::size_t>(tensor.columns()),
                             .values = {values.begin(), values.end()}};
  }
}

DenseModel::Rope DenseModel::rope_of(const std::filesystem::path& folder,
                                     base::JsonView rope) const {
  Rope out;
  const std::string name = base::get_string(rope, "rope_type", "default").value();
  if (name != "default" && name != "linear") {
    const base::Json golden = read_json(folder / "golden.json");
    for (const base::JsonView frequency : golden.view().find("inv_freq").elements()) {
      out.frequencies.push_back(frequency.as_double());
    }
    out.scale = number(golden, "rope_scale", 1.0);
    return out;
  }
  const double theta = rope.find("rope_theta").as_double();
  const double factor = name == "linear" ? rope.find("factor").as_double() : 1.0;
  const auto rotated = static_cast<std::size_t>(static_cast<double>(head_dim_) *
                                                number(rope, "partial_rotary_factor", 1.0));
  for (std::size_t i = 0; i < rotated; i += 2) {
    const double exponent = static_cast<double>(i) / static_cast<double>(rotated);
    out.frequencies.push_back(std::pow(theta, -exponent) / factor);
  }
  return out;
}

void DenseModel::read_rotary(const std::filesystem::path& folder, base::JsonView config) {
  const base::JsonView rope =
      config.contains("rope_parameters") ? config.find("rope_parameters") : config;
  const bool by_kind = rope.contains("full_attention");
  const Rope main = rope_of(folder, by_kind ? rope.find("full_attention") : rope);
  ropes_.assign(layers_, main);
  const base::JsonView with_rope = config.find("no_rope_layers");
  for (std::size_t i = 0; i < layers_; ++i) {
    if (by_kind && config.find("layer_types")[i] == "sliding_attention") {
      ropes_[i] = rope_of(folder, rope.find("sliding_attention"));
    }
    if (!with_rope.is_null() && with_rope[i].as_double() == 0) {
      ropes_[i] = {};
    }
  }
}

void DenseModel::read_windows(base::JsonView config) {
  const auto size = number(config, "sliding_window", std::int64_t{0});
  const base::JsonView types = config.find("layer_types");
  const std::string type = base::get_string(config, "model_type", "").value();
  const bool everywhere = type == "mistral" || type == "phi3";
  windows_.assign(layers_, everywhere ? size : 0);
  for (std::size_t i = 0; i < layers_ && !types.is_null(); ++i) {
    windows_[i] = types[i] == "sliding_attention" ? size : 0;
  }
}

void DenseModel::read_switches(base::JsonView config) {
  const std::string type = base::get_string(config, "model_type", "").value();
  const bool gemma = type.starts_with("gemma");
  if (gemma || type.starts_with("olmo")) {
    attention_out_norm_ = "post_attention_layernorm";
    mlp_norm_ = "pre_feedforward_layernorm";
    mlp_out_norm_ = "post_feedforward_layernorm";
  }
  norms_input_ = !type.starts_with("olmo");
  norms_lack_one_ = gemma;
  const std::string activation = base::get_string(config, "hidden_act", "silu").value();
  gelu_ = base::get_string(config, "hidden_activation", activation).value() == "gelu_pytorch_tanh";
  embedding_scale_ = gemma ? std::sqrt(number(config, "hidden_size", 0.0))
                           : number(config, "embedding_multiplier", 1.0);
  residual_scale_ = number(config, "residual_multiplier", 1.0);
  const double usual = 1 / std::sqrt(static_cast<double>(head_dim_));
  score_scale_ = gemma ? 1 / std::sqrt(number(config, "query_pre_attn_scalar", 0.0))
                       : number(config, "attention_multiplier", usual);
  score_cap_ = number(config, "attn_logit_softcapping", 0.0);
  logits_divisor_ = number(config, "logits_scaling", 1.0);
  logit_cap_ = number(config, "final_logit_softcapping", 0.0);
}

const Matrix& DenseModel::weight(const std::string& name) const {
  const auto found = weights_.find(name);
  EXPECT_NE(found, weights_.end()) << name;
  return found->second;
}

Matrix DenseModel::linear(const Matrix& in, const std::string& name) const {
  const Matrix& matrix = weight(name + ".weight");
  const auto bias = weights_.find(name + ".bias");
  Matrix out = zeros(in.rows, matrix.rows);
  for (std::size_t i = 0; i < in.rows; ++i) {
    for (std::size_t j = 0; j < matrix.rows; ++j) {
      const double offset = bias != weights_.end() ? bias->second.values[j] : 0.0;
      out.row(i)[j] = dot(in.row(i), matrix.row(j)) + offset;
    }
  }
  return out;
}

Matrix DenseModel::normed(const Matrix& in, const std::string& name) const {
  Matrix out = in;
  std::vector<double> gain = weight(name + ".weight").values;
  for (double& value : gain) {
    value += norms_lack_one_ ? 1 : 0;
  }
  for (std::size_t i = 0; i < out.rows; ++i) {
    norm(out.row(i), gain, epsilon_);
  }
  return out;
}

void DenseModel::norm_heads(Matrix& rows, std::size_t heads, const std::string& name) const {
  if (!weights_.contains(name + ".weight")) {
    return;
  }
  const bool whole = weight(name + ".weight").columns == rows.columns && heads > 1;
  const std::size_t parts = whole ? 1 : heads;
  const Matrix each = normed({.rows = rows.rows * parts,
                              .columns = rows.columns / parts,
                              .values = std::move(rows.values)},
                             name);
  rows.values = each.values;
}

void DenseModel::add_output(Matrix& hidden, Matrix output, const std::string& norm) const {
  if (!norm.empty()) {
    output = normed(output, norm);
  }
  for (double& value : output.values) {
    value *= residual_scale_;
  }
  add(hidden, output);
}

Matrix DenseModel::projected(const Matrix& in, const std::string& layer, char which) const {
  const std::string attention = layer + "self_attn.";
  if (!weights_.contains(attention + "qkv_proj.weight")) {
    return linear(in, attention + which + "_proj");
  }
  const std::size_t queries = heads_ * head_dim_;
  const std::size_t keys = kv_heads_ * head_dim_;
  const Matrix fused = linear(in, attention + "qkv_proj");
  return which == 'q'   ? columns_of(fused, 0, queries)
         : which == 'k' ? columns_of(fused, queries, keys)
                        : columns_of(fused, queries + keys, keys);
}

DenseModel::Turn DenseModel::turn(const Rope& rope, std::int64_t relative) {
  Turn turn;
  for (const double frequency : rope.frequencies) {
    turn.push_back(std::polar(rope.scale * rope.scale, static_cast<double>(relative) * frequency));
  }
  return turn;
}

// <R(relative) query, key>: the pair (i, i + half) of the query turns by relative * frequency.
double DenseModel::score(std::span<const double> query, std::span<const double> key,
                         const Turn& turn) const {
  const std::size_t half = turn.size();
  double sum = 0;
  for (std::size_t i = 0; i < half; ++i) {
    const double cosine = turn[i].real();
    const double sine = turn[i].imag();
    sum += (query[i] * cosine - query[i + half] * sine) * key[i] +
           (query[i + half] * cosine + query[i] * sine) * key[i + half];
  }
  sum += dot(query.subspan(2 * half), key.subspan(2 * half));
  return capped(sum * score_scale_, score_cap_);
}

Matrix DenseModel::attended(const Matrix& in, std::size_t index, const Sight& sight,
                            Watch* watch) const {
  const std::string layer = "model.layers." + std::to_string(index) + ".";
  Matrix queries = projected(in, layer, 'q');
  Matrix keys = projected(in, layer, 'k');
  const Matrix values = projected(in, layer, 'v');
  const auto head_of = [&](auto& matrix, std::size_t row, std::size_t head) {
    return matrix.row(row).subspan(head * head_dim_, head_dim_);
  };
  norm_heads(queries, heads_, layer + "self_attn.q_norm");
  norm_heads(keys, kv_heads_, layer + "self_attn.k_norm");
  Matrix out = zeros(in.rows, heads_ * head_dim_);
  std::map<std::int64_t, Turn> turns;  // by relative position
  for (std::size_t i = 0; i < in.rows; ++i) {
    std::vector<std::pair<std::size_t, const Turn*>> seen;
    for (std::size_t j = 0; j < in.rows; ++j) {
      const auto relative = sight(i, j);
      const std::int64_t window = windows_[index];
      if (relative && (window == 0 || *relative < window)) {
        auto [found, is_new] = turns.try_emplace(*relative);
        if (is_new) {
          found->second = turn(ropes_[index], *relative);
        }
        seen.emplace_back(j, &found->second);
      }
    }
    for (std::size_t head = 0; head < heads_; ++head) {
      const std::size_t kv_head = head / (heads_ / kv_heads_);
      std::vector<double> shares;
      for (const auto& [j, by] : seen) {
        shares.push_back(score(head_of(queries, i, head), head_of(keys, j, kv_head), *by));
      }
      softmax(shares);
      for (std::size_t n = 0; n < seen.size(); ++n) {
        if (watch != nullptr && i >= watch->first_row) {
          watch->looked[seen[n].first] += shares[n];
        }
        const auto value = head_of(values, seen[n].first, kv_head);
        const auto to = head_of(out, i, head);
        for (std::size_t d = 0; d < head_dim_; ++d) {
          to[d] += shares[n] * value[d];
        }
      }
    }
  }
  return linear(out, layer + "self_attn.o_proj");
}

Matrix DenseModel::gated(const Matrix& in, const std::string& layer) const {
  const bool fused = weights_.contains(layer + "mlp.gate_up_proj.weight");
  const Matrix both = fused ? linear(in, layer + "mlp.gate_up_proj") : Matrix{};
  const std::size_t half = both.columns / 2;
  Matrix gate = fused ? columns_of(both, 0, half) : linear(in, layer + "mlp.gate_proj");
  const Matrix up = fused ? columns_of(both, half, half) : linear(in, layer + "mlp.up_proj");
  for (std::size_t i = 0; i < gate.values.size(); ++i) {
    const double x = gate.values[i];
    const double inner = gelu_ ? std::sqrt(8 / std::numbers::pi) * (x + 0.044715 * x * x * x) : x;
    gate.values[i] = x * up.values[i] / (1 + std::exp(-inner));
  }
  return linear(gate, layer + "mlp.down_proj");
}

Matrix DenseModel::forward(std::span<const TokenId> ids, const Sight& sight, Watch* watch) const {
  return forward(ids, LayerSight([&](std::size_t /*layer*/, std::size_t q, std::size_t k) {
                   return sight(q, k);
                 }),
                 watch);
}

Matrix DenseModel::forward(std::span<const TokenId> ids, const LayerSight& sight,
                           Watch* watch) const {
  const Matrix& embeddings = weight("model.embed_tokens.weight");
  Matrix hidden = zeros(ids.size(), embeddings.columns);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::ranges::copy(embeddings.row(static_cast<std::size_t>(ids[i])), hidden.row(i).begin());
  }
  if (watch != nullptr) {
    watch->looked.assign(ids.size(), 0.0);
  }
  for (double& value : hidden.values) {
    value *= embedding_scale_;
  }
  for (std::size_t n = 0; n < layers_; ++n) {
    const std::string layer = "model.layers." + std::to_string(n) + ".";
    const auto name = [&](const std::string& norm) { return norm.empty() ? norm : layer + norm; };
    const Matrix in = norms_input_ ? normed(hidden, layer + "input_layernorm") : hidden;
    if (watch != nullptr && n == 1) {
      watch->values = projected(in, layer, 'v');
    }
    const Sight here = [&](std::size_t q, std::size_t k) { return sight(n, q, k); };
    add_output(hidden, attended(in, n, here, watch), name(attention_out_norm_));
    const Matrix inner = norms_input_ ? normed(hidden, layer + mlp_norm_) : hidden;
    add_output(hidden, gated(inner, layer), name(mlp_out_norm_));
  }
  const bool tied = !weights_.contains("lm_head.weight");
  Matrix logits = linear(normed(hidden, "model.norm"), tied ? "model.embed_tokens" : "lm_head");
  for (double& value : logits.values) {
    value = capped(value / logits_divisor_, logit_cap_);
  }
  return logits;
}

}  // namespace quire::chunks
