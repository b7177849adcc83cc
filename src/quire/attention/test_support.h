// For the tests of this module: a paged pool with a naive writer, a naive attention in double
// precision, and a runner. The writer is the oracle of the layout. Not part of the library.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/cpu/kernel_table.h"
#include "quire/attention/entry.h"
#include "quire/attention/plan_maker.h"
#include "quire/attention/run.h"
#include "quire/attention/self_check.h"  // IWYU pragma: export (tolerances)
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/rotary.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/float8.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::attention::test {

inline std::vector<float> random_floats(std::size_t count, std::uint32_t seed, float range = 1) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-range, range);
  std::vector<float> values(count);
  std::generate(values.begin(), values.end(), [&] { return uniform(engine); });
  return values;
}

inline std::vector<double> frequencies(int half) {
  std::vector<double> out;
  for (int i = 0; i < half; ++i) {
    out.push_back(std::pow(10000.0, -static_cast<double>(i) / half));
  }
  return out;
}

// Rotates the head to `position`: pairs (i, i + half). The rest stays as it is.
inline std::vector<double> rotated(std::span<const float> head, double position, int half) {
  std::vector<double> out(head.begin(), head.end());
  const std::vector<double> frequency = frequencies(half);
  for (int i = 0; i < half; ++i) {
    const double angle = position * frequency[i];
    const double a = head[i], b = head[i + half];
    out[i] = a * std::cos(angle) - b * std::sin(angle);
    out[i + half] = b * std::cos(angle) + a * std::sin(angle);
  }
  return out;
}

inline float round_to(tensor::DType dtype, double x) {
  const auto value = static_cast<float>(x);
  return dtype == tensor::DType::kFloat32 ? value
                                          : tensor::bf16_to_float(tensor::float_to_bf16(value));
}

// A run of tokens: what was stored, and where. k and v: [tokens][kv_heads][head_dim].
struct StoredRun {
  int tokens = 0;
  std::vector<float> k, v;
  std::vector<std::int32_t> blocks;
};

