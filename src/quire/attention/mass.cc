#include "quire/attention/mass.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/tile.h"
#include "quire/base/check.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_read.h"
#include "quire/kernels/rotary.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::attention {
namespace {

// Returns the queries of an entry, rotated for it: [rows, heads, head_dim].
std::vector<float> rotated_queries(const kernels::KernelContext& context, const MassParams& p,
                                   std::size_t entry) {
  const std::span<const EntryRow> rows = p.entries[entry].rows;
  const std::size_t head_dim = static_cast<std::size_t>(p.shape.head_dim);
  std::vector<float> queries(rows.size() * static_cast<std::size_t>(p.shape.heads) * head_dim);
  auto to = queries.begin();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (int head = 0; head < p.shape.heads; ++head, to += p.shape.head_dim) {
      const auto from =
          p.q.subspan(static_cast<std::size_t>(rows[i].row * p.q_stride +
                                               std::ptrdiff_t{head} * p.shape.head_dim),
                      head_dim);
      kernels::rotate_head(context, *p.rotary,
                           std::int64_t{p.plan->first_query[entry]} + static_cast<std::int64_t>(i),
                           from, {&*to, head_dim});
    }
  }
  return queries;
}

float dot(std::span<const float> a, const float* b) {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

// Returns the mass that one token gets from all rows and the heads of one KV head.
double mass_of(const MassParams& p, const Entry& entry, std::span<const float> queries,
               std::int32_t token, int kv_head, std::span<const float> key) {
  const int group = p.shape.heads / p.shape.kv_heads;
  double sum = 0;
  for (std::size_t i = 0; i < entry.rows.size(); ++i) {
    const EntryRow& row = entry.rows[i];
    const TokenRange seen = visible_tokens(entry, row, p.window_tokens);
    if (token < seen.begin || token >= seen.end) {
      continue;
    }
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const auto pair =
          i * static_cast<std::size_t>(p.shape.heads) + static_cast<std::size_t>(head);
      const double cap = p.shape.soft_cap;
      double score = dot(key, &queries[pair * key.size()]) * p.shape.softmax_scale;
      score = cap > 0 ? cap * std::tanh(score / cap) : score;
      const float lse =
          p.lse[static_cast<std::size_t>(row.row) * static_cast<std::size_t>(p.shape.heads) +
                static_cast<std::size_t>(head)];
      sum += std::exp(score - lse);
    }
  }
  return sum;
}

// Adds the mass of the tokens of one block of the run; `block` counts from the run's first.
void add_block_mass(const MassParams& p, std::size_t entry_index, std::span<const float> queries,
                    const tensor::PagedKVView& view, int block) {
  const Entry& entry = p.entries[entry_index];
  std::vector<float> key(static_cast<std::size_t>(p.shape.head_dim));
  const std::int32_t first = block * view.block_tokens;
  const std::int32_t end = std::min(first + view.block_tokens, entry.num_tokens);
  for (std::int32_t token = first; token < end; ++token) {
    for (int head = 0; head < view.kv_heads; ++head) {
      kernels::read_key(
          view, head,
          {.block = entry.blocks[static_cast<std::size_t>(block)], .offset = token - first}, key);
      p.mass[entry_index][static_cast<std::size_t>(token)] +=
          mass_of(p, entry, queries, token, head, key);
    }
  }
}

}  // namespace

void add_mass(const kernels::KernelContext& context, const MassParams& params,
              const tensor::PagedKVView& view) {
  QUIRE_CHECK(params.mass.size() == params.entries.size(), "a mass for every entry");
  for (std::size_t e = 0; e < params.entries.size(); ++e) {
    const Entry& entry = params.entries[e];
    if (params.mass[e].empty()) {
      continue;
    }
    QUIRE_CHECK(std::ssize(params.mass[e]) == entry.num_tokens,
                "a mass for every token of the run");
    const std::vector<float> queries = rotated_queries(context, params, e);
    const tensor::PagedKVView& own = params.views.empty() ? view : params.views[entry.format];
    context.pool->run(static_cast<int>(entry.blocks.size()),
                      [&](int block, int) { add_block_mass(params, e, queries, own, block); });
  }
}

}  // namespace quire::attention
