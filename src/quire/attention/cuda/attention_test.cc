// Attention kernels on a GPU. Oracle: a dense softmax in double precision over what is stored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/device_plan_maker.h"
#include "quire/attention/entry.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/kernels/kv_codes.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::attention::cuda {
namespace {

using device::cuda::test::must;
using tensor::DType;
using tensor::KVFormat;

struct Shape {
  int heads, kv_heads, head_dim, block_tokens;
  DType dtype = DType::kBFloat16;
  KVFormat format = KVFormat::kPlain;
};

constexpr std::uint16_t kNaN = 0x7fc0;  // in both; also as a scale

std::uint16_t narrow(DType dtype, float value) {
  return dtype == DType::kFloat16 ? tensor::float_to_fp16(value) : tensor::float_to_bf16(value);
}
float widen(DType dtype, std::uint16_t bits) {
  return dtype == DType::kFloat16 ? tensor::fp16_to_float(bits) : tensor::bf16_to_float(bits);
}

// The norm of a head's error beside the norm of the head. Keys, values and queries are exact, also
// as codes and scales. Probabilities and results are rounded, by 2^-8 of each in bf16 and by 2^-11
// in fp16. Where many
// values cancel, the errors of their probabilities do alike.
double tolerance(DType dtype) { return dtype == DType::kFloat16 ? 8e-4 : 6e-3; }

struct Types {
  DType dtype;
  KVFormat format;
};
constexpr Types kTypes[] = {{DType::kBFloat16, KVFormat::kPlain},
                            {DType::kFloat16, KVFormat::kPlain},
                            {DType::kBFloat16, KVFormat::kInt8},
                            {DType::kFloat16, KVFormat::kInt8}};

Shape int8(Shape shape) {
  shape.format = KVFormat::kInt8;
  return shape;
}

// Keys, values and queries as they are on the device.
class Scene {
 public:
  Scene(const Shape& shape, int num_blocks, std::uint32_t seed)
      : shape_(shape),
        stored_((shape.head_dim + 31) / 32 * 32),
        geometry_{.layers = 1,
                  .kv_heads = shape.kv_heads,
                  .head_dim = shape.head_dim,
                  .dtype = shape.dtype,
                  .block_tokens = shape.block_tokens,
                  .format = shape.format},
        random_(seed) {
    // NaN wherever nobody writes.
    kv_.assign(static_cast<std::size_t>(shape.kv_heads) * num_blocks * block_words(), kNaN);
    num_blocks_ = num_blocks;
    seen_.resize(static_cast<std::size_t>(shape.kv_heads) * num_blocks * shape.block_tokens * 2 *
                 stored_);
    free_.resize(static_cast<std::size_t>(num_blocks));
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), random_);
  }

  // A run of random tokens.
  std::vector<std::int32_t> run(int tokens) {
    std::vector<std::int32_t> blocks;
    for (int token = 0; token < tokens; ++token) {
      if (token % shape_.block_tokens == 0) {
        blocks.push_back(free_.back());
        free_.pop_back();
      }
      for (int head = 0; head < shape_.kv_heads; ++head) {
        for (const Part part : kParts) {
          std::vector<float> row(static_cast<std::size_t>(shape_.head_dim));
          const float size = magnitude();
          std::ranges::generate(row, [&] { return size * random_number(); });
          write({blocks, token, head, part}, row);
        }
      }
    }
    return blocks;
  }

  // Keys whose first dimension rises to `most` in the first three quarters of a run and falls back.
  void slope_keys(std::span<const std::int32_t> blocks, int tokens, float most) {
    for (int token = 0; token < tokens; ++token) {
      const float up = static_cast<float>(token) / (0.75f * static_cast<float>(tokens));
      const float first = most * (2 * std::min(up, 4 - 3 * up) - 1);
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const std::span<const float> stored = row({blocks, token, head, Part::kKey});
        std::vector<float> key(stored.begin(), stored.end());
        key[0] = first;
        write({blocks, token, head, Part::kKey}, key);
      }
    }
  }

  // Values `factor` times as large.
  void scale_values(std::span<const std::int32_t> blocks, int tokens, float factor) {
    for (int token = 0; token < tokens; ++token) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const std::span<const float> stored = row({blocks, token, head, Part::kValue});
        std::vector<float> value(stored.begin(), stored.end());
        for (float& x : value) {
          x *= factor;
        }
        write({blocks, token, head, Part::kValue}, value);
      }
    }
  }

  // Makes tokens from `first` on hold any bytes again, as slots that nobody has written yet.
  void forget(std::span<const std::int32_t> blocks, int first, int tokens) {
    for (int token = first; token < tokens; ++token) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        for (const Part part : kParts) {
          const Place place{blocks, token, head, part};
          std::fill_n(kv_.begin() + static_cast<std::ptrdiff_t>(row_at(place)), row_words(), kNaN);
          if (shape_.format == KVFormat::kInt8) {
            kv_[scale_at(place)] = kNaN;
          }
        }
      }
    }
  }

  enum class Part { kKey, kValue };
  static constexpr Part kParts[] = {Part::kKey, Part::kValue};
  struct Place {
    std::span<const std::int32_t> blocks;
    int token, head;
    Part part;
  };
  // Returns the numbers that the device should see.
  [[nodiscard]] std::span<const float> row(const Place& place) const {
    return std::span(seen_).subspan(seen_at(place), static_cast<std::size_t>(shape_.head_dim));
  }
  void write(const Place& place, std::vector<float> numbers) {
    numbers.resize(static_cast<std::size_t>(stored_));
    const std::size_t at = row_at(place), seen = seen_at(place);
    if (shape_.format == KVFormat::kPlain) {
      for (std::size_t dim = 0; dim < numbers.size(); ++dim) {
        kv_[at + dim] = narrow(shape_.dtype, numbers[dim]);
        seen_[seen + dim] = widen(shape_.dtype, kv_[at + dim]);
      }
      return;
    }
    std::vector<std::int8_t> codes(numbers.size());
    ASSERT_TRUE(kernels::encode_int8(numbers, codes, kv_[scale_at(place)]));
    std::memcpy(kv_.data() + at, codes.data(), codes.size());
    const float scale = tensor::fp16_to_float(kv_[scale_at(place)]);
    for (std::size_t dim = 0; dim < codes.size(); ++dim) {
      seen_[seen + dim] = static_cast<float>(codes[dim]) * scale;
    }
  }
  [[nodiscard]] std::size_t seen_at(const Place& place) const {
    const auto block = static_cast<std::size_t>(place.blocks[place.token / shape_.block_tokens]);
    const std::size_t row = (static_cast<std::size_t>(place.head) * num_blocks_ + block) *
                                static_cast<std::size_t>(shape_.block_tokens) +
                            slot_of(place);
    return (2 * row + (place.part == Part::kValue ? 1 : 0)) * static_cast<std::size_t>(stored_);
  }

  // In words of 16 bits.
  [[nodiscard]] std::size_t block_words() const {
    return static_cast<std::size_t>(geometry_.head_block_bytes() / 2);
  }
  [[nodiscard]] std::size_t v_offset() const {
    return static_cast<std::size_t>(geometry_.v_offset() / 2);
  }
  [[nodiscard]] std::size_t scale_offset(Part part) const {
    return static_cast<std::size_t>(geometry_.scale_offset() / 2 +
                                    (part == Part::kValue ? geometry_.stored_block_tokens() : 0));
  }
  [[nodiscard]] std::size_t row_words() const {
    return v_offset() / static_cast<std::size_t>(geometry_.stored_block_tokens());
  }
  [[nodiscard]] std::size_t block_at(const Place& place) const {
    const auto block = static_cast<std::size_t>(place.blocks[place.token / shape_.block_tokens]);
    return (static_cast<std::size_t>(place.head) * num_blocks_ + block) * block_words();
  }
  [[nodiscard]] std::size_t slot_of(const Place& place) const {
    return static_cast<std::size_t>(place.token % shape_.block_tokens);
  }
  [[nodiscard]] std::size_t row_at(const Place& place) const {
    return block_at(place) + (place.part == Part::kValue ? v_offset() : 0) +
           slot_of(place) * row_words();
  }
  [[nodiscard]] std::size_t scale_at(const Place& place) const {
    return block_at(place) + scale_offset(place.part) + slot_of(place);
  }

  float random_number() { return std::uniform_real_distribution<float>(-1, 1)(random_); }
  // Codes hold rows of any size.
  float magnitude() {
    return shape_.format == KVFormat::kPlain
               ? 1.0f
               : std::exp2(std::uniform_real_distribution<float>(-3, 2)(random_));
  }
  [[nodiscard]] DType query_type() const { return query_dtype(shape_.dtype, shape_.format); }
  std::uint16_t random_query() { return narrow(query_type(), random_number()); }

  const Shape shape_;
  const int stored_;
  const tensor::KVGeometry geometry_;
  int num_blocks_ = 0;
  std::mt19937 random_;
  std::vector<std::uint16_t> kv_;
  std::vector<float> seen_;  // what kv_ holds
  std::vector<std::int32_t> free_;
};