// One layer of paged KV. Every slot that nobody wrote holds NaN.
class Pool {
 public:
  Pool(AttentionShape shape, KVKind kind, int block_tokens, int num_blocks) : shape_(shape) {
    geometry_ = {.layers = 1,
                 .kv_heads = shape.kv_heads,
                 .head_dim = shape.head_dim,
                 .dtype = kind.dtype,
                 .block_tokens = block_tokens,
                 .format = kind.format};
    bytes_.assign(static_cast<std::size_t>(geometry_.block_bytes() * num_blocks / 4),
                  0x7fc07fc0u);  // NaN as fp32 and as two bf16 or fp16
    free_.resize(static_cast<std::size_t>(num_blocks));
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), std::mt19937(num_blocks));
  }

  [[nodiscard]] tensor::PagedKVView view() {
    const std::ptrdiff_t block_bytes = geometry_.head_block_bytes();
    const auto num_blocks =
        static_cast<int>(static_cast<std::ptrdiff_t>(bytes_.size() * 4) / geometry_.block_bytes());
    return {.data = reinterpret_cast<std::byte*>(bytes_.data()),
            .head_stride = block_bytes * num_blocks,
            .block_stride = block_bytes,
            .v_offset = geometry_.v_offset(),
            .num_blocks = num_blocks,
            .kv_heads = shape_.kv_heads,
            .head_dim = geometry_.stored_head_dim(),
            .block_tokens = geometry_.block_tokens,
            .dtype = geometry_.dtype,
            .format = geometry_.format,
            .scale_offset = geometry_.scale_offset()};
  }

  // Stores `keys` (already rotated) and `values`, [tokens][kv_heads][head_dim], in free blocks.
  // Slots that are left in the last block stay unwritten, or get numbers four times as large where
  // blocks are stored whole.
  StoredRun store(std::span<const float> keys, std::span<const float> values) {
    const std::size_t token_size = static_cast<std::size_t>(shape_.kv_heads * shape_.head_dim);
    StoredRun run{.tokens = static_cast<int>(keys.size() / token_size)};
    for (int token = 0; token < run.tokens; ++token) {
      if (token % geometry_.block_tokens == 0) {
        run.blocks.push_back(free_.back());
        free_.pop_back();
        if (kind().by_block()) {
          write_block(run, token, keys.subspan(static_cast<std::size_t>(token) * token_size),
                      values.subspan(static_cast<std::size_t>(token) * token_size));
        }
      }
      if (kind().by_block()) {
        continue;
      }
      const std::size_t at = static_cast<std::size_t>(token) * token_size;
      write(run, token, keys.subspan(at, token_size), values.subspan(at, token_size));
    }
    return run;
  }

  // Stores random keys and values.
  StoredRun fill(int tokens, std::uint32_t seed) {
    const std::size_t size = static_cast<std::size_t>(tokens * shape_.kv_heads * shape_.head_dim);
    return store(random_floats(size, seed), random_floats(size, seed + 1));
  }

  // Overwrites all of one stored token's K and V.
  void poison(const StoredRun& run, int token, float k, float v) {
    const std::size_t token_size = static_cast<std::size_t>(shape_.kv_heads * shape_.head_dim);
    StoredRun copy = run;
    copy.k.resize(static_cast<std::size_t>(token) * token_size);
    copy.v.resize(copy.k.size());
    write(copy, token, std::vector<float>(token_size, k), std::vector<float>(token_size, v));
  }

  [[nodiscard]] KVKind kind() const { return {geometry_.dtype, geometry_.format}; }
  [[nodiscard]] const AttentionShape& shape() const { return shape_; }

  float hidden_range = 4;  // of numbers in slots that no token has

 private:
  // Appends to run.k and run.v what the slot now holds.
  void write(StoredRun& run, int token, std::span<const float> k, std::span<const float> v) {
    const tensor::PagedKVView to = view();
    if (kind().codes()) {
      write_codes(run.k, k, [&](int head) { return CodesAt{run, token, head, false}; });
      write_codes(run.v, v, [&](int head) { return CodesAt{run, token, head, true}; });
      return;
    }
    for (int head = 0; head < shape_.kv_heads; ++head) {
      for (int d = 0; d < to.head_dim; ++d) {
        const bool real = d < shape_.head_dim;
        const int at = head * shape_.head_dim + d;
        set(run, token, {head, d, false}, real ? k[at] : 0.0f);
        set(run, token, {head, d, true}, real ? v[at] : 0.0f);
        if (real) {
          run.k.push_back(round_to(to.dtype, k[at]));
          run.v.push_back(round_to(to.dtype, v[at]));
        }
      }
    }
  }

  struct CodesAt {
    const StoredRun& run;
    int token, head;
    bool value;
  };

  // All heads of one token's keys or values as codes; appends what they stand for to `stored`.
  // Numbers that codes cannot hold get a scale that is not finite.
  template <class At>
  void write_codes(std::vector<float>& stored, std::span<const float> x, At at) {
    const auto dim = static_cast<std::size_t>(shape_.head_dim);
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const auto of = x.subspan(static_cast<std::size_t>(head) * dim, dim);
      std::vector<std::int8_t> codes(static_cast<std::size_t>(geometry_.stored_head_dim()));
      std::uint16_t scale = 0;
      if (!kernels::encode_int8(of, codes, scale)) {
        scale = tensor::float_to_fp16(of[0]);
      }
      set_codes(at(head), codes, scale);
      for (std::size_t d = 0; d < dim; ++d) {
        stored.push_back(static_cast<float>(codes[d]) * tensor::fp16_to_float(scale));
      }
    }
  }

  // The layout of tensor/paged_kv_view.h, byte by byte.
  void set_codes(const CodesAt& at, std::span<const std::int8_t> codes, std::uint16_t scale) {
    constexpr int kOrder[] = {0, 2, 1, 3};
    const tensor::PagedKVView to = view();
    const int slots = (to.block_tokens + 3) / 4 * 4, slot = at.token % to.block_tokens;
    std::byte* block = to.data + at.head * to.head_stride +
                       at.run.blocks[at.token / to.block_tokens] * to.block_stride;
    for (int d = 0; d < to.head_dim; ++d) {
      const int index = at.value ? (slot / 4 * to.head_dim + d) * 4 + kOrder[slot % 4]
                                 : (d / 4 * slots + slot) * 4 + kOrder[d % 4];
      block[(at.value ? to.head_dim * slots : 0) + index] = std::byte(codes[d]);
    }
    std::memcpy(block + 2 * to.head_dim * slots + (at.value ? 2 * slots : 0) + 2 * slot, &scale, 2);
  }

  // Stores a block that begins at token `first` of the run, of which the first numbers of k and v
  // are. Appends what it stands for.
  void write_block(StoredRun& run, int first, std::span<const float> k, std::span<const float> v) {
    const auto size = static_cast<std::size_t>(shape_.kv_heads * shape_.head_dim);
    const auto slots = static_cast<std::size_t>(geometry_.block_tokens);
    const std::size_t given = std::min(k.size() / size, slots);
    const auto whole = [&](std::span<const float> x, int seed) {
      std::vector<float> block(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(given * size));
      for (auto slot = static_cast<int>(given); slot < geometry_.block_tokens; ++slot) {
        const std::vector<float> hidden = random_floats(
            size, static_cast<std::uint32_t>(seed + 2 * (first + slot)), hidden_range);
        block.insert(block.end(), hidden.begin(), hidden.end());
      }
      return block;
    };
    const auto append = [&](std::vector<float>& to, const std::vector<float>& stored) {
      to.insert(to.end(), stored.begin(),
                stored.begin() + static_cast<std::ptrdiff_t>(given * size));
    };
    for (int head = 0; head < shape_.kv_heads; ++head) {  // padding is zeros
      std::memset(head_block({run.blocks.back(), head, 0, 0, false}), 0,
                  static_cast<std::size_t>(geometry_.head_block_bytes()));
    }
    append(run.k, set_block(run.blocks.back(), whole(k, 0), false));
    append(run.v, set_block(run.blocks.back(), whole(v, 1), true));
  }

  // Encodes K or V of all heads of a block, [slots][kv_heads][head_dim], group by group. Returns
  // the numbers that are stored.
  std::vector<float> set_block(std::int32_t block, const std::vector<float>& x, bool value) {
    std::vector<float> stored(x.size());
    const int slots = geometry_.block_tokens, dim = shape_.head_dim;
    const bool fp8 = kind() == kFp8KV;
    const int tokens = fp8 ? slots : value ? 1 : 32, channels = fp8 ? dim : value ? 32 : 1;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      for (int slot = 0; slot < slots; slot += tokens) {
        for (int d = 0; d < dim; d += channels) {
          set_group({block, head, slot, d, value}, {tokens, std::min(channels, dim - d)}, x,
                    stored);
        }
      }
    }
    return stored;
  }

  // A code's place, and the numbers of tokens and channels of a group.
  struct CodeAt {
    std::int32_t block;
    int head, slot, d;
    bool value;
  };
  struct Group {
    int tokens, channels;
  };

  void set_group(const CodeAt& first, Group group, const std::vector<float>& x,
                 std::vector<float>& stored) {
    std::vector<std::size_t> places;
    std::vector<float> numbers;
    for (int i = 0; i < group.tokens * group.channels; ++i) {
      const int slot = first.slot + i / group.channels, d = first.d + i % group.channels;
      places.push_back(
          static_cast<std::size_t>((slot * shape_.kv_heads + first.head) * shape_.head_dim + d));
      numbers.push_back(x[places.back()]);
    }
    std::vector<std::uint8_t> codes(numbers.size());
    float scale = 0;
    kernels::Int4Scale scales;
    const bool fp8 = kind() == kFp8KV;
    EXPECT_TRUE(fp8 ? kernels::encode_fp8(numbers, codes, scale)
                    : kernels::encode_int4(numbers, codes, scales));
    for (std::size_t i = 0; i < codes.size(); ++i) {
      CodeAt at = first;
      at.slot += static_cast<int>(i) / group.channels;
      at.d += static_cast<int>(i) % group.channels;
      set_code(at, codes[i]);
      stored[places[i]] = fp8 ? tensor::e4m3_to_float(codes[i]) * scale
                              : static_cast<float>(codes[i]) * tensor::fp16_to_float(scales.scale) +
                                    tensor::fp16_to_float(scales.minimum);
    }
    fp8 ? set_scale(first, scale) : set_scale(first, scales);
  }

  std::byte* head_block(const CodeAt& at) {
    const tensor::PagedKVView to = view();
    return to.data + at.head * to.head_stride + at.block * to.block_stride;
  }
  // The layout of tensor/paged_kv_view.h, code by code.
  void set_code(const CodeAt& at, std::uint8_t code) {
    const int bits = kind() == kFp8KV ? 8 : 4, pack = 32 / bits;
    const int slots = view().stored_block_tokens(), dim = view().head_dim;
    constexpr int kFour[] = {0, 2, 1, 3}, kEight[] = {0, 4, 1, 5, 2, 6, 3, 7};
    const int index = at.value ? at.slot : at.d;
    const int word =
        at.value ? slots * dim / pack + at.slot / pack * dim + at.d : at.d / pack * slots + at.slot;
    const int shift = bits * (bits == 8 ? kFour : kEight)[index % pack];
    std::uint32_t old = 0;
    std::memcpy(&old, head_block(at) + 4 * word, 4);
    old = (old & ~(((1u << bits) - 1) << shift)) | std::uint32_t{code} << shift;
    std::memcpy(head_block(at) + 4 * word, &old, 4);
  }
  void set_scale(const CodeAt& at, float scale) {
    std::memcpy(head_block(at) + view().scale_offset + (at.value ? 4 : 0), &scale, 4);
  }
  void set_scale(const CodeAt& at, kernels::Int4Scale scales) {
    const int dim = view().head_dim, run = view().scale_offset + at.slot / 32 * 8 * dim;
    const int first =
        at.value ? run + 4 * dim + at.d / 32 * 128 + 2 * (at.slot % 32) : run + 2 * at.d;
    std::memcpy(head_block(at) + first, &scales.scale, 2);
    std::memcpy(head_block(at) + first + (at.value ? 64 : 2 * dim), &scales.minimum, 2);
  }

  struct Where {
    int head, d;
    bool value;
  };

  // Writes one element by the layout of tensor/paged_kv_view.h, word by word.
  void set(const StoredRun& run, int token, Where at, float x) {
    const tensor::PagedKVView to = view();
    const int slots = (to.block_tokens + 1) / 2 * 2, slot = token % to.block_tokens;
    std::byte* block = to.data + at.head * to.head_stride +
                       run.blocks[token / to.block_tokens] * to.block_stride +
                       (at.value ? to.v_offset : 0);
    if (to.dtype == tensor::DType::kFloat32) {
      const int index = at.value ? slot * to.head_dim + at.d : at.d * slots + slot;
      std::memcpy(block + index * 4, &x, 4);
    } else {
      const std::uint16_t bits = tensor::float_to_bf16(x);
      const int index = at.value ? (slot / 2 * to.head_dim + at.d) * 2 + slot % 2
                                 : (at.d / 2 * slots + slot) * 2 + at.d % 2;
      std::memcpy(block + index * 2, &bits, 2);
    }
  }

  AttentionShape shape_;
  tensor::KVGeometry geometry_;
  std::vector<std::uint32_t> bytes_;
  std::vector<std::int32_t> free_;
};

