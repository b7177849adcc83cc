// Attention kernels on a GPU. Oracle: a dense softmax in double precision over what is stored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/cuda/test_support.h"
#include "quire/attention/device_join.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/device_plan_maker.h"
#include "quire/attention/entry.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {
namespace {

using device::cuda::test::must;
using tensor::DType;
using tensor::KVFormat;
using namespace test;  // NOLINT(google-build-using-namespace): a test

struct Result {
  std::vector<std::uint16_t> out;
  std::vector<float> lse;
};

constexpr std::size_t kPadding = 3;  // items

// Entries over the KV of one scene, and their queries.
struct Seen {
  const Scene& scene;
  std::span<const Entry> entries;
  const std::vector<std::uint16_t>& q;
};

class Attention : public device::cuda::test::GpuTest {
 protected:
  Result run(const Scene& scene, std::span<const Entry> entries, int rows,
             const std::vector<std::uint16_t>& q, std::int32_t range, std::int32_t window) {
    const Seen seen{scene, entries, q};
    return run({&seen, 1}, rows, range, window);
  }
  // Computes rows that see KV of several scenes, which differ in their format alone.
  Result run(std::span<const Seen> all, int rows, std::int32_t range, std::int32_t window) {
    const Shape& shape = all.front().scene.shape_;
    const int stored = all.front().scene.stored_;
    std::vector<DevicePlan> plans;
    for (const Seen& seen : all) {
      plans.push_back(make_device_plan(
          {.heads = shape.heads, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim},
          seen.entries, rows,
          fit_to_device(
              {.block_tokens = shape.block_tokens, .window_tokens = window, .range_tokens = range},
              stored, seen.scene.cap_ != 0)));
    }
    std::vector<DevicePlan*> joined;
    for (DevicePlan& plan : plans) {
      joined.push_back(&plan);
    }
    std::vector<std::int32_t> ids;
    join_device_plans(joined, ids);
    const auto blocks = upload(ids);
    const auto partials = upload(plans.front().partials);
    const auto size = static_cast<std::size_t>(rows * shape.heads);
    const auto partial_size =
        static_cast<std::size_t>(std::max(plans.front().num_partials, 1) * shape.heads);
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    const auto values = upload(std::vector<float>(partial_size * stored, kNone));
    const auto stats = upload(std::vector<float>(partial_size * 2, kNone));
    const auto out = upload(std::vector<std::uint16_t>(size * shape.head_dim, kNaN));
    const auto lse = upload(std::vector<float>(size, 7));
    const auto partials_there = upload(std::vector<std::uint32_t>(size));
    const std::vector<float>& sinks = all.front().scene.sinks_;
    const auto sinks_there = upload(sinks);
    std::vector<Uploads> uploads;
    std::vector<AttentionArgs> args;
    for (std::size_t i = 0; i < all.size(); ++i) {
      uploads.push_back(upload_plan(all[i], plans[i]));
      args.push_back(args_of(all[i].scene, plans[i], uploads.back()));
      args.back().work.partials = partials.data();
      args.back().work.blocks = blocks.data();
      args.back().work.num_rows = rows;
      args.back().work.partial_values = values.data();
      args.back().work.partial_stats = reinterpret_cast<float2*>(stats.data());
      args.back().work.partials_there = partials_there.data();
      args.back().out = out.data();
      args.back().lse = lse.data();
      args.back().sinks = sinks.empty() ? nullptr : sinks_there.data();
    }
    must(device::cuda::to_status(launch_attention(args, stream()), "attention"));
    EXPECT_THAT(download(partials_there, size), testing::Each(0)) << "the next kernel counts on";
    return {download(out, size * shape.head_dim), download(lse, size)};
  }

