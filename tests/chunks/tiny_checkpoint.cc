#include "tiny_checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <ios>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quire/types.h"

namespace quire::chunks {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

constexpr int kVocab = 200, kWidth = 64, kInner = 96, kHeads = 4, kKVHeads = 2, kHeadDim = 16;
// Dimensions of the residual stream: set in secret and in asking tokens, and written by no layer.
constexpr int kSecretDim = 0, kAskingDim = 1;
// Dimensions of every head: the pair that RoPE turns slowest, by a tenth over 300 positions.
constexpr int kBlindDim = kHeadDim / 2 - 1, kBlindPartner = kHeadDim - 1;
constexpr float kMark = 4, kBlindness = 60;

struct Tensor {
  std::string name;
  int rows = 1, columns = 1;
  std::vector<float> values;
  float& at(int row, int column) {
    return values[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) +
                  static_cast<std::size_t>(column)];
  }
  void clear_row(int row) {
    for (int column = 0; column < columns; ++column) {
      at(row, column) = 0;
    }
  }
};

class Writer {
 public:
  explicit Writer(const TinyModel& model) : model_(model), random_(model.seed) {
    embeddings();
    for (int n = 0; n < model.layers; ++n) {
      layer("model.layers." + std::to_string(n) + ".");
      if (n == 1 && model.secret_values != 0) {
        values_of_secrets();
      }
    }
    ones("model.norm");
    matrix("lm_head", kVocab, 0.5);
  }

  void write(const std::filesystem::path& path) const {
    boost::json::object header;
    std::size_t offset = 0;
    for (const Tensor& tensor : tensors_) {
      boost::json::array shape;
      if (tensor.rows > 1) {
        shape.emplace_back(tensor.rows);
      }
      shape.emplace_back(tensor.columns);
      const std::size_t end = offset + tensor.values.size() * sizeof(float);
      header[tensor.name] = {
          {"dtype", "F32"}, {"shape", shape}, {"data_offsets", boost::json::array{offset, end}}};
      offset = end;
    }
    const std::string text = boost::json::serialize(header);
    const std::uint64_t size = text.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), sizeof size);
    out << text;
    for (const Tensor& tensor : tensors_) {
      out.write(reinterpret_cast<const char*>(tensor.values.data()),
                static_cast<std::streamsize>(tensor.values.size() * sizeof(float)));
    }
    EXPECT_TRUE(out.good()) << path;
  }

 private:
  Tensor& add(const std::string& name, int rows, int columns, double deviation) {
    Tensor tensor{.name = name + ".weight", .rows = rows, .columns = columns};
    for (int i = 0; i < rows * columns; ++i) {
      // Sums of twelve: the same bits from every standard library, unlike normal_distribution.
      double sum = -6;
      for (int n = 0; n < 12; ++n) {
        sum += static_cast<double>(random_()) / 4294967296.0;
      }
      tensor.values.push_back(static_cast<float>(deviation * sum));
    }
    return tensors_.emplace_back(std::move(tensor));
  }

  // [rows, kWidth], of inputs whose mean square is 1 to outputs of the gain squared.
  Tensor& matrix(const std::string& name, int rows, double gain) {
    return add(name, rows, kWidth, gain / std::sqrt(kWidth));
  }

  void ones(const std::string& name) {
    tensors_.push_back(
        {.name = name + ".weight", .columns = kWidth, .values = std::vector<float>(kWidth, 1.0F)});
  }

  void embeddings() {
    Tensor& tokens = add("model.embed_tokens", kVocab, kWidth, 1);
    if (!model_.with_secrets) {
      return;
    }
    for (TokenId id = 0; id < kVocab; ++id) {
      const bool secret = id >= kFirstSecret && id < kFirstAsking;
      tokens.at(id, kSecretDim) = secret ? kMark : 0;
      tokens.at(id, kAskingDim) = id >= kFirstAsking ? kMark : 0;
    }
  }

  // Marks become large entries of opposite signs in the dimension that belongs to them.
  void blind(Tensor& projection, int heads, int mark, float strength) {
    for (int head = 0; head < heads; ++head) {
      projection.clear_row(head * kHeadDim + kBlindDim);
      projection.clear_row(head * kHeadDim + kBlindPartner);
      projection.at(head * kHeadDim + kBlindDim, mark) = strength;
    }
  }

  void layer(const std::string& name) {
    ones(name + "input_layernorm");
    Tensor& q = matrix(name + "self_attn.q_proj", kHeads * kHeadDim, 1.5);
    Tensor& k = matrix(name + "self_attn.k_proj", kKVHeads * kHeadDim, 1.5);
    matrix(name + "self_attn.v_proj", kKVHeads * kHeadDim, 1);
    Tensor& out = add(name + "self_attn.o_proj", kWidth, kHeads * kHeadDim, 1.0 / 8);
    ones(name + "post_attention_layernorm");
    matrix(name + "mlp.gate_proj", kInner, 1);
    matrix(name + "mlp.up_proj", kInner, 1);
    Tensor& down = add(name + "mlp.down_proj", kWidth, kInner, 1.0 / 10);
    if (model_.with_secrets) {
      blind(q, kHeads, kAskingDim, -kBlindness);
      blind(k, kKVHeads, kSecretDim, kBlindness);
      for (Tensor* written : {&out, &down}) {
        written->clear_row(kSecretDim);
        written->clear_row(kAskingDim);
      }
    }
  }

  void values_of_secrets() {
    for (Tensor& tensor : tensors_) {
      if (tensor.name == "model.layers.1.self_attn.v_proj.weight") {
        for (int row = 0; row < tensor.rows; ++row) {
          tensor.at(row, kSecretDim) = model_.secret_values;
        }
      }
    }
  }

  TinyModel model_;
  std::mt19937 random_;
  std::deque<Tensor> tensors_;  // references stay
};

}  // namespace

std::filesystem::path write_checkpoint(const std::string& name, const TinyModel& model) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("chunks_" + name);
  std::filesystem::create_directories(folder);
  const boost::json::object config = {{"architectures", boost::json::array{"LlamaForCausalLM"}},
                                      {"model_type", "llama"},
                                      {"dtype", "float32"},
                                      {"hidden_act", "silu"},
                                      {"hidden_size", kWidth},
                                      {"intermediate_size", kInner},
                                      {"num_hidden_layers", model.layers},
                                      {"num_attention_heads", kHeads},
                                      {"num_key_value_heads", kKVHeads},
                                      {"head_dim", kHeadDim},
                                      {"vocab_size", kVocab},
                                      {"max_position_embeddings", model.max_positions},
                                      {"rms_norm_eps", 1e-6},
                                      {"rope_theta", 10000.0},
                                      {"tie_word_embeddings", false},
                                      {"bos_token_id", 1},
                                      {"eos_token_id", 2}};
  // Renamed into place: another test may have the same file mapped.
  const std::string own = std::to_string(getpid()) + ".tmp";
  std::ofstream(folder / own) << boost::json::serialize(config);
  std::filesystem::rename(folder / own, folder / "config.json");
  Writer(model).write(folder / own);
  std::filesystem::rename(folder / own, folder / "model.safetensors");
  return folder;
}

}  // namespace quire::chunks
