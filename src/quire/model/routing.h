// Routing: which experts each row of a layer takes, and the same rows grouped by expert.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/model/layer_plan.h"

namespace quire::model {

// Rows by the experts that they have chosen. Each (row, expert) has a place; places are in order of
// experts, then of rows.
struct Routing {
  // Places [first, first + rows) are of one expert.
  struct Group {
    std::int32_t expert = 0;
    std::int32_t first = 0;
    std::int32_t rows = 0;
  };
  std::vector<Group> groups;         // of the experts that some row has chosen
  std::vector<std::int32_t> rows;    // [places]
  std::vector<float> weights;        // [places]
  std::vector<std::int32_t> places;  // [rows][chosen], in order of experts
};

// Chooses a row's experts from the router's logits [count], which a sigmoid overwrites. Sets `ids`
// and `weights` [chosen], ids ascending. NaN counts as the largest logit, so that its row becomes
// NaN. `bias` is [count] where experts.biases_choice, else empty.
void choose_experts(const Experts& experts, std::span<const float> bias, std::span<float> logits,
                    std::span<std::int32_t> ids, std::span<float> weights);

// Groups rows by what they have chosen: ids and weights [rows][chosen]. Allocates only when it
// needs more than it ever held.
void group_rows(const Experts& experts, std::span<const std::int32_t> ids,
                std::span<const float> weights, Routing& routing);

}  // namespace quire::model
