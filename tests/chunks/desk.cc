#include "desk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dense_oracle.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/types.h"
#include "scene.h"

namespace quire::chunks {

LLMOptions most_exact(std::int32_t block_tokens) {
  return here({.dtype = exact_dtype(),
               .block_tokens = block_tokens,
               .kv_budget_bytes = std::int64_t{1} << 23,
               .threads = 1});
}

Desk::Desk(const std::filesystem::path& model, const LLMOptions& options,
           const ChunkCacheOptions& chunks)
    : oracle(model), llm(must(ChunkedLLM::open(model.string(), options, chunks))) {}

CompositionSpec Desk::compose(const Scene& scene, Positions positions) {
  CompositionSpec spec{.without_system = !scene.system,
                       .mode = scene.mode,
                       .positions = positions,
                       .computed_in_place = scene.computed_in_place,
                       .bos_sink = scene.bos_sink.has_value()};
  const auto add = [&](const Scene::Segment& segment, ChunkType type) {
    spec.fixed.push_back(static_cast<std::int32_t>(segment.position));
    ChunkContent content{.content = segment.ids, .type = type};
    if (type == ChunkType::kContext && scene.mode == ReuseMode::kAnchored) {
      std::vector<std::string> anchor;
      if (scene.system) {
        anchor.push_back(spec.system_chunk_id);
      }
      for (const std::int64_t before : segment.behind) {
        anchor.push_back(spec.context_chunk_ids[static_cast<std::size_t>(before)]);
      }
      content.options.anchor = anchor_of(anchor);
    } else if (type == ChunkType::kContext) {
      content.options.anchor = "";
    }
    return must(llm.register_chunk(content));
  };
  if (scene.system) {
    spec.system_chunk_id = add(*scene.system, ChunkType::kSystemPrompt);
  }
  for (const Scene::Segment& context : scene.contexts) {
    spec.context_chunk_ids.push_back(add(context, ChunkType::kContext));
  }
  spec.query_chunk_id = add(scene.query, ChunkType::kQuery);
  return spec;
}

std::vector<float> Desk::logits(const CompositionSpec& spec) {
  return must(llm.logits_from_chunks(spec)).logits;
}

double Desk::stat(std::string_view name) {
  const Stats stats = must(llm.llm().stats());
  const auto found = std::ranges::find(stats, name, &Stats::value_type::first);
  EXPECT_NE(found, stats.end()) << name;
  return found->second;
}

double distance(const ForwardOutput& got, const Matrix& want) {
  EXPECT_EQ(static_cast<std::size_t>(got.rows), want.rows);
  double most = 0;
  double off = 0;
  for (std::size_t i = 0; i < want.values.size(); ++i) {
    most = std::max(most, std::abs(want.values[i]));
    const double difference = std::abs(static_cast<double>(got.logits[i]) - want.values[i]);
    off = std::isnan(difference) ? INFINITY : std::max(off, difference);
  }
  return off / most;
}

void expect_greedy(const Ids& generated, Scene scene, const DenseModel& oracle) {
  const std::size_t first = scene.query.ids.size() - 1;
  scene.query.ids.insert(scene.query.ids.end(), generated.begin(), generated.end());
  const Matrix logits = scene.logits(oracle);
  for (std::size_t i = 0; i < generated.size(); ++i) {
    const auto row = logits.row(first + i);
    const double best = *std::ranges::max_element(row);
    const double tie = on_gpu() ? 2 * tolerance() * std::abs(best) : 1e-4;
    EXPECT_GE(row[static_cast<std::size_t>(generated[i])], best - tie) << "token " << i;
  }
}

std::int32_t Dice::below(std::int32_t bound) {
  return static_cast<std::int32_t>(random_() % static_cast<std::uint32_t>(bound));
}

Ids Dice::ids(std::int32_t count, TokenId first, TokenId last) {
  Ids ids;
  for (std::int32_t i = 0; i < count; ++i) {
    ids.push_back(first + below(last - first));
  }
  return ids;
}

Scene make_scene(Dice& dice, std::int32_t contexts, std::int32_t block) {
  const std::int32_t lengths[] = {std::max(block - 1, 1), 1, block + 1, block, 3 * block + 1};
  Scene scene{.system = Scene::Segment{.ids = dice.ids(1 + dice.below(block + 3))},
              .query = {.ids = dice.ids(1 + dice.below(7))}};
  for (std::int32_t i = 0; i < contexts; ++i) {
    if (i == 5) {
      scene.contexts.push_back(scene.contexts[2]);
    } else {
      scene.contexts.push_back({.ids = dice.ids(lengths[i % 5])});
    }
  }
  return scene;
}

}  // namespace quire::chunks
