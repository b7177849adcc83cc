// Maps of chunks against the recurrence over the same inputs, which is run in double precision from
// its definition.
#include "quire/model/state_maps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/model/config.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"

namespace quire::model {
namespace {

// The inputs of a chunk, of one layer, as the update of states gets them.
struct Inputs {
  std::int32_t tokens = 0;
  std::vector<float> rows;   // [tokens][keys, values]
  std::vector<float> gates;  // [tokens][2 * heads]
};

class StateMapsTest : public testing::TestWithParam<MixerKind> {
 protected:
  StateMapsTest() {
    config_.layers = 1;
    config_.mixers = {GetParam()};
    config_.state = {.kind = GetParam(),
                     .taps = 4,
                     .channels = 2 * 2 * 16 + 4 * 8,
                     .key_heads = 2,
                     .value_heads = 4,
                     .key_dim = 16,
                     .value_dim = 8,
                     .most_step = 10};
  }

  // Makes inputs whose state decays by `decay` a token.
  [[nodiscard]] Inputs inputs(std::int32_t tokens, double decay) {
    Inputs made{.tokens = tokens, .rows = {}, .gates = {}};
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> share(0.2f, 0.8f);
    const StateShape& shape = config_.state;
    for (std::int32_t token = 0; token < tokens; ++token) {
      for (std::int32_t head = 0; head < shape.key_heads; ++head) {
        std::vector<float> key(static_cast<std::size_t>(shape.key_dim));
        double squares = 0;
        for (float& value : key) {
          value = normal(random_) + 0.3f;
          squares += double{value} * value;
        }
        for (const float value : key) {
          made.rows.push_back(static_cast<float>(value / std::sqrt(squares)));
        }
      }
      for (std::int32_t i = 0; i < shape.value_heads * shape.value_dim; ++i) {
        made.rows.push_back(normal(random_));
      }
      for (std::int32_t head = 0; head < shape.value_heads; ++head) {
        made.gates.push_back(share(random_));
      }
      for (std::int32_t head = 0; head < shape.value_heads; ++head) {
        made.gates.push_back(static_cast<float>(decay));
      }
    }
    return made;
  }

  // Runs the recurrence of all heads as it is defined.
  void run(const Inputs& chunk, std::vector<double>& state) const {
    const StateShape& shape = config_.state;
    const std::size_t width = width_of(chunk);
    for (std::int32_t token = 0; token < chunk.tokens; ++token) {
      for (std::int32_t head = 0; head < shape.value_heads; ++head) {
        const float* row = chunk.rows.data() + static_cast<std::size_t>(token) * width;
        const float* key = row + std::ptrdiff_t{shape.key_head(head)} * shape.key_dim;
        const float* value = row + std::ptrdiff_t{shape.key_heads} * shape.key_dim +
                             std::ptrdiff_t{head} * shape.value_dim;
        const float* gate = chunk.gates.data() + std::ptrdiff_t{2} * token * shape.value_heads;
        double* s = state.data() + std::ptrdiff_t{head} * shape.key_dim * shape.value_dim;
        for (std::int32_t j = 0; j < shape.value_dim; ++j) {
          double read = 0;
          for (std::int32_t k = 0; k < shape.key_dim; ++k) {
            s[k * shape.value_dim + j] *= gate[shape.value_heads + head];
            read += s[k * shape.value_dim + j] * key[k];
          }
          const bool erases = shape.kind == MixerKind::kGatedDelta;
          const double change = gate[head] * (value[j] - (erases ? read : 0));
          for (std::int32_t k = 0; k < shape.key_dim; ++k) {
            s[k * shape.value_dim + j] += change * key[k];
          }
        }
      }
    }
  }