struct Result {
  std::vector<std::uint16_t> out;
  std::vector<float> lse;
};

constexpr std::size_t kPadding = 3;  // items

class Attention : public device::cuda::test::GpuTest {
 protected:
  Result run(const Scene& scene, std::span<const Entry> entries, int rows,
             const std::vector<std::uint16_t>& q, std::int32_t range, std::int32_t window) {
    const Shape& shape = scene.shape_;
    const DevicePlan plan = make_device_plan(
        {.heads = shape.heads, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim}, entries,
        rows,
        fit_to_device(
            {.block_tokens = shape.block_tokens, .window_tokens = window, .range_tokens = range},
            scene.stored_));
    const auto kv = upload(scene.kv_), queries = upload(q);
    // Items beyond those of the plan have no rows and do nothing.
    const auto padded = [&](std::vector<DevicePlan::WorkItem> items) {
      items.resize(items.empty() ? 0 : items.size() + kPadding);
      return items;
    };
    const auto few_items = padded(plan.few), many_items = padded(plan.many);
    const auto few = upload(few_items), many = upload(many_items);
    const auto queues = upload(plan.queues);
    const auto plan_rows = upload(plan.rows);
    const auto partials = upload(plan.partials);
    const auto blocks = upload(plan.blocks);
    const auto size = static_cast<std::size_t>(rows * shape.heads);
    const auto partial_size =
        static_cast<std::size_t>(std::max(plan.num_partials, 1) * shape.heads);
    const auto values = upload(
        std::vector<float>(partial_size * scene.stored_, std::numeric_limits<float>::quiet_NaN()));
    const auto stats =
        upload(std::vector<float>(partial_size * 2, std::numeric_limits<float>::quiet_NaN()));
    const auto out = upload(std::vector<std::uint16_t>(size * shape.head_dim, kNaN));
    const auto lse = upload(std::vector<float>(size, 7));
    const auto block_words = static_cast<std::ptrdiff_t>(scene.block_words());
    const auto partials_there = upload(std::vector<std::uint32_t>(size));
    const AttentionArgs args{
        .kv = {.data = kv.data(),
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
        .work = {.few = few.data(),
                 .many = many.data(),
                 .rows = plan_rows.data(),
                 .partials = partials.data(),
                 .blocks = blocks.data(),
                 .queues = queues.data(),
                 .num_few = static_cast<std::int32_t>(few_items.size()),
                 .num_many = static_cast<std::int32_t>(many_items.size()),
                 .wide = plan.widest_few > 8,
                 .num_rows = rows,
                 .merges = plan.num_merged > 0,
                 .like_many = plan.like_many,
                 .partial_values = values.data(),
                 .partial_stats = reinterpret_cast<float2*>(stats.data()),
                 .partials_there = partials_there.data()},
        .q = queries.data(),
        .heads = shape.heads,
        .kv_heads = shape.kv_heads,
        .head_dim = shape.head_dim,
        .scale_log2 = 1.44269504f / std::sqrt(static_cast<float>(shape.head_dim)),
        .out = out.data(),
        .lse = lse.data()};
    must(device::cuda::to_status(launch_attention(args, stream()), "attention"));
    EXPECT_THAT(download(partials_there, size), testing::Each(0)) << "the next kernel counts on";
    return {download(out, size * shape.head_dim), download(lse, size)};
  }
};

// One head of one row by the definition.
struct Expected {
  std::vector<double> out;
  double lse = -std::numeric_limits<double>::infinity();
};

Expected expected(const Scene& scene, std::span<const Entry> entries,
                  const std::vector<std::uint16_t>& q, int row, int head, int window) {
  const Shape& shape = scene.shape_;
  const int kv_head = head / (shape.heads / shape.kv_heads);
  std::vector<double> scores;
  std::vector<std::span<const float>> values;
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
        scores.push_back(dot / std::sqrt(double(shape.head_dim)));
        values.push_back(scene.row({entry.blocks, token, kv_head, Scene::Part::kValue}));
      }
    }
  }
  Expected result{std::vector<double>(static_cast<std::size_t>(shape.head_dim))};
  if (scores.empty()) {
    return result;
  }
  const double largest = *std::ranges::max_element(scores);
  double sum = 0;
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

