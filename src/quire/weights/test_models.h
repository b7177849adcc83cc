// GGUF files of small Llamas without text, whose matrices have random blocks of any type.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/tensor/dtype.h"
#include "quire/weights/gguf_types.h"
#include "quire/weights/test_files.h"

namespace quire::weights::testing {

// Makes blocks of random bytes whose scales are ordinary, so that weights are about 0.05.
class RandomBlocks {
 public:
  explicit RandomBlocks(std::uint32_t seed) : random_(seed) {}

  // Returns a type of ggml by name. Precondition: there is one.
  static const GgmlType& type(std::string_view name) {
    std::uint32_t number = 0;
    while (find_ggml_type(number) == nullptr || find_ggml_type(number)->name != name) {
      ++number;
    }
    return *find_ggml_type(number);
  }

  // Returns a block; numbers of norms are near 1.
  std::string block(const std::string& name, bool norm = false) {
    if (name == "F32") {
      return raw(norm ? number(0.5f, 1.5f) : number(-0.1f, 0.1f));
    }
    if (name == "F16") {
      return raw(tensor::float_to_fp16(number(-0.1f, 0.1f)));
    }
    std::string bytes(static_cast<std::size_t>(type(name).block_bytes), '\0');
    std::ranges::generate(bytes, [&] { return static_cast<char>(random_()); });
    const auto found = scales().find(name);
    if (found == scales().end()) {
      scale_otherwise(name, bytes);
      return bytes;
    }
    for (const std::size_t at : found->second.halves) {
      bytes.replace(at, 2, raw(half(found->second.largest)));
    }
    return bytes;
  }

 private:
  // Where the fp16 numbers of a block lie, and the largest that they are here.
  struct Scales {
    std::vector<std::size_t> halves;
    float largest;
  };
  static const std::map<std::string, Scales>& scales() {
    static const std::map<std::string, Scales> kScales = {
        {"Q4_0", {{0}, 1e-2f}},    {"Q4_1", {{0, 2}, 1e-2f}}, {"Q5_0", {{0}, 1e-2f}},
        {"Q5_1", {{0, 2}, 1e-2f}}, {"Q8_0", {{0}, 1e-3f}},    {"Q2_K", {{80, 82}, 3e-3f}},
        {"Q3_K", {{108}, 1e-3f}},  {"Q4_K", {{0, 2}, 2e-4f}}, {"Q5_K", {{0, 2}, 2e-4f}},
        {"Q6_K", {{208}, 5e-5f}},  {"IQ1_S", {{0}, 8e-3f}},   {"IQ2_XXS", {{0}, 8e-4f}},
        {"IQ2_XS", {{0}, 8e-4f}},  {"IQ2_S", {{0}, 8e-4f}},   {"IQ3_XXS", {{0}, 2e-4f}},
        {"IQ3_S", {{0}, 2e-4f}},   {"IQ4_NL", {{0}, 1e-3f}},  {"IQ4_XS", {{0}, 6e-5f}},
        {"TQ1_0", {{52}, 6e-2f}},  {"TQ2_0", {{64}, 6e-2f}},  {"Q1_0", {{0}, 6e-2f}},
        {"Q2_0", {{0}, 6e-2f}}};
    return kScales;
  }

  float number(float least, float most) {
    return std::uniform_real_distribution<float>(least, most)(random_);
  }
  std::uint16_t half(float largest) { return tensor::float_to_fp16(number(largest / 4, largest)); }

  // Sets scales that are no fp16, or one in pieces.
  void scale_otherwise(const std::string& name, std::string& bytes) {
    if (name == "MXFP4") {
      bytes[0] = static_cast<char>(119 + random_() % 4);
    } else if (name == "NVFP4") {
      for (std::size_t i = 0; i < 4; ++i) {
        bytes[i] = static_cast<char>(8 + random_() % 8);
      }
    } else if (name == "IQ1_M") {
      const unsigned scale = half(8e-3f);
      for (std::size_t i = 0; i < 4; ++i) {
        char& upper = bytes[48 + i * 2 + 1];
        upper = static_cast<char>((static_cast<unsigned char>(upper) & 15U) |
                                  (scale >> (4 * i) & 15U) << 4U);
      }
    }
  }

  std::mt19937 random_;
};

// A Llama of two layers.
class GgufModel {
 public:
  static constexpr std::uint32_t kHidden = 256, kInner = 512, kVocabulary = 300;

  // Takes seven types: of embedding, head, queries and keys, values, attention's output, gate and
  // up, and down.
  explicit GgufModel(const std::vector<std::string>& types) {
    file_.key("general.architecture", 8, counted("llama"));
    const std::vector<std::pair<std::string_view, std::uint32_t>> sizes = {
        {"context_length", 2048}, {"embedding_length", kHidden}, {"feed_forward_length", kInner},
        {"block_count", 2},       {"attention.head_count", 4},   {"attention.head_count_kv", 2},
    };
    for (const auto& [name, size] : sizes) {
      file_.key("llama." + std::string(name), 4, raw(size));
    }
    file_.key("llama.attention.layer_norm_rms_epsilon", 6, raw(1e-5f));
    add("token_embd", kVocabulary, kHidden, types[0]);
    add("output", kVocabulary, kHidden, types[1]);
    add("output_norm", 1, kHidden, "F32");
    for (const char* layer : {"blk.0.", "blk.1."}) {
      const std::string name = layer;
      add(name + "attn_norm", 1, kHidden, "F32");
      add(name + "attn_q", kHidden, kHidden, types[2]);
      add(name + "attn_k", kHidden / 2, kHidden, types[2]);
      add(name + "attn_v", kHidden / 2, kHidden, types[3]);
      add(name + "attn_output", kHidden, kHidden, types[4]);
      add(name + "ffn_norm", 1, kHidden, "F32");
      add(name + "ffn_gate", kInner, kHidden, types[5]);
      add(name + "ffn_up", kInner, kHidden, types[5]);
      add(name + "ffn_down", kHidden, kInner, types[6]);
    }
  }
  // Makes every matrix of one type.
  explicit GgufModel(const std::string& type) : GgufModel(std::vector<std::string>(7, type)) {}

  [[nodiscard]] std::string build() const { return file_.build(); }

 private:
  void add(const std::string& name, std::uint64_t rows, std::uint64_t columns,
           const std::string& type) {
    const GgmlType& how = RandomBlocks::type(type);
    std::vector<std::uint64_t> sizes = {columns};
    if (rows > 1) {
      sizes.push_back(rows);
    }
    file_.tensor(name + ".weight", sizes, how.number, file_.data.size());
    const std::uint64_t blocks = rows * columns / static_cast<std::uint64_t>(how.block_values);
    for (std::uint64_t block = 0; block < blocks; ++block) {
      file_.data += blocks_.block(type, rows == 1);
    }
    file_.data.resize((file_.data.size() + 31) / 32 * 32);
  }

  GgufBuilder file_;
  RandomBlocks blocks_{5};
};

}  // namespace quire::weights::testing
