// A composition as its reference sees it: what every token sees of every other, and from how far.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "dense_oracle.h"
#include "quire/chunks.h"
#include "quire/types.h"

namespace quire::chunks {

struct Scene {
  struct Segment {
    Ids ids;
    std::int64_t position = 0;  // where it is used
    // Contexts before it, ascending, that it was computed behind in mode anchored, one after the
    // other and all behind the system chunk.
    std::vector<std::int64_t> behind = {};
  };
  std::optional<Segment> system;
  std::vector<Segment> contexts;
  Segment query;  // with what was generated behind it
  ReuseMode mode = ReuseMode::kAnchored;
  bool computed_in_place = false;
  std::optional<TokenId> bos_sink;
  // Mode blend on base `mode`: context tokens, as indices into the joined ids, that are computed
  // again in every layer with what stands before them in sight. Nobody sees their old rows but the
  // rows of the base mode.
  std::vector<std::int32_t> recomputed;
  // Rows computed again run through these layers alone. They begin with the old rows' input of the
  // first of them. Their KV stands for the old one in the layers behind the first, up to `last`,
  // and in layer 0 where they begin there.
  std::optional<LayerRange> layers;
  // Rows computed again run through all layers, and the query sees their KV in this layer alone.
  std::optional<std::int32_t> only_layer;

  // Positions one after the other, or contexts side by side behind the system chunk.
  void place(Positions positions);

  [[nodiscard]] std::int32_t first_context() const;  // index of its first token
  [[nodiscard]] std::int32_t num_context_tokens() const;

  // Returns the logits of the query's tokens.
  [[nodiscard]] Matrix logits(const DenseModel& model) const;
  // Returns the logits of the query's tokens when every token sees all before it.
  [[nodiscard]] Matrix exact_logits(const DenseModel& model) const;

  // How far the values of each context token at layer 1 move, as the sum of squares, when all
  // context tokens have everything before them in sight (CacheBlend 2405.16444).
  [[nodiscard]] std::vector<double> value_deviations(const DenseModel& model) const;
  // How much the query's tokens look at each context token in the base mode: attention
  // probabilities summed over query tokens, heads and layers (ProphetKV 2602.02579).
  [[nodiscard]] std::vector<double> query_attention(const DenseModel& model) const;

 private:
  struct Token;
  struct Pass;
  [[nodiscard]] Pass pass() const;
};

}  // namespace quire::chunks
