// Tests that bits are equal. The output of a row depends on its query and on what it sees. It never
// depends on the batch, the prefill split, the number of threads, the block size or the entries of
// other rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "quire/attention/run.h"
#include "quire/attention/test_support.h"

namespace {

std::atomic<long> allocations{0};  // counted by the operator new below

}  // namespace

void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* data = std::malloc(bytes)) {  // NOLINT: the replacement of operator new
    return data;
  }
  throw std::bad_alloc();
}
// Not inlined, or gcc takes malloc and free for a mismatched pair.
__attribute__((noinline)) void operator delete(void* data) noexcept { std::free(data); }  // NOLINT
__attribute__((noinline)) void operator delete(void* data, std::size_t) noexcept {
  std::free(data);  // NOLINT
}

namespace quire::attention {
namespace {

using device::Isa;
using tensor::DType;
using namespace test;  // NOLINT: this module's own test helpers

class SameBits : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    if (!device::isa_supported(isa())) {
      GTEST_SKIP() << "this machine lacks " << device::isa_name(isa());
    }
  }
  [[nodiscard]] static Isa isa() { return std::get<0>(GetParam()); }
  [[nodiscard]] static KVKind kind() { return std::get<1>(GetParam()); }

  // Rows [first, first + count) of `whole`.
  static Output rows_of(const AttentionShape& shape, const Output& whole, int first, int count) {
    const auto pairs = [&](int rows) { return static_cast<std::ptrdiff_t>(rows) * shape.heads; };
    const auto begin = whole.out.begin() + pairs(first) * shape.head_dim;
    return {std::vector<float>(begin, begin + pairs(count) * shape.head_dim),
            std::vector<float>(whole.lse.begin() + pairs(first),
                               whole.lse.begin() + pairs(first + count)),
            {}};
  }
  static std::vector<float> queries_of(const AttentionShape& shape, std::span<const float> q,
                                       int first, int count) {
    const std::size_t size = static_cast<std::size_t>(shape.heads) * shape.head_dim;
    const auto part = q.subspan(first * size, count * size);
    return {part.begin(), part.end()};
  }
};

// Query rows [first, first + count) at their own positions of a causal run, as a chunk of a prefill
// sees it. The run ends with the chunk.
Use chunk_of(const StoredRun& run, int first, int count) {
  Use use{.run = &run, .rows = {}, .num_tokens = first + count};
  for (int i = 0; i < count; ++i) {
    use.rows.push_back({i, first + i, first + i + 1});
  }
  return use;
}

TEST_P(SameBits, DecodeEqualsEveryPrefillSplit) {
  AttentionShape capped = shape_of(12, 1, 64);
  capped.soft_cap = 2;
  const AttentionShape shapes[] = {shape_of(8, 1, 64), shape_of(4, 4, 32), shape_of(6, 2, 80),
                                   shape_of(40, 1, 32), capped};
  for (const AttentionShape& shape : shapes) {
    for (const int window : {0, 90}) {
      const int tokens = 420;
      Pool pool(shape, kind(), 32, 20);
      const StoredRun kv = pool.fill(tokens, 3);
      const std::vector<float> q = random_queries(shape, tokens, 4);
      const auto problem = [&](int first, int count) {
        return Problem{.uses = {chunk_of(kv, first, count)},
                       .q = queries_of(shape, q, first, count),
                       .window = window,
                       .half = shape.head_dim / 2};
      };
      const Output all = attend({isa(), 2}, pool, problem(0, tokens));
      for (const int chunk : {1, 7, 64, 250}) {
        for (const int threads : {1, 3}) {
          for (int first = 0; first < tokens; first += chunk * (chunk == 1 ? 83 : 1)) {
            const int rows = std::min(chunk, tokens - first);
            ASSERT_EQ(attend({isa(), threads}, pool, problem(first, rows)),
                      rows_of(shape, all, first, rows))
                << shape.head_dim << " dims, chunk " << chunk << " at " << first;
          }
        }
      }
    }
  }
}

