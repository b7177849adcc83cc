// StateMaps: what the rows of a chunk make of the state before them (docs/adr/0048).
//
// For fixed inputs a head of a layer with a state goes from S to A S + B, whatever S is. A state
// space has a number as A. A convolution keeps its last inputs. So chunks whose maps are kept act
// on any state, in any order, for the price of one product each. A chunk of few tokens keeps its
// inputs instead, which are fewer bytes then.
//
// Maps grow row after row in fp32, so they depend on the rows alone, however those are cut into
// steps. They are packed when the last row is there: in 32 bits, or in fp16 with a power of two for
// each array. A head that has forgotten all before it keeps no A.
//
// Thread rule: one call at a time; a call spreads over the pool of its context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quire/kernels/kernel_context.h"
#include "quire/model/config.h"
#include "quire/result.h"

namespace quire::model {

// Rows of one layer of a chunk, as the update of states reads them.
struct MapRows {
  const float* key = nullptr;    // [rows][key_heads * key_dim]
  const float* value = nullptr;  // [rows][value_heads * value_dim]
  std::ptrdiff_t stride = 0;     // of both
  const float* gates = nullptr;  // [rows][2 * value_heads]: beta, then decay
  std::int32_t first = 0;        // index of the first row among the chunk's tokens
  std::int32_t count = 0;
};

class StateMaps {
 public:
  // Makes room for a chunk of `tokens` tokens. Borrows `config`. With `in_32_bits` nothing is
  // rounded. Throws std::bad_alloc where the system refuses.
  StateMaps(const ModelConfig& config, std::int32_t tokens, bool in_32_bits);

  // Returns the most bytes that pack() gives for a chunk of so many tokens.
  [[nodiscard]] static std::int64_t most_bytes(const ModelConfig& config, std::int32_t tokens,
                                               bool in_32_bits);

  // Forgets all rows. The next ones are the chunk's first.
  void begin();
  // Adds rows to the maps of a layer, `layer` being its index among those with a state.
  void grow(const kernels::KernelContext& context, std::size_t layer, const MapRows& rows);
  // Packs the maps. `state` is the one behind the chunk, of which the last inputs of convolutions
  // are taken. Fails with kUnsupported for numbers that are not finite.
  [[nodiscard]] Result<std::vector<std::byte>> pack(std::span<const std::byte> state) const;

 private:
  void grow_head(const kernels::KernelContext& context, std::size_t layer, const MapRows& rows,
                 std::int32_t head);
  void keep_inputs(std::size_t layer, const MapRows& rows);
  [[nodiscard]] std::size_t layers() const;
  [[nodiscard]] float* at(std::size_t layer, std::int32_t head) {
    return numbers_.data() + static_cast<std::int64_t>(layer) * layer_size_ + head * head_size_;
  }

  const ModelConfig& config_;
  std::int32_t tokens_ = 0;
  bool in_32_bits_ = false;
  bool keeps_inputs_ = false;
  std::int64_t layer_size_ = 0;  // numbers of a layer
  std::int64_t head_size_ = 0;   // numbers of a head's A and B
  // [layers]: A and B of each head, or inputs [tokens][keys, values, gates].
  std::vector<float> numbers_;
  std::vector<double> decays_;  // [layers][heads] A of a state space
};

// Returns packed maps of a chunk: those of `fresh` for layers of the model that `takes` wants, and
// else those of `stored`. Both are of the same chunk. Fails with kCorrupt for bytes that pack() has
// not made for this model.
[[nodiscard]] Result<std::vector<std::byte>> merge_maps(
    const ModelConfig& config, std::span<const std::byte> stored, std::span<const std::byte> fresh,
    const std::function<bool(std::int32_t layer)>& takes);

// Makes `state` the one behind a chunk: it is the one before the chunk, or with `is_first` nothing.
// Fails with kCorrupt for bytes that pack() has not made for this model. Cost: one product of
// [key_dim, key_dim] and [key_dim, value_dim] for each head.
[[nodiscard]] Status apply_maps(const kernels::KernelContext& context, const ModelConfig& config,
                                std::span<const std::byte> packed, bool is_first,
                                std::span<std::byte> state);

}  // namespace quire::model
