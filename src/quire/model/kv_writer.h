// KVWriter: stores the keys and values of a step's rows, in every format that the batch names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_append.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/kv_seal.h"
#include "quire/model/forward_batch.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::model {

// Keeps its arrays between calls. One thread at a time; the kernels use the pool of the context.
class KVWriter {
 public:
  // Stores the rows of one layer and their copies, on the CPU. `rows` has keys, values and what a
  // token adds to `refused` and `errors`; the batch has the slots and formats. Blocks that become
  // full are stored in their format then, with all rows that they have. A block that its format
  // cannot hold sets `refused` of the row that fills it, to refusal_of() the token (kv_seal.h).
  // Precondition: `views` has a view of each format that the batch names, and `refused` has an
  // element for each row.
  void store(const kernels::KernelContext& context, const ForwardBatch& batch,
             std::span<const tensor::PagedKVView> views, kernels::KVAppendParams rows);

 private:
  struct Formats {
    std::uint8_t from = 0, to = 0;
  };
  static void append(const kernels::KernelContext& context,
                     std::span<const tensor::PagedKVView> views, kernels::KVAppendParams rows);
  void seal(const kernels::KernelContext& context, const ForwardBatch& batch,
            std::span<const tensor::PagedKVView> views, const kernels::KVAppendParams& rows,
            Formats formats);

  // Blocks that become full, from one format to one other: [blocks].
  std::vector<kernels::BlockPair> pairs_;
  std::vector<std::size_t> last_rows_;
  std::vector<std::uint8_t> refused_;
  std::vector<kernels::KVErrorSums> errors_;
};

}  // namespace quire::model