void expect_right(const Scene& scene, const Case& made, const std::vector<std::uint16_t>& q,
                  const Result& got, int window) {
  const Shape& shape = scene.shape_;
  const std::vector<Entry> entries = made.entries();
  for (int row = 0; row < made.rows; ++row) {
    for (int head = 0; head < shape.heads; ++head) {
      const Expected want = expected(scene, entries, q, row, head, window);
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

TEST_F(Attention, EqualsADenseSoftmaxForAllShapesLengthsAndRanges) {
  std::mt19937 random(7);
  int cases = 0;
  for (const auto& [dtype, format] : kTypes) {
    for (Shape shape :
         {Shape{4, 4, 64, 32}, Shape{8, 2, 128, 16}, Shape{3, 1, 64, 1}, Shape{8, 8, 32, 32},
          Shape{14, 2, 64, 32}, Shape{4, 2, 80, 48}, Shape{4, 1, 256, 32}, Shape{10, 2, 96, 5},
          Shape{16, 1, 128, 64}, Shape{64, 1, 64, 32}}) {
      shape.dtype = dtype;
      shape.format = format;
      for (const std::int32_t range : {0, 256, 512}) {
        for (const std::int32_t window : {0, 100}) {
          for (int i = 0; i < 4; ++i) {
            const int most = i == 0 ? 20 : 700;
            Scene scene(shape, 6 * (most / shape.block_tokens + 1),
                        static_cast<std::uint32_t>(cases));
            const Case made = random_case(scene, random, most, i >= 2);
            const auto q = random_queries(scene, made);
            const auto got = run(scene, made.entries(), made.rows, q, range, window);
            SCOPED_TRACE(std::string(tensor::dtype_name(dtype)) + ", KV in " +
                         tensor::kv_format_name(format, dtype) + ", heads " +
                         std::to_string(shape.heads) + " of " + std::to_string(shape.head_dim) +
                         ", range " + std::to_string(range) + ", window " + std::to_string(window) +
                         ", case " + std::to_string(i));
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
  EXPECT_EQ(cases, 960);
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

// A row may be computed when nothing behind it is stored yet, and as one of many or few.
TEST_F(Attention, WithFixedRangesAPromptInPiecesHasTheBitsOfOne) {
  for (const auto& [dtype, format] : kTypes) {
    for (Shape shape : {Shape{8, 2, 128, 32}, Shape{4, 2, 64, 16}, Shape{4, 4, 128, 8},
                        Shape{4, 1, 96, 32}, Shape{8, 2, 128, 4}}) {
      shape.dtype = dtype;
      shape.format = format;
      constexpr int kBefore = 513, kTokens = 1300;
      Scene scene(shape, kTokens / shape.block_tokens + 100, 23);
      Case all{.rows = kTokens - kBefore};
      Case::Use whole{scene.run(kTokens), kTokens, {}};
      for (int i = 0; i < all.rows; ++i) {
        whole.rows.push_back({i, kBefore + i, kBefore + i + 1});
      }
      all.uses.push_back(whole);
      const auto q = random_queries(scene, all);
      const Result together = run(scene, all.entries(), all.rows, q, 512, 0);
      const std::size_t row_size = static_cast<std::size_t>(shape.heads * shape.head_dim);
      const std::size_t q_size = static_cast<std::size_t>(shape.heads * scene.stored_);
      int first = 0;
      for (const int count : {1, 2, 300, 1, 130, 40, 313}) {
        const int end = kBefore + first + count;
        Scene half_stored = scene;
        half_stored.forget(whole.blocks, end, kTokens);
        Case piece{.rows = count};
        Case::Use use{whole.blocks, end, {}};
        for (int i = 0; i < count; ++i) {
          const int position = kBefore + first + i;
          use.rows.push_back({i, position, position + 1});
        }
        piece.uses.push_back(std::move(use));
        const std::vector<std::uint16_t> own(
            q.begin() + static_cast<std::ptrdiff_t>(first * q_size),
            q.begin() + static_cast<std::ptrdiff_t>((first + count) * q_size));
        const Result got = run(half_stored, piece.entries(), count, own, 512, 0);
        EXPECT_TRUE(
            std::equal(got.out.begin(), got.out.end(),
                       together.out.begin() + static_cast<std::ptrdiff_t>(first * row_size)))
            << "rows " << first << " to " << first + count << ", KV in "
            << tensor::kv_format_name(format, dtype) << ", heads of " << shape.head_dim
            << ", blocks of " << shape.block_tokens;
        first += count;
      }
      EXPECT_EQ(first, all.rows);
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
        int8(Shape{8, 2, 64, 128}), int8(Shape{8, 2, 128, 8, DType::kFloat16})}) {
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
        int8(Shape{4, 2, 64, 16, DType::kFloat16}), int8(Shape{4, 2, 96, 16})}) {
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
        int8(Shape{8, 2, 128, 32}), int8(Shape{16, 1, 64, 16}), int8(Shape{32, 2, 128, 64})}) {
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