  // Grows and packs maps, in pieces of `step` rows.
  [[nodiscard]] std::vector<std::byte> packed(const Inputs& chunk, bool in_32_bits,
                                              std::int32_t step = 1 << 20) {
    StateMaps maps(config_, chunk.tokens, in_32_bits);
    const std::size_t width = width_of(chunk);
    const std::int64_t keys = std::int64_t{config_.state.key_heads} * config_.state.key_dim;
    for (std::int32_t first = 0; first < chunk.tokens; first += step) {
      const float* row = chunk.rows.data() + static_cast<std::size_t>(first) * width;
      maps.grow(
          context_, 0,
          {.key = row,
           .value = row + keys,
           .stride = static_cast<std::ptrdiff_t>(width),
           .gates = chunk.gates.data() + std::ptrdiff_t{2} * first * config_.state.value_heads,
           .first = first,
           .count = std::min(step, chunk.tokens - first)});
    }
    auto bytes = maps.pack(std::as_bytes(std::span(tail_)));
    EXPECT_TRUE(bytes.ok());
    EXPECT_LE(std::ssize(*bytes), StateMaps::most_bytes(config_, chunk.tokens, in_32_bits));
    return std::move(bytes).value();
  }

  [[nodiscard]] std::vector<float> composed(const std::vector<std::vector<std::byte>>& chunks) {
    std::vector<float> state = tail_;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      EXPECT_TRUE(
          apply_maps(context_, config_, chunks[i], i == 0, std::as_writable_bytes(std::span(state)))
              .ok());
    }
    return {state.begin() + config_.state.tail_size(),
            state.begin() + config_.state.tail_size() + config_.state.matrix_size()};
  }

  [[nodiscard]] std::vector<double> wanted(const std::vector<Inputs>& chunks) const {
    std::vector<double> state(static_cast<std::size_t>(config_.state.matrix_size()));
    for (const Inputs& chunk : chunks) {
      run(chunk, state);
    }
    return state;
  }

  // Returns the norm of the difference as a share of the norm.
  [[nodiscard]] static double error(const std::vector<double>& wanted,
                                    const std::vector<float>& got) {
    double difference = 0, whole = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      difference += (wanted[i] - got[i]) * (wanted[i] - got[i]);
      whole += wanted[i] * wanted[i];
    }
    return std::sqrt(difference / whole);
  }

  [[nodiscard]] static std::size_t width_of(const Inputs& chunk) {
    return chunk.rows.size() / static_cast<std::size_t>(chunk.tokens);
  }

  ModelConfig config_;
  device::ThreadPool pool_{2};
  kernels::KernelContext context_{&kernels::kernels_for(device::best_isa()), &pool_};
  std::mt19937 random_{7};
  std::vector<float> tail_ = std::vector<float>(4096, 0.25f);  // a state, before it is composed
};

TEST_P(StateMapsTest, ComposeToTheRecurrenceInAnyOrder) {
  for (const double decay : {0.9995, 0.98, 0.7}) {
    std::vector<Inputs> chunks;
    for (const std::int32_t tokens : {1, 2, 3, 40, 64, 25, 5, 90}) {
      chunks.push_back(inputs(tokens, decay));
    }
    for (int order = 0; order < 6; ++order) {
      std::vector<std::vector<std::byte>> bytes;
      for (const Inputs& chunk : chunks) {
        bytes.push_back(packed(chunk, true));
      }
      EXPECT_LT(error(wanted(chunks), composed(bytes)), 1e-6) << decay << " " << order;
      std::ranges::shuffle(chunks, random_);
    }
  }
}

// The bounds are those of the research for A and B in fp16.
TEST_P(StateMapsTest, StayCloseToItIn16Bits) {
  for (const double decay : {0.9995, 0.995, 0.98, 0.9, 0.5}) {
    std::vector<Inputs> chunks;
    std::vector<std::vector<std::byte>> bytes;
    for (const std::int32_t tokens : {64, 3, 64, 30, 128, 64, 1, 64}) {
      chunks.push_back(inputs(tokens, decay));
      bytes.push_back(packed(chunks.back(), false));
    }
    const double off = error(wanted(chunks), composed(bytes));
    EXPECT_LT(off, 1e-3) << decay;
    EXPECT_GT(off, 1e-6) << decay << ": they are rounded";
  }
}

