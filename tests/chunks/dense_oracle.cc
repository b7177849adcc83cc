#include "dense_oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
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

void DenseModel::read_rotary(const std::filesystem::path& folder, base::JsonView config) {
  const base::JsonView rope =
      config.contains("rope_parameters") ? config.find("rope_parameters") : config;
  const std::string name = base::get_string(rope, "rope_type", "default").value();
  if (name != "default" && name != "linear") {
    const base::Json golden = read_json(folder / "golden.json");
    for (const base::JsonView frequency : golden.view().find("inv_freq").elements()) {
      frequencies_.push_back(frequency.as_double());
    }
    rope_scale_ = number(golden, "rope_scale", 1.0);
    return;
  }
  const double theta = rope.find("rope_theta").as_double();
  const double factor = name == "linear" ? rope.find("factor").as_double() : 1.0;
  const auto rotated = static_cast<std::size_t>(static_cast<double>(head_dim_) *
                                                number(rope, "partial_rotary_factor", 1.0));
  for (std::size_t i = 0; i < rotated; i += 2) {
    const double exponent = static_cast<double>(i) / static_cast<double>(rotated);
    frequencies_.push_back(std::pow(theta, -exponent) / factor);
  }
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
  for (std::size_t i = 0; i < out.rows; ++i) {
    norm(out.row(i), weight(name + ".weight").values, epsilon_);
  }
  return out;
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

DenseModel::Turn DenseModel::turn(std::int64_t relative) const {
  Turn turn;
  for (const double frequency : frequencies_) {
    turn.push_back(
        std::polar(rope_scale_ * rope_scale_, static_cast<double>(relative) * frequency));
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
  return sum / std::sqrt(static_cast<double>(head_dim_));
}

Matrix DenseModel::attended(const Matrix& in, const std::string& layer, const Sight& sight,
                            Watch* watch) const {
  Matrix queries = projected(in, layer, 'q');
  Matrix keys = projected(in, layer, 'k');
  const Matrix values = projected(in, layer, 'v');
  const auto head_of = [&](auto& matrix, std::size_t row, std::size_t head) {
    return matrix.row(row).subspan(head * head_dim_, head_dim_);
  };
  if (weights_.contains(layer + "self_attn.q_norm.weight")) {
    for (std::size_t i = 0; i < in.rows; ++i) {
      for (std::size_t head = 0; head < heads_; ++head) {
        norm(head_of(queries, i, head), weight(layer + "self_attn.q_norm.weight").values, epsilon_);
      }
      for (std::size_t head = 0; head < kv_heads_; ++head) {
        norm(head_of(keys, i, head), weight(layer + "self_attn.k_norm.weight").values, epsilon_);
      }
    }
  }
  Matrix out = zeros(in.rows, heads_ * head_dim_);
  std::map<std::int64_t, Turn> turns;  // by relative position
  for (std::size_t i = 0; i < in.rows; ++i) {
    std::vector<std::pair<std::size_t, const Turn*>> seen;
    for (std::size_t j = 0; j < in.rows; ++j) {
      if (const auto relative = sight(i, j)) {
        auto [found, is_new] = turns.try_emplace(*relative);
        if (is_new) {
          found->second = turn(*relative);
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
    gate.values[i] *= up.values[i] / (1 + std::exp(-gate.values[i]));
  }
  return linear(gate, layer + "mlp.down_proj");
}

Matrix DenseModel::forward(std::span<const TokenId> ids, const Sight& sight, Watch* watch) const {
  const Matrix& embeddings = weight("model.embed_tokens.weight");
  Matrix hidden = zeros(ids.size(), embeddings.columns);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::ranges::copy(embeddings.row(static_cast<std::size_t>(ids[i])), hidden.row(i).begin());
  }
  if (watch != nullptr) {
    watch->looked.assign(ids.size(), 0.0);
  }
  for (std::size_t n = 0; n < layers_; ++n) {
    const std::string layer = "model.layers." + std::to_string(n) + ".";
    const Matrix in = normed(hidden, layer + "input_layernorm");
    if (watch != nullptr && n == 1) {
      watch->values = projected(in, layer, 'v');
    }
    add(hidden, attended(in, layer, sight, watch));
    add(hidden, gated(normed(hidden, layer + "post_attention_layernorm"), layer));
  }
  const bool tied = !weights_.contains("lm_head.weight");
  return linear(normed(hidden, "model.norm"), tied ? "model.embed_tokens" : "lm_head");
}

}  // namespace quire::chunks