TEST_P(SameBits, EveryBlockSizeGivesTheSameBits) {
  for (const AttentionShape& shape : {shape_of(8, 2, 64), shape_of(3, 1, 40)}) {
    // Blocks of fp8 have the same scales if all tokens have the same largest number.
    std::vector<float> k =
        random_floats(static_cast<std::size_t>(613 * shape.kv_heads * shape.head_dim), 5);
    std::vector<float> v = random_floats(k.size(), 6);
    for (std::size_t at = 0; at < k.size(); at += static_cast<std::size_t>(shape.head_dim)) {
      k[at] = v[at] = 1;
    }
    for (const int window : {0, 77}) {
      std::vector<Output> outputs;
      for (const int block_tokens : {32, 1, 2, 3, 5, 16, 31, 33, 64, 96, 100, 256}) {
        if (!takes_blocks_of(kind(), block_tokens)) {
          continue;
        }
        Pool pool(shape, kind(), block_tokens, 700 / block_tokens + 2);
        pool.hidden_range = 1;
        const StoredRun kv = pool.store(k, v);
        const Problem problem{.uses = {causal(kv, 0, 30)},
                              .q = random_queries(shape, 30, 6),
                              .window = window,
                              .half = shape.head_dim / 2};
        outputs.push_back(attend({isa(), 2}, pool, problem));
        EXPECT_EQ(outputs.back(), outputs.front()) << block_tokens;
      }
    }
  }
}

TEST_P(SameBits, RaggedBatchEqualsEachRequestAlone) {
  for (const AttentionShape& shape : {shape_of(8, 2, 64), shape_of(14, 2, 32)}) {
    Pool pool(shape, kind(), 32, 80);
    const int lengths[] = {1, 700, 33, 256, 90, 513};
    const int new_rows[] = {1, 40, 1, 3, 90, 1};
    std::vector<StoredRun> runs;
    for (const int length : lengths) {
      runs.push_back(pool.fill(length, static_cast<std::uint32_t>(length)));
    }
    const int total = std::accumulate(std::begin(new_rows), std::end(new_rows), 0);
    Problem batch{.uses = {}, .q = random_queries(shape, total, 7), .half = 16};
    int first = 0;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      batch.uses.push_back(causal(runs[i], first, new_rows[i]));
      first += new_rows[i];
    }
    for (const int threads : {1, 3}) {
      const Output together = attend({isa(), threads}, pool, batch);
      first = 0;
      for (std::size_t i = 0; i < runs.size(); ++i) {
        const Problem alone{.uses = {causal(runs[i], 0, new_rows[i])},
                            .q = queries_of(shape, batch.q, first, new_rows[i]),
                            .half = 16};
        EXPECT_EQ(attend({isa(), 1}, pool, alone), rows_of(shape, together, first, new_rows[i]))
            << i;
        first += new_rows[i];
      }
    }
  }
}

// One physical chunk used by three requests at three offsets in one batch, each with another
// chunk and a tail of its own.
TEST_P(SameBits, SharedChunkEqualsSeparateRequests) {
  const AttentionShape shape = shape_of(8, 2, 64);
  Pool pool(shape, kind(), 32, 80);
  const StoredRun shared = pool.fill(541, 8), other = pool.fill(300, 9);
  const StoredRun tails[] = {pool.fill(61, 10), pool.fill(3, 11), pool.fill(257, 12)};
  const int starts[] = {0, 300, 99991};
  const std::vector<float> q = random_queries(shape, 3, 13);
  // Request r attends to the other chunk, then the shared one, then its tail.
  const auto uses = [&](int r, int row) {
    const int position = starts[r] + 541 + 40 + tails[r].tokens - 1;
    return std::vector<Use>{
        {.run = &other, .rows = {{row, position, 300}}},
        {.run = &shared, .rows = {{row, position - starts[r], 541}}},
        {.run = &tails[r], .rows = {{row, position - starts[r] - 581, tails[r].tokens}}}};
  };
  Problem batch{
      .uses = {{.run = &other, .rows = {}}, {.run = &shared, .rows = {}}}, .q = q, .half = 32};
  for (int r = 0; r < 3; ++r) {
    const std::vector<Use> own = uses(r, r);
    batch.uses[0].rows.push_back(own[0].rows[0]);
    batch.uses[1].rows.push_back(own[1].rows[0]);
    batch.uses.push_back(own[2]);
  }
  for (const int threads : {1, 2, 3, 8}) {
    const Output together = attend({isa(), threads}, pool, batch);
    EXPECT_LE(worst_error(pool, batch, together, lse_tolerance(kind(), isa())),
              tolerance(kind(), isa()));
    for (int r = 0; r < 3; ++r) {
      const Problem alone{.uses = uses(r, 0), .q = queries_of(shape, q, r, 1), .half = 32};
      EXPECT_EQ(attend({isa(), 1}, pool, alone), rows_of(shape, together, r, 1)) << r;
    }
  }
}

