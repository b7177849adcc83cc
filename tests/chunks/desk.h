// An engine beside its oracle, and seeded scenes, for the tests of composed requests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <random>
#include <string_view>
#include <utility>

#include "dense_oracle.h"
#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "scene.h"

namespace quire::chunks {

inline const std::filesystem::path kGoldens = source_path("tests/golden/model");

// Tolerance as a share of the largest logit of a request. Float32 keeps 6e-8 of each term, and a
// logit is the last of about a hundred roundings that depend on each other; the worst of all cases
// is 5.4e-6. A GPU computes in bf16, which keeps 4e-3 of each.
inline double tolerance() { return on_gpu() ? 0.06 : 1e-5; }

// On the device that the tests are for.
[[nodiscard]] LLMOptions most_exact(std::int32_t block_tokens);

// An engine and the oracle of the same checkpoint.
struct Desk {
  Desk(const std::filesystem::path& model, const LLMOptions& options,
       const ChunkCacheOptions& chunks = {});

  // `scene` as a composition of registered chunks, without what it recomputes; the contexts' own KV
  // is not there yet where the mode wants another than the one of their registration.
  [[nodiscard]] CompositionSpec compose(const Scene& scene, Positions positions);
  [[nodiscard]] std::vector<float> logits(const CompositionSpec& spec);
  [[nodiscard]] double stat(std::string_view name);

  DenseModel oracle;
  ChunkedLLM llm;
};

// The largest difference, as a share of the largest logit.
[[nodiscard]] double distance(const ForwardOutput& got, const Matrix& want);

// `generated` behind the query of `scene` are the oracle's likeliest tokens. A near tie may go
// either way: both are within 1e-4 of the best, or on a GPU within what its rounding makes of it.
void expect_greedy(const Ids& generated, Scene scene, const DenseModel& oracle);

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : random_(seed) {}
  // In [0, bound).
  [[nodiscard]] std::int32_t below(std::int32_t bound);
  // `count` ids in [first, last).
  [[nodiscard]] Ids ids(std::int32_t count, TokenId first = 3, TokenId last = 200);

 private:
  std::mt19937 random_;
};

// A system chunk, `contexts` contexts whose lengths walk over the block size, and a query; the
// sixth context is the third one again.
[[nodiscard]] Scene make_scene(Dice& dice, std::int32_t contexts, std::int32_t block);

}  // namespace quire::chunks
