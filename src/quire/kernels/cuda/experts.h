// Experts on the device: which ones each row takes, the rows grouped by expert, and the sum of what
// experts make of a row. Nothing of it goes to the host, so that steps can be recorded. A row's
// bits depend on that row alone. Rows have places, one for each expert that they take; places are
// in order of experts, then of rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace quire::kernels::cuda {

inline constexpr int kMostExperts = 1024;

// logits[r][e] = the normed row times row e of the weights, plus its bias, all fp32.
struct RouterParams {
  const float* x = nullptr;     // [rows, width]: width is a multiple of 4
  const float* norm = nullptr;  // [width]
  float epsilon = 0;
  const float* weights = nullptr;  // [experts, width]
  const float* bias = nullptr;     // [experts] or null
  std::int64_t rows = 0;
  std::int32_t width = 0;
  std::int32_t experts = 0;
  float* logits = nullptr;  // [rows, experts]
};
[[nodiscard]] cudaError_t route(const RouterParams& params, cudaStream_t stream);

// Chooses a row's experts and their weights. Those are the largest logits, of equal ones the lower
// ids; NaN is the largest. A weight is a share of a softmax, or a sigmoid.
struct ExpertChoiceParams {
  const float* logits = nullptr;  // [rows, experts]
  std::int64_t rows = 0;
  std::int32_t experts = 0;  // at most kMostExperts
  std::int32_t chosen = 0;
  // More than 1: experts stand in so many groups of neighbours, and those chosen are of
  // `chosen_groups` of them. A group's rank is the largest score of its experts, or the sum of the
  // two largest where weights are sigmoids.
  std::int32_t groups = 1;
  std::int32_t chosen_groups = 1;
  bool by_sigmoid = false;
  bool of_chosen = true;        // weights are divided by what those of the chosen add up to
  double sum_epsilon = 0;       // on sums of sigmoids
  double weight_scale = 1;      // on weights, at the end
  const float* bias = nullptr;  // [experts] on sigmoids for the choice only, or null
  std::int32_t* ids = nullptr;  // [rows, chosen], ascending
  float* weights = nullptr;     // [rows, chosen]
};
[[nodiscard]] cudaError_t choose_experts(const ExpertChoiceParams& params, cudaStream_t stream);

// Neighbouring places of one expert, as many as a block of a product takes.
struct ExpertRows {
  std::int32_t expert = 0;
  std::int32_t first = 0;  // place
  std::int32_t count = 0;  // 0: nothing to do
};

// Returns the most ExpertRows that so many places can make up.
[[nodiscard]] constexpr std::int64_t most_expert_rows(std::int64_t places, std::int32_t experts,
                                                      int block_rows) {
  return (places < experts ? places : experts) + places / block_rows;
}

// Gives rows their places.
struct GroupParams {
  const std::int32_t* ids = nullptr;  // [rows, chosen]
  std::int64_t rows = 0;
  std::int32_t experts = 0;  // at most kMostExperts
  std::int32_t chosen = 0;
  int block_rows = 0;                 // the most places of an ExpertRows
  std::int32_t* row_of = nullptr;     // [places]
  std::int32_t* places_of = nullptr;  // [rows, chosen], in order of experts
  ExpertRows* groups = nullptr;       // [most_expert_rows()]; what is not needed has no places
};
[[nodiscard]] cudaError_t group_rows(const GroupParams& params, cudaStream_t stream);

// Adds an expert's bias to the products of its places.
struct ExpertBiasParams {
  const ExpertRows* groups = nullptr;
  std::int64_t num_groups = 0;
  const float* bias = nullptr;  // [experts, width]
  std::int32_t width = 0;
  float* out = nullptr;  // [places, width]
};
[[nodiscard]] cudaError_t add_expert_bias(const ExpertBiasParams& params, cudaStream_t stream);

// Adds up products times weights in order of experts, from zero on. A row becomes the sum, or
// increases by it.
struct ExpertSumParams {
  const float* products = nullptr;          // [places, width]: width is a multiple of 4
  const std::int32_t* places_of = nullptr;  // [rows, chosen]
  const float* weights = nullptr;           // [rows, chosen]
  std::int64_t rows = 0;
  std::int32_t chosen = 0;
  std::int32_t width = 0;
  float* out = nullptr;  // [rows, width]
  bool accumulate = false;
};
[[nodiscard]] cudaError_t sum_experts(const ExpertSumParams& params, cudaStream_t stream);

// Adds rows to others, times the sigmoid of a number of each row where there is one.
struct SharedSumParams {
  const float* x = nullptr;      // [rows, width]
  const float* gates = nullptr;  // [rows] or null
  std::int64_t rows = 0;
  std::int32_t width = 0;
  float* out = nullptr;  // [rows, width]
};
[[nodiscard]] cudaError_t add_shared(const SharedSumParams& params, cudaStream_t stream);

}  // namespace quire::kernels::cuda