 private:
  struct Uploads {
    device::cuda::DeviceBuffer<std::uint16_t> kv, queries;
    device::cuda::DeviceBuffer<DevicePlan::WorkItem> few, many;
    std::size_t num_few = 0, num_many = 0;
    device::cuda::DeviceBuffer<DevicePlan::Queue> queues;
    device::cuda::DeviceBuffer<DevicePlan::Row> rows;
  };
  Uploads upload_plan(const Seen& seen, const DevicePlan& plan) {
    // Items beyond those of the plan have no rows and do nothing.
    const auto padded = [&](std::vector<DevicePlan::WorkItem> items) {
      items.resize(items.empty() ? 0 : items.size() + kPadding);
      return items;
    };
    const auto few = padded(plan.few), many = padded(plan.many);
    return {upload(seen.scene.kv_), upload(seen.q),   upload(few),
            upload(many),           few.size(),       many.size(),
            upload(plan.queues),    upload(plan.rows)};
  }
  static AttentionArgs args_of(const Scene& scene, const DevicePlan& plan, const Uploads& on) {
    const Shape& shape = scene.shape_;
    const auto block_words = static_cast<std::ptrdiff_t>(scene.block_words());
    return {
        .kv = {.data = on.kv.data(),
               .head_stride = block_words * scene.num_blocks_,
               .block_stride = block_words,
               .v_offset = static_cast<std::ptrdiff_t>(scene.v_offset()),
               .block_tokens = shape.block_tokens,
               .block_shift = block_shift(shape.block_tokens),
               .head_dim = scene.stored_,
               .dtype = shape.dtype,
               .format = shape.format,
               .scale_offset = static_cast<std::ptrdiff_t>(scene.scale_offset(Scene::Part::kKey)),
               .v_scale_offset =
                   static_cast<std::ptrdiff_t>(scene.scale_offset(Scene::Part::kValue))},
        .work = {.few = on.few.data(),
                 .many = on.many.data(),
                 .rows = on.rows.data(),
                 .queues = on.queues.data(),
                 .num_few = static_cast<std::int32_t>(on.num_few),
                 .num_many = static_cast<std::int32_t>(on.num_many),
                 .wide = plan.widest_few > 8,
                 .merges = plan.num_merged > 0,
                 .like_many = plan.like_many},
        .q = on.queries.data(),
        .heads = shape.heads,
        .kv_heads = shape.kv_heads,
        .head_dim = shape.head_dim,
        .scale_log2 = 1.44269504f / std::sqrt(static_cast<float>(shape.head_dim)),
        .cap_log2 = static_cast<float>(scene.cap_ * 1.4426950408889634)};
  }
};

// One head of one row by the definition.
struct Expected {
  std::vector<double> out;
  double lse = -std::numeric_limits<double>::infinity();
};

Expected expected(std::span<const Seen> all, int row, int head, int window) {
  const Shape& shape = all.front().scene.shape_;
  const int kv_head = head / (shape.heads / shape.kv_heads);
  std::vector<double> scores;
  std::vector<std::span<const float>> values;
  for (const auto& [scene, entries, q] : all) {
    std::size_t query = 0;
    for (const Entry& entry : entries) {
      for (const EntryRow& seen : entry.rows) {
        const std::size_t mine = query++;
        if (seen.row != row) {
          continue;
        }
        const TokenRange range = visible_tokens(entry, seen, window);
        for (int token = range.begin; token < range.end; ++token) {
          const std::span<const float> key =
              scene.row({entry.blocks, token, kv_head, Scene::Part::kKey});
          double dot = 0;
          for (int d = 0; d < shape.head_dim; ++d) {
            dot += double{widen(scene.query_type(),
                                q[(mine * shape.heads + head) * scene.stored_ + d])} *
                   key[static_cast<std::size_t>(d)];
          }
          const double score = dot / std::sqrt(double(shape.head_dim));
          scores.push_back(scene.cap_ == 0 ? score : scene.cap_ * std::tanh(score / scene.cap_));
          values.push_back(scene.row({entry.blocks, token, kv_head, Scene::Part::kValue}));
        }
      }
    }
  }
  Expected result{std::vector<double>(static_cast<std::size_t>(shape.head_dim))};
  if (scores.empty()) {
    return result;
  }
  const double largest = *std::ranges::max_element(scores);
  const std::vector<float>& sinks = all.front().scene.sinks_;
  double sum =
      sinks.empty() ? 0 : std::exp(double{sinks[static_cast<std::size_t>(head)]} - largest);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double p = std::exp(scores[i] - largest);
    sum += p;
    for (int d = 0; d < shape.head_dim; ++d) {
      result.out[d] += p * values[i][static_cast<std::size_t>(d)];
    }
  }
  for (double& x : result.out) {
    x /= sum;
  }
  result.lse = largest + std::log(sum);
  return result;
}

