#include "quire/model/kv_writer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_append.h"
#include "quire/kernels/kv_seal.h"
#include "quire/model/forward_batch.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::model {

void KVWriter::store(const kernels::KernelContext& context, const ForwardBatch& batch,
                     std::span<const tensor::PagedKVView> views, kernels::KVAppendParams rows) {
  rows.slots = batch.slots;
  rows.formats = batch.slot_formats;
  rows.kept = batch.kept;
  append(context, views, rows);
  if (!batch.copies.rows.empty()) {
    kernels::KVAppendParams copies = rows;  // their rows say what is refused and changed
    copies.rows = batch.copies.rows;
    copies.slots = batch.copies.slots;
    copies.formats = batch.copies.formats;
    copies.kept = {};
    copies.refused = {};
    copies.errors = {};
    append(context, views, copies);
  }
  const auto formats = static_cast<std::uint8_t>(batch.seals.empty() ? 0 : views.size());
  for (std::uint8_t to = 0; to < formats; ++to) {
    for (std::uint8_t from = 0; from < formats; ++from) {
      seal(context, batch, views, rows, {from, to});
    }
  }
}

void KVWriter::append(const kernels::KernelContext& context,
                      std::span<const tensor::PagedKVView> views, kernels::KVAppendParams rows) {
  rows.format = 0;
  for (const tensor::PagedKVView& view : views) {
    const bool all = rows.formats.empty() && rows.format == 0;
    if (all || std::ranges::find(rows.formats, rows.format) != rows.formats.end()) {
      kernels::kv_append(context, rows, view);
    }
    ++rows.format;
  }
}

void KVWriter::seal(const kernels::KernelContext& context, const ForwardBatch& batch,
                    std::span<const tensor::PagedKVView> views, const kernels::KVAppendParams& rows,
                    Formats formats) {
  pairs_.clear();
  last_rows_.clear();
  for (const BlockSeal& seal : batch.seals) {
    if (seal.from_format == formats.from && seal.to_format == formats.to) {
      pairs_.push_back({.from = seal.from, .to = seal.to});
      last_rows_.push_back(static_cast<std::size_t>(seal.last_row));
    }
  }
  if (pairs_.empty()) {
    return;
  }
  refused_.assign(pairs_.size(), 0);
  errors_.assign(rows.errors.empty() ? 0 : pairs_.size(), {});
  const bool held = kernels::seal_blocks(
      context,
      {.blocks = pairs_, .head_dim = rows.head_dim, .refused = refused_, .errors = errors_},
      views[formats.from], views[formats.to]);
  for (std::size_t i = 0; i < last_rows_.size(); ++i) {
    if (!held && rows.refused[last_rows_[i]] == 0) {
      rows.refused[last_rows_[i]] = refused_[i];
    }
    if (!errors_.empty()) {
      rows.errors[last_rows_[i]].add(errors_[i]);
    }
  }
}

}  // namespace quire::model