// Rows of one run, with the storage that an Entry borrows.
struct Use {
  const StoredRun* run = nullptr;
  std::vector<EntryRow> rows;
  std::int32_t num_tokens = -1;           // -1: all of the run
  std::vector<std::int32_t> blocks = {};  // empty: those of the run
};

// Makes rows [first_row, first_row + count) the run's last `count` tokens themselves, causal.
inline Use causal(const StoredRun& run, int first_row, int count) {
  Use use{.run = &run, .rows = {}};
  for (int i = 0; i < count; ++i) {
    const int position = run.tokens - count + i;
    use.rows.push_back({first_row + i, position, position + 1});
  }
  return use;
}

struct Problem {
  std::vector<Use> uses;
  std::vector<float> q;  // [rows, heads, head_dim], not rotated
  int window = 0;
  int half = 0;  // rotary_dim / 2
  std::vector<float> sinks = {};
};

inline std::vector<Entry> entries_of(const Problem& problem) {
  std::vector<Entry> entries;
  for (const Use& use : problem.uses) {
    entries.push_back({use.blocks.empty() ? use.run->blocks : use.blocks,
                       use.num_tokens < 0 ? use.run->tokens : use.num_tokens, use.rows});
  }
  return entries;
}

struct Output {
  std::vector<float> out, lse;
  PlanCounters counters;
  bool bf16_queries = false;  // the set rounds rotated queries to bf16, where KV is not fp32
  bool operator==(const Output& other) const {
    return out.size() == other.out.size() && lse.size() == other.lse.size() &&
           std::memcmp(out.data(), other.out.data(), out.size() * 4) == 0 &&
           std::memcmp(lse.data(), other.lse.data(), lse.size() * 4) == 0;
  }
};