TEST_P(StateMapsTest, HaveTheSameBitsHoweverTheRowsAreCut) {
  for (const bool in_32_bits : {true, false}) {
    for (const std::int32_t tokens : {7, 61}) {
      const Inputs chunk = inputs(tokens, 0.97);
      const std::vector<std::byte> whole = packed(chunk, in_32_bits);
      for (const std::int32_t step : {1, 2, 13}) {
        EXPECT_EQ(packed(chunk, in_32_bits, step), whole) << tokens << " " << step;
      }
    }
  }
}

TEST_P(StateMapsTest, KeepInputsOfFewTokensAndLeaveOutWhatIsForgotten) {
  const bool is_scan = GetParam() == MixerKind::kStateScan;
  const auto bytes_of = [&](std::int32_t tokens) {
    return StateMaps::most_bytes(config_, tokens, false);
  };
  EXPECT_LT(bytes_of(1), bytes_of(2));
  EXPECT_EQ(bytes_of(1000), bytes_of(2000));
  const std::vector<std::byte> fresh = packed(inputs(64, 0.999), false);
  const std::vector<std::byte> forgetful = packed(inputs(64, 0.5), false);
  EXPECT_EQ(forgetful.size() < fresh.size(), !is_scan);
}

TEST_P(StateMapsTest, HoldNumbersBeyondTheRangeOfFp16) {
  for (const double factor : {1e9, 1e-9}) {
    Inputs chunk = inputs(64, 0.99);
    const std::size_t width = width_of(chunk), keys = 32;
    for (std::size_t i = 0; i < chunk.rows.size(); ++i) {
      chunk.rows[i] *= i % width < keys ? 1.0f : static_cast<float>(factor);
    }
    EXPECT_LT(error(wanted({chunk}), composed({packed(chunk, false)})), 5e-4) << factor;
  }
}

TEST_P(StateMapsTest, MergeToThoseOfTheLayersThatAreTaken) {
  for (const std::int32_t tokens : {3, 64}) {
    const std::vector<std::byte> stored = packed(inputs(tokens, 0.9), true);
    const std::vector<std::byte> fresh = packed(inputs(tokens, 0.9), true);
    for (const bool takes : {false, true}) {
      const auto merged = merge_maps(config_, stored, fresh,
                                     [&](std::int32_t layer) { return takes && layer == 0; });
      ASSERT_TRUE(merged.ok());
      EXPECT_EQ(*merged, takes ? fresh : stored);
    }
    const std::vector<std::byte> other = packed(inputs(tokens + 1, 0.9), true);
    EXPECT_EQ(merge_maps(config_, stored, other, [](std::int32_t) { return true; }).error().code,
              ErrorCode::kCorrupt);
  }
}

TEST_P(StateMapsTest, RefuseWhatIsNotFiniteAndWhatIsDamaged) {
  StateMaps maps(config_, 40, false);
  std::vector<float> state = tail_;
  state[3] = std::nanf("");
  const auto refused = maps.pack(std::as_bytes(std::span(state)));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  const std::vector<std::byte> good = packed(inputs(40, 0.9), false);
  const auto writable = std::as_writable_bytes(std::span(state));
  for (const std::size_t size : {std::size_t{0}, std::size_t{3}, good.size() / 2}) {
    const std::span<const std::byte> cut = std::span(good).first(size);
    EXPECT_EQ(apply_maps(context_, config_, cut, true, writable).error().code, ErrorCode::kCorrupt);
  }
  for (const std::size_t byte : {0, 8, 12}) {
    std::vector<std::byte> damaged = good;
    damaged[byte + 3] = std::byte{0x7f};
    EXPECT_EQ(apply_maps(context_, config_, damaged, true, writable).error().code,
              ErrorCode::kCorrupt)
        << byte;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, StateMapsTest,
                         testing::Values(MixerKind::kGatedDelta, MixerKind::kStateScan),
                         [](const auto& info) {
                           return std::string(info.param == MixerKind::kStateScan ? "scan"
                                                                                  : "delta");
                         });

}  // namespace
}  // namespace quire::model