// Rows over runs, with the storage that entries borrow.
struct Case {
  struct Use {
    std::vector<std::int32_t> blocks;
    int tokens;
    std::vector<EntryRow> rows;
  };
  std::vector<Use> uses;
  int rows = 0;

  [[nodiscard]] std::vector<Entry> entries() const {
    std::vector<Entry> entries;
    for (const Use& use : uses) {
      entries.push_back({.blocks = use.blocks, .num_tokens = use.tokens, .rows = use.rows});
    }
    return entries;
  }
};

// Sequences of random lengths that decode or, unless `decodes`, prefill, some of them behind shared
// runs.
Case random_case(Scene& scene, std::mt19937& random, int most_tokens, bool decodes) {
  const auto up_to = [&](int most) { return std::uniform_int_distribution<int>(1, most)(random); };
  Case made;
  const int sequences = up_to(5);
  Case::Use shared{.tokens = up_to(most_tokens)};
  shared.blocks = scene.run(shared.tokens);
  for (int i = 0; i < sequences; ++i) {
    const int tokens = up_to(most_tokens);
    const int count = !decodes && up_to(3) == 1 ? up_to(std::min(tokens, 90)) : 1;
    Case::Use own{.blocks = scene.run(tokens), .tokens = tokens};
    for (int j = 0; j < count; ++j) {
      const int position = tokens - count + j;
      own.rows.push_back({made.rows + j, position, position + 1});
      if (i % 2 == 0) {
        shared.rows.push_back({made.rows + j, shared.tokens + position, shared.tokens});
      }
    }
    made.rows += count;
    made.uses.push_back(std::move(own));
  }
  made.uses.insert(made.uses.begin(), std::move(shared));
  made.rows += 1;  // the last row sees nothing
  return made;
}

std::vector<std::uint16_t> random_queries(Scene& scene, const Case& made) {
  std::size_t queries = 0;
  for (const Case::Use& use : made.uses) {
    queries += use.rows.size();
  }
  std::vector<std::uint16_t> q(queries * scene.shape_.heads * scene.stored_);
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<int>(i % scene.stored_) < scene.shape_.head_dim ? scene.random_query() : 0;
  }
  return q;
}

void expect_right(std::span<const Seen> all, int rows, const Result& got, int window) {
  const Shape& shape = all.front().scene.shape_;
  for (int row = 0; row < rows; ++row) {
    for (int head = 0; head < shape.heads; ++head) {
      const Expected want = expected(all, row, head, window);
      const std::size_t at = static_cast<std::size_t>(row * shape.heads + head);
      double error = 0, norm = 0;
      for (int d = 0; d < shape.head_dim; ++d) {
        const double x = widen(shape.dtype, got.out[at * shape.head_dim + d]);
        error += (x - want.out[d]) * (x - want.out[d]);
        norm += want.out[d] * want.out[d];
      }
      ASSERT_LE(std::sqrt(error), tolerance(shape.dtype) * std::sqrt(norm) + 1e-6)
          << "row " << row << " head " << head;
      if (std::isinf(want.lse)) {
        ASSERT_EQ(got.lse[at], -std::numeric_limits<float>::infinity());
      } else {
        ASSERT_NEAR(got.lse[at], want.lse, 2e-3);
      }
    }
  }
}

void expect_right(const Scene& scene, const Case& made, const std::vector<std::uint16_t>& q,
                  const Result& got, int window) {
  const std::vector<Entry> entries = made.entries();
  const Seen seen{scene, entries, q};
  expect_right({&seen, 1}, made.rows, got, window);
}