inline kernels::RotaryTable table_of(std::span<const std::int32_t> positions, int half) {
  kernels::RotaryTable table;
  table.half = half;
  const std::vector<double> frequency = frequencies(half);
  for (const std::int32_t position : positions) {
    for (const double f : frequency) {
      table.cos.push_back(static_cast<float>(std::cos(position * f)));
      table.sin.push_back(static_cast<float>(std::sin(position * f)));
    }
  }
  return table;
}

struct Machine {
  device::Isa isa = device::Isa::kPortable;
  int threads = 1;
};

inline bool rounds_queries(const KernelTable& table, KVKind kind) {
  if (kind == kInt4KV) {
    return false;
  }
  return kind.codes() ? table.bf16_code_queries : table.bf16_queries;
}

// Tells whether KV of this kind may lie in blocks of so many tokens.
inline bool takes_blocks_of(KVKind kind, int tokens) {
  return kind != kInt4KV || tokens % tensor::kInt4RunTokens == 0;
}

inline Output attend(Machine machine, Pool& pool, const Problem& problem) {
  const AttentionShape& shape = pool.shape();
  device::ThreadPool threads(machine.threads);
  const std::vector<Entry> entries = entries_of(problem);
  const AttentionPlan plan =
      make_plan(shape, entries, pool.view().block_tokens, problem.window, machine.threads);
  const kernels::RotaryTable rotary = table_of(plan.query_positions, problem.half);
  Output output{std::vector<float>(problem.q.size(), 7.0f),
                std::vector<float>(problem.q.size() / shape.head_dim, 7.0f), plan.counters,
                rounds_queries(attention::kernels_for(machine.isa), pool.kind())};
  AttentionScratch scratch;
  run({&kernels::kernels_for(machine.isa), &threads},
      {.shape = shape,
       .entries = entries,
       .plan = &plan,
       .window_tokens = problem.window,
       .q = problem.q,
       .q_stride = static_cast<std::ptrdiff_t>(shape.heads) * shape.head_dim,
       .rotary = &rotary,
       .out = output.out,
       .lse = output.lse,
       .sinks = problem.sinks},
      pool.view(), scratch);
  return output;
}

