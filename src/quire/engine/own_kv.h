// OwnKV: the KV of some token ids in one format, beside the engine's, for measuring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/engine/batch_builder.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kv/ledger.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/state_pool.h"
#include "quire/model/forward_batch.h"
#include "quire/model/kv_writer.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/tensor/state_view.h"
#include "quire/types.h"

namespace quire::engine {

// The KV of all ids in a pool and a ledger of its own, on the CPU. Tokens are stored and seen as
// the engine does it. One thread at a time.
class OwnKV {
 public:
  // Makes room for the KV of `ids`, computed at most `step_tokens` at a time, and for a state of
  // `states`. Errors of PagedPool::create and StatePool::create.
  [[nodiscard]] static Result<std::unique_ptr<OwnKV>> create(const tensor::KVGeometry& geometry,
                                                             const tensor::StateGeometry& states,
                                                             std::span<const TokenId> ids,
                                                             std::int32_t step_tokens);

  // Returns the batch of the next `count` tokens, with the logits of all. Valid until the next
  // call. Precondition: the tokens before have been booked.
  [[nodiscard]] Result<model::ForwardBatch> next_batch(std::int32_t count);
  // Books that the KV of these tokens is there.
  void advance(std::int32_t count) { ledger_.sequences().advance(sequence_, count); }

  // Returns the views for a batch that names so many formats.
  [[nodiscard]] std::span<const tensor::PagedKVView> views(std::uint8_t formats) const {
    return std::span(views_).first(layers() * formats);
  }

  // K and V of the tokens of the last batch, each [tokens][kv_heads * head_dim].
  struct Rows {
    std::span<const float> keys, values;
    int head_dim = 0;
  };
  // Stores rows of one layer, as they are, where a step stores the tokens of the last batch.
  void store(const kernels::KernelContext& context, int layer, const Rows& rows);
  // Read K or V of one token, out.size() numbers of it, as rows of later blocks see it.
  void read_key(int layer, int kv_head, std::size_t token, std::span<float> out) const;
  void read_value(int layer, int kv_head, std::size_t token, std::span<float> out) const;
  // Returns the numbers of a row that may be read, which are padded with zeros.
  [[nodiscard]] std::size_t row_size(int layer) const {
    return static_cast<std::size_t>(view(layer, 0).head_dim);
  }

 private:
  OwnKV(kv_store::PagedPool pool, std::optional<kv_store::PagedPool> staging,
        const kv::LedgerConfig& config, std::span<const TokenId> ids);
  struct Place {
    std::uint8_t format = 0;
    tensor::KVSlot slot;
  };
  [[nodiscard]] Place place_of(std::size_t token) const;
  [[nodiscard]] std::size_t layers() const {
    return static_cast<std::size_t>(pool_.geometry().layers);
  }
  [[nodiscard]] const tensor::PagedKVView& view(int layer, std::uint8_t format) const {
    return views_[static_cast<std::size_t>(layer) + format * layers()];
  }

  kv_store::PagedPool pool_;
  std::optional<kv_store::PagedPool> staging_;
  kv_store::StatePool states_;              // one, where layers carry a state
  model::StateRun state_run_;               // of the batch
  std::vector<tensor::PagedKVView> views_;  // [formats and staging][layers]
  kv::Ledger ledger_;
  SeqId sequence_;
  BatchBuilder builder_;
  model::ForwardBatch batch_;
  model::KVWriter writer_;
  std::vector<std::uint8_t> refused_;             // [rows]
  std::vector<tensor::PagedKVView> layer_views_;  // [formats] of the layer in hand
};

}  // namespace quire::engine
