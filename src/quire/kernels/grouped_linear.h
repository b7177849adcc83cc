// Products of rows in groups, each group with a matrix of its own: the experts of a layer. All
// matrices of a call have one shape and one format.
//
// A row's bits are those that linear() gives it with the matrix of its group. They depend on
// nothing else in the call. A matrix is read once, however many rows its group has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"

namespace quire::kernels {

// Rows [first, first + rows) of the grouped rows; at least one.
struct RowGroup {
  const PackedWeights* weights = nullptr;
  std::span<const float> bias;  // [columns] or empty
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

// Copies packed rows into groups: grouped row i becomes row sources[i] of `from`. Every group
// begins blocks of its own. Only `first` and `rows` of the groups are read.
void gather_packed_rows(const KernelContext& context, const PackedRows& from,
                        std::span<const std::int32_t> sources, std::span<const RowGroup> groups,
                        PackedRows& to);

// Does linear_gated for each group. `packed` holds grouped rows. Precondition: can_gate.
void linear_gated_groups(const KernelContext& context, std::span<const RowGroup> groups,
                         const PackedRows& packed, const GatedRows& gated, LinearScratch& scratch);

// Sets out to linear() of each group, grouped rows one after the other. For few rows.
void linear_groups(const KernelContext& context, std::span<const RowGroup> groups,
                   const PackedRows& packed, const OutputRows& out, LinearScratch& scratch);

// Sums of products of grouped rows: row targets[i] of a sum gets factors[i] times the product of
// grouped row i. A sum begins at zero, and has one chain of additions, in the order of the grouped
// rows.
struct GroupedSum {
  std::int64_t rows = 0;                  // of sums
  std::span<const std::int32_t> targets;  // of grouped rows
  std::span<const float> factors;         // of grouped rows
};

// Sets sums [rows, columns] to the sums of linear() of each group. For many rows: no product is
// kept, and each thread has columns of its own.
void linear_groups_summed(const KernelContext& context, std::span<const RowGroup> groups,
                          const PackedRows& packed, const GroupedSum& sum, const OutputRows& sums,
                          LinearScratch& scratch);

}  // namespace quire::kernels