// Values that one row and head should see: dense softmax over all entries in double precision.
struct Expected {
  std::vector<double> out;
  double lse = -std::numeric_limits<double>::infinity();
};

inline Expected expected(const Pool& pool, const Problem& problem, bool bf16_queries, int row,
                         int head) {
  const AttentionShape& shape = pool.shape();
  const std::size_t dim = static_cast<std::size_t>(shape.head_dim);
  const int kv_head = head / (shape.heads / shape.kv_heads);
  std::vector<double> scores;
  std::vector<const float*> values;
  for (const Use& use : problem.uses) {
    const int tokens = use.num_tokens < 0 ? use.run->tokens : use.num_tokens;
    for (const EntryRow& r : use.rows) {
      if (r.row != row) {
        continue;
      }
      std::vector<double> q =
          rotated(std::span(problem.q).subspan((row * shape.heads + head) * dim, dim),
                  r.query_position, problem.half);
      for (double& x : q) {
        x *= shape.softmax_scale * std::numbers::log2e;
        x = bf16_queries ? round_to(pool.kind().dtype, x) : x;
      }
      for (int j = 0; j < std::min(tokens, r.visible_end); ++j) {
        if (problem.window > 0 && j <= std::int64_t{r.query_position} - problem.window) {
          continue;
        }
        const float* k = &use.run->k[(j * shape.kv_heads + kv_head) * dim];
        const double score = std::inner_product(q.begin(), q.end(), k, 0.0) * std::numbers::ln2;
        const double cap = shape.soft_cap;
        scores.push_back(cap > 0 ? cap * std::tanh(score / cap) : score);
        values.push_back(&use.run->v[(j * shape.kv_heads + kv_head) * dim]);
      }
    }
  }
  Expected result{std::vector<double>(dim, 0.0)};
  if (scores.empty()) {
    return result;
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = problem.sinks.empty() ? 0 : std::exp(problem.sinks[head] - max);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double p = std::exp(scores[i] - max);
    sum += p;
    for (std::size_t d = 0; d < dim; ++d) {
      result.out[d] += p * values[i][d];
    }
  }
  for (double& x : result.out) {
    x /= sum;
  }
  result.lse = max + std::log(sum);
  return result;
}