TEST_F(Attention, EqualsADenseSoftmaxForAllShapesLengthsAndRanges) {
  std::mt19937 random(7);
  int cases = 0;
  for (const auto& [dtype, format] : kTypes) {
    for (Shape shape : {Shape{4, 4, 64, 32}, Shape{8, 2, 128, 16}, Shape{3, 1, 64, 1},
                        Shape{8, 8, 32, 32}, Shape{14, 2, 64, 32}, Shape{4, 2, 80, 48},
                        Shape{4, 1, 256, 32}, Shape{10, 2, 96, 5}, Shape{16, 1, 128, 64},
                        Shape{64, 1, 64, 32}, Shape{4, 2, 512, 32}, Shape{6, 1, 570, 16}}) {
      if (shape.head_dim > 256 && format != KVFormat::kPlain) {
        continue;
      }
      shape.dtype = dtype;
      shape = in(format, shape);
      for (const std::int32_t range : {0, 256, 512}) {
        for (const std::int32_t window : {0, 100}) {
          for (int i = 0; i < 6; ++i) {
            if (i >= 4 && range != 512) {
              continue;  // of cases with a cap
            }
            const int most = i == 0 ? 20 : shape.head_dim > 256 ? 200 : 700;
            Scene scene(shape, 6 * (most / shape.block_tokens + 1),
                        static_cast<std::uint32_t>(cases));
            scene.cap_ = i < 4 ? 0 : 0.5;  // below many scores
            const Case made = random_case(scene, random, most, i % 4 >= 2);
            const auto q = random_queries(scene, made);
            // Half of the cases have sinks, from far below all scores to far above them.
            for (int head = 0; i % 2 == 1 && head < shape.heads; ++head) {
              scene.sinks_.push_back(-12.0f + 24.0f * static_cast<float>(head) /
                                                  static_cast<float>(shape.heads));
            }
            const auto got = run(scene, made.entries(), made.rows, q, range, window);
            SCOPED_TRACE(std::string(tensor::dtype_name(dtype)) + ", KV in " +
                         tensor::kv_format_name(format, dtype) + ", heads " +
                         std::to_string(shape.heads) + " of " + std::to_string(shape.head_dim) +
                         ", range " + std::to_string(range) + ", window " + std::to_string(window) +
                         ", cap " + std::to_string(scene.cap_) + ", case " + std::to_string(i));
            expect_right(scene, made, q, got, window);
            if (HasFatalFailure()) {
              return;
            }
            ++cases;
          }
        }
      }
    }
  }
  EXPECT_EQ(cases, 2352);
}

TEST_F(Attention, WithFixedRangesARowsBitsDoNotDependOnItsBatch) {
  for (const auto& [dtype, format] : kTypes) {
    const Shape shape{8, 2, 128, 32, dtype, format};
    Scene scene(shape, 200, 3);
    std::mt19937 random(5);
    Case all;
    for (const int tokens : {900, 33, 2000}) {
      all.uses.push_back({scene.run(tokens), tokens, {{all.rows, tokens - 1, tokens}}});
      ++all.rows;
    }
    const std::size_t decoding = all.uses.size();
    Case::Use prefill{scene.run(300), 300, {}};
    for (int i = 0; i < 40; ++i) {
      prefill.rows.push_back({all.rows++, 260 + i, 260 + i + 1});
    }
    all.uses.push_back(std::move(prefill));
    const auto q = random_queries(scene, all);
    const Result together = run(scene, all.entries(), all.rows, q, 512, 0);
    const std::size_t row_size = static_cast<std::size_t>(shape.heads * shape.head_dim);
    const std::size_t q_size = static_cast<std::size_t>(shape.heads * scene.stored_);
    for (std::size_t i = 0; i < decoding; ++i) {
      Case alone;
      alone.uses.push_back(all.uses[i]);
      alone.uses[0].rows[0].row = 0;
      alone.rows = 1;
      const std::vector<std::uint16_t> own(q.begin() + i * q_size, q.begin() + (i + 1) * q_size);
      const Result got = run(scene, alone.entries(), 1, own, 512, 0);
      EXPECT_TRUE(std::equal(got.out.begin(), got.out.end(), together.out.begin() + i * row_size));
    }
  }
}