// Random lists of entries over shared and private runs: any number of threads, any row alone.
TEST_P(SameBits, RandomCompositionsDoNotDependOnBatchOrThreads) {
  std::mt19937 random(14);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 12; ++trial) {
    const AttentionShape shape = shape_of(4 * (1 + below(3)), 2, 32);
    const int any_block = 1 + below(70);
    const int block_tokens = below(2) == 0                        ? 32
                             : takes_blocks_of(kind(), any_block) ? any_block
                                                                  : 64;
    Pool pool(shape, kind(), block_tokens, 3000 / block_tokens + 12);
    std::vector<StoredRun> runs;
    for (int i = 0; i < 4; ++i) {
      runs.push_back(pool.fill(below(620), static_cast<std::uint32_t>(100 * trial + i)));
    }
    const int rows = 1 + below(20);
    Problem batch{.uses = {},
                  .q = random_queries(shape, rows, 15),
                  .window = below(3) == 0 ? 1 + below(500) : 0,
                  .half = 16};
    for (int i = 0; i < 6; ++i) {
      const StoredRun& run = runs[static_cast<std::size_t>(below(4))];
      Use use{.run = &run, .rows = {}};
      for (int row = 0; row < rows; ++row) {
        if (below(3) != 0) {
          use.rows.push_back({row, below(900), below(700)});
        }
      }
      batch.uses.push_back(use);
    }
    const Output one_thread = attend({isa(), 1}, pool, batch);
    EXPECT_LE(worst_error(pool, batch, one_thread, lse_tolerance(kind(), isa())),
              tolerance(kind(), isa()));
    EXPECT_EQ(attend({isa(), 3}, pool, batch), one_thread);
    EXPECT_EQ(attend({isa(), 40}, pool, batch), one_thread);
    const int row = below(rows);
    Problem alone = batch;
    alone.q = queries_of(shape, batch.q, row, 1);
    for (Use& use : alone.uses) {
      std::erase_if(use.rows, [&](const EntryRow& r) { return r.row != row; });
      for (EntryRow& r : use.rows) {
        r.row = 0;
      }
    }
    EXPECT_EQ(attend({isa(), 3}, pool, alone), rows_of(shape, one_thread, row, 1)) << trial;
  }
}

TEST_P(SameBits, SecondCallWithTheSameScratchAllocatesNothing) {
  const AttentionShape shape = shape_of(8, 2, 64);
  const int block_tokens = takes_blocks_of(kind(), 16) ? 16 : 32;
  Pool pool(shape, kind(), block_tokens, 80);
  const StoredRun kv = pool.fill(900, 16);
  const Problem problem{.uses = {causal(kv, 0, 2)}, .q = random_queries(shape, 2, 17), .half = 32};
  device::ThreadPool threads(3);
  const std::vector<Entry> entries = entries_of(problem);
  const AttentionPlan plan = make_plan(shape, entries, block_tokens, 0, 3);
  ASSERT_GT(plan.num_result_slots, 0);
  const kernels::RotaryTable rotary = table_of(plan.query_positions, 32);
  std::vector<float> out(problem.q.size());
  AttentionScratch scratch;
  const auto call = [&] {
    run({&kernels::kernels_for(isa()), &threads},
        {.shape = shape,
         .entries = entries,
         .plan = &plan,
         .q = problem.q,
         .q_stride = 512,
         .rotary = &rotary,
         .out = out},
        pool.view(), scratch);
  };
  call();
  const std::vector<float> first = out;
  const long before = allocations.load();
  call();
  EXPECT_EQ(allocations.load(), before);
  EXPECT_EQ(out, first);
}

INSTANTIATE_TEST_SUITE_P(All, SameBits, every_case(), param_name);

}  // namespace
}  // namespace quire::attention