inline double relative_l2(std::span<const float> got, std::span<const double> want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
}

// Returns the largest relative L2 error over all rows and heads, or infinity if an lse is off by
// more than `lse_tolerance`.
inline double worst_error(const Pool& pool, const Problem& problem, const Output& output,
                          double lse_tolerance) {
  const AttentionShape& shape = pool.shape();
  double worst = 0;
  for (std::size_t pair = 0; pair < output.lse.size(); ++pair) {
    const Expected want =
        expected(pool, problem, output.bf16_queries, static_cast<int>(pair) / shape.heads,
                 static_cast<int>(pair) % shape.heads);
    const auto got = std::span(output.out).subspan(pair * shape.head_dim, shape.head_dim);
    const double error = relative_l2(got, want.out);
    const bool lse_ok = std::isinf(want.lse)
                            ? output.lse[pair] == static_cast<float>(want.lse)
                            : std::abs(output.lse[pair] - want.lse) <= lse_tolerance;
    if (!lse_ok || std::isnan(error)) {
      return std::numeric_limits<double>::infinity();
    }
    worst = std::max(worst, error);
  }
  return worst;
}

inline AttentionShape shape_of(int heads, int kv_heads, int head_dim) {
  return {heads, kv_heads, head_dim, 1.0 / std::sqrt(static_cast<double>(head_dim))};
}

inline std::vector<float> random_queries(const AttentionShape& shape, int rows,
                                         std::uint32_t seed) {
  return random_floats(static_cast<std::size_t>(rows) * shape.heads * shape.head_dim, seed, 2);
}

// The instruction set and KV type of a case, and its name.
using Param = std::tuple<device::Isa, KVKind>;
inline auto every_case() {
  using device::Isa;
  return ::testing::Combine(
      ::testing::Values(Isa::kPortable, Isa::kAvx2, Isa::kAvx512Vnni, Isa::kAvx512, Isa::kAmx),
      ::testing::Values(KVKind(tensor::DType::kBFloat16), KVKind(tensor::DType::kFloat32), kInt8KV,
                        kFp8KV, kInt4KV));
}
inline std::string param_name(const ::testing::TestParamInfo<Param>& info) {
  return std::string(device::isa_name(std::get<0>(info.param))) + "_" +
         tensor::kv_format_name(std::get<1>(info.param).format, std::get<1>(info.param).dtype);
}

}  // namespace quire::attention::test