// Rows see codes of several formats, and numbers behind them: some see all, some one format, one
// row nothing.
TEST_F(Attention, RowsThatSeeSeveralFormatsMergeThem) {
  for (const Shape& shape :
       {Shape{8, 2, 128, 32}, Shape{4, 1, 64, 32, DType::kFloat16}, Shape{4, 2, 96, 32}}) {
    std::vector<Scene> scenes;
    for (const KVFormat format :
         {KVFormat::kInt8, KVFormat::kFp8, KVFormat::kInt4, KVFormat::kPlain}) {
      scenes.emplace_back(in(format, shape), 120, static_cast<std::uint32_t>(format) + 31);
    }
    constexpr int kRows = 60;
    std::vector<Case> cases(scenes.size());
    for (std::size_t i = 0; i < scenes.size(); ++i) {
      const int tokens = 300 + 160 * static_cast<int>(i);
      Case::Use shared{scenes[i].run(tokens), tokens, {}};
      Case::Use alone{scenes[i].run(64), 64, {}};
      for (int row = 0; row + 1 < kRows; ++row) {
        if (row % 5 == 4 || row % 5 == static_cast<int>(i)) {
          shared.rows.push_back({row, 2000 + row, row % 2 == 0 ? tokens : tokens / 2});
        }
      }
      alone.rows.push_back({4, 70, 64});
      cases[i].rows = kRows;
      cases[i].uses = {shared, alone};
    }
    std::vector<std::vector<Entry>> entries;
    std::vector<std::vector<std::uint16_t>> queries;
    for (std::size_t i = 0; i < scenes.size(); ++i) {
      entries.push_back(cases[i].entries());
      queries.push_back(random_queries(scenes[i], cases[i]));
    }
    std::vector<Seen> all;
    for (std::size_t i = 0; i < scenes.size(); ++i) {
      all.push_back({scenes[i], entries[i], queries[i]});
    }
    for (const std::int32_t range : {0, 256}) {
      const Result got = run(all, kRows, range, 0);
      expect_right(all, kRows, got, 0);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

// Rows of a prompt in one piece.
struct Prompt {
  Case all;
  std::vector<std::uint16_t> q;
};

// A run whose rows begin behind some tokens. With `sloped` scores rise and fall over it by much.
Prompt prompt_of(Scene& scene, int before, int tokens, bool sloped) {
  Prompt made{.all = {.rows = tokens - before}, .q = {}};
  Case::Use whole{scene.run(tokens), tokens, {}};
  for (int i = 0; i < made.all.rows; ++i) {
    whole.rows.push_back({i, before + i, before + i + 1});
  }
  if (sloped) {
    scene.slope_keys(whole.blocks, tokens, 16);
  }
  made.all.uses.push_back(std::move(whole));
  made.q = random_queries(scene, made.all);
  for (std::size_t i = 0; sloped && i < made.q.size();
       i += static_cast<std::size_t>(scene.stored_)) {
    made.q[i] = narrow(scene.query_type(), 8);
  }
  return made;
}

// Returns the part of a prompt with rows [first, first + count).
Prompt piece_of(const Scene& scene, const Prompt& prompt, int first, int count) {
  Prompt made{.all = {.rows = count}, .q = {}};
  const Case::Use& whole = prompt.all.uses.front();
  Case::Use use{
      whole.blocks, whole.rows[static_cast<std::size_t>(first + count - 1)].visible_end, {}};
  for (int i = 0; i < count; ++i) {
    EntryRow row = whole.rows[static_cast<std::size_t>(first + i)];
    row.row = i;
    use.rows.push_back(row);
  }
  made.all.uses.push_back(std::move(use));
  const auto size = static_cast<std::ptrdiff_t>(scene.shape_.heads * scene.stored_);
  made.q.assign(prompt.q.begin() + first * size, prompt.q.begin() + (first + count) * size);
  return made;
}

// A row may be computed when nothing behind it is stored yet, and as one of many or few. Pieces
// have up to 8 columns of a KV head, up to 16, up to 32, and more.
TEST_F(Attention, WithFixedRangesAPromptInPiecesHasTheBitsOfOne) {
  for (const auto& [dtype, format] : kTypes) {
    for (Shape shape :
         {Shape{8, 2, 128, 32}, Shape{4, 2, 64, 16}, Shape{4, 4, 128, 8}, Shape{4, 1, 96, 32},
          Shape{8, 2, 128, 4}, Shape{4, 1, 576, 32}, Shape{8, 2, 512, 16}}) {
      if (shape.head_dim > 256 && format != KVFormat::kPlain) {
        continue;
      }
      shape.dtype = dtype;
      shape = in(format, shape);
      constexpr int kBefore = 513, kTokens = 1300;
      for (const bool sloped : {false, true}) {
        Scene scene(shape, kTokens / shape.block_tokens + 100, 23);
        scene.cap_ = sloped && shape.heads == 4 ? 5 : 0;
        const Prompt prompt = prompt_of(scene, kBefore, kTokens, sloped);
        const std::int32_t window = sloped ? 700 : 0;
        const Result together =
            run(scene, prompt.all.entries(), prompt.all.rows, prompt.q, 512, window);
        const auto row_size = static_cast<std::ptrdiff_t>(shape.heads * shape.head_dim);
        int first = 0;
        for (const int count : {1, 2, 300, 3, 1, 130, 8, 40, 302}) {
          const int end = kBefore + first + count;
          Scene half_stored = scene;
          half_stored.forget(prompt.all.uses.front().blocks, end, kTokens);
          const Prompt piece = piece_of(scene, prompt, first, count);
          const Result got = run(half_stored, piece.all.entries(), count, piece.q, 512, window);
          EXPECT_TRUE(
              std::equal(got.out.begin(), got.out.end(), together.out.begin() + first * row_size))
              << "rows " << first << " to " << first + count << ", KV in "
              << tensor::kv_format_name(format, dtype) << ", heads of " << shape.head_dim
              << ", blocks of " << shape.block_tokens << ", window " << window;
          first += count;
        }
        EXPECT_EQ(first, prompt.all.rows);
      }
    }
  }
}

// 64 rows of four heads to a KV head are two tiles that see the same. Pairs of multiprocessors read
// it together, in lists or, with fixed ranges, in rounds. Blocks of one and of many boxes of the
// copy engine.
TEST_F(Attention, TilesThatTwoMultiprocessorsReadTogetherAreRight) {
  for (const Shape& shape :
       {Shape{8, 2, 128, 32}, Shape{8, 2, 64, 128}, Shape{4, 1, 128, 128}, Shape{8, 2, 64, 8},
        Shape{8, 2, 128, 64, DType::kFloat16}, int8(Shape{8, 2, 128, 32}),
        int8(Shape{8, 2, 64, 128}), int8(Shape{8, 2, 128, 8, DType::kFloat16}),
        fp8(Shape{8, 2, 128, 32}), fp8(Shape{8, 2, 64, 128}),
        fp8(Shape{8, 2, 128, 8, DType::kFloat16}), int4(Shape{8, 2, 128, 32}),
        int4(Shape{8, 2, 64, 128, DType::kFloat16})}) {
    Scene scene(shape, 17000 / shape.block_tokens + 100, 13);
    Case made;
    std::vector<Case::Use> shared;
    for (const int tokens : {3000, 129}) {
      shared.push_back({scene.run(tokens), tokens, {}});
    }
    for (int row = 0; row < 64; ++row) {
      const int tokens = 40 + 3 * row;
      for (Case::Use& use : shared) {
        use.rows.push_back({row, use.tokens + tokens - 1, use.tokens});
      }
      made.uses.push_back({scene.run(tokens), tokens, {{row, tokens - 1, tokens}}});
    }
    made.rows = 64;
    made.uses.insert(made.uses.begin(), shared.begin(), shared.end());
    const auto q = random_queries(scene, made);
    for (const std::int32_t range : {0, 512}) {
      const Result first = run(scene, made.entries(), made.rows, q, range, 0);
      expect_right(scene, made, q, first, 0);
      EXPECT_EQ(run(scene, made.entries(), made.rows, q, range, 0).out, first.out);
    }
  }
}

// Scores rise by much more than what probabilities may exceed 1 by, and fall by as much. Rows are
// many, and few.
TEST_F(Attention, EqualsADenseSoftmaxWhereScoresRiseAndFall) {
  for (const Shape& shape :
       {Shape{8, 2, 128, 32}, Shape{4, 2, 64, 16, DType::kFloat16}, int8(Shape{8, 2, 128, 32}),
        int8(Shape{4, 2, 64, 16, DType::kFloat16}), int8(Shape{4, 2, 96, 16}),
        fp8(Shape{8, 2, 128, 32}), fp8(Shape{4, 2, 64, 16, DType::kFloat16}),
        fp8(Shape{4, 2, 96, 16}), int4(Shape{8, 2, 128, 32}),
        int4(Shape{4, 2, 64, 32, DType::kFloat16}), int4(Shape{4, 2, 96, 64})}) {
    Scene scene(shape, 400, 13);
    Case made;
    Case::Use shared{scene.run(1500), 1500, {}};
    scene.slope_keys(shared.blocks, shared.tokens, 16);
    for (; made.rows < 24; ++made.rows) {
      const int tokens = 1 + 9 * made.rows;
      Case::Use own{scene.run(tokens), tokens, {{made.rows, tokens - 1, tokens}}};
      scene.slope_keys(own.blocks, tokens, static_cast<float>(made.rows));
      shared.rows.push_back({made.rows, 1500 + tokens - 1, 1500});
      made.uses.push_back(std::move(own));
    }
    made.uses.insert(made.uses.begin(), std::move(shared));
    auto q = random_queries(scene, made);
    for (std::size_t i = 0; i < q.size(); i += static_cast<std::size_t>(scene.stored_)) {
      q[i] = narrow(scene.query_type(), 8);
    }
    for (const std::int32_t range : {0, 512}) {
      expect_right(scene, made, q, run(scene, made.entries(), made.rows, q, range, 0), 0);
    }
  }
}

// Partials are 16-bit numbers of their own scale on Hopper. Rows of columns that are many and few,
// and so many that the merging kernel takes more of them at once.
TEST_F(Attention, PartialsOfManyRowsHoldValuesThatFp16DoesNot) {
  const Shape shape{32, 8, 64, 32};
  for (const float factor : {0x1p+40f, 1.0f, 0x1p-9f}) {
    Scene scene(shape, 450, 17);
    Case made{.rows = 200};
    Case::Use shared{scene.run(520), 520, {}};
    scene.scale_values(shared.blocks, shared.tokens, factor);
    for (int row = 0; row < made.rows; ++row) {
      const int tokens = 1 + row % 60;
      Case::Use own{scene.run(tokens), tokens, {{row, tokens - 1, tokens}}};
      scene.scale_values(own.blocks, tokens, factor);
      shared.rows.push_back({row, 520 + tokens - 1, 520});
      made.uses.push_back(std::move(own));
    }
    made.uses.insert(made.uses.begin(), std::move(shared));
    const auto q = random_queries(scene, made);
    expect_right(scene, made, q, run(scene, made.entries(), made.rows, q, 0, 0), 0);
  }
}

// Who brings the last partial of a row differs from run to run; what it adds up does not. Decoding
// rows behind a run that they share, of up to 8 and of up to 16 columns, some of one partial.
TEST_F(Attention, RangesByLoadGiveABatchTheSameBitsEachTime) {
  for (const Shape& shape :
       {Shape{8, 2, 128, 32}, Shape{16, 1, 64, 16}, Shape{32, 2, 128, 64},
        int8(Shape{8, 2, 128, 32}), int8(Shape{16, 1, 64, 16}), int8(Shape{32, 2, 128, 64}),
        fp8(Shape{8, 2, 128, 32}), fp8(Shape{16, 1, 64, 16}), int4(Shape{8, 2, 128, 32}),
        int4(Shape{16, 1, 64, 32}), int4(Shape{32, 2, 128, 64})}) {
    Scene scene(shape, 400, 11);
    Case made;
    Case::Use shared{scene.run(1500), 1500, {}};
    for (const int tokens : {900, 33, 2000, 1, 128, 129}) {
      made.uses.push_back({scene.run(tokens), tokens, {{made.rows, tokens - 1, tokens}}});
      if (made.rows % 2 == 0) {
        shared.rows.push_back({made.rows, 1500 + tokens - 1, 1500});
      }
      ++made.rows;
    }
    made.uses.push_back(std::move(shared));
    const auto q = random_queries(scene, made);
    const Result first = run(scene, made.entries(), made.rows, q, 0, 0);
    expect_right(scene, made, q, first, 0);
    for (int i = 0; i < 3; ++i) {
      const Result again = run(scene, made.entries(), made.rows, q, 0, 0);
      EXPECT_EQ(again.out, first.out);
      EXPECT_EQ(again.lse, first.lse);
    }
  }
}

}  // namespace
}  // namespace quire::attention::cuda
