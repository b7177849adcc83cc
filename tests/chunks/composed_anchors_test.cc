// Contexts whose anchor is several chunks. Oracle: one masked pass of the dense model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dense_oracle.h"
#include "desk.h"
#include "quire/base/temporary_folder.h"
#include "quire/chunks.h"
#include "quire/output.h"
#include "quire/result.h"
#include "scene.h"

namespace quire::chunks {
namespace {

// A system chunk and five contexts: two chains behind the first one, a branch, and one alone.
Scene chains_of(Dice& dice) {
  Scene scene = make_scene(dice, 5, 16);
  scene.contexts[1].behind = {0};
  scene.contexts[2].behind = {0, 1};
  scene.contexts[3].behind = {0};
  return scene;
}

void expect_reference(Desk& desk, const Scene& scene, Positions positions) {
  const CompositionSpec spec = desk.compose(scene, positions);
  const auto got = desk.llm.logits_from_chunks(spec);
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_LE(distance(*got, scene.logits(desk.oracle)), tolerance());
}

TEST(ComposedAnchors, AContextSeesItsAnchorAndNothingElse) {
  for (const char* const family : {"llama_gqa", "gemma2_plain", "qwen2"}) {
    Desk desk(kGoldens / family, most_exact(16));
    Dice dice(11);
    for (const bool with_system : {true, false}) {
      for (const Positions positions : {Positions::kConcat, Positions::kParallel}) {
        Scene scene = chains_of(dice);
        if (!with_system) {
          scene.system.reset();
        }
        scene.place(positions);
        expect_reference(desk, scene, positions);
      }
    }
  }
}

TEST(ComposedAnchors, WhereAnAnchorDoesNotStandAContextSeesTheSystemChunkAlone) {
  Desk desk(kGoldens / "llama_gqa", most_exact(16));
  Dice dice(12);
  Scene scene = chains_of(dice);
  scene.place(Positions::kConcat);
  CompositionSpec spec = desk.compose(scene, Positions::kConcat);
  std::ranges::reverse(spec.context_chunk_ids);
  std::ranges::reverse(scene.contexts);
  for (Scene::Segment& context : scene.contexts) {
    context.behind.clear();
  }
  scene.place(Positions::kConcat);
  const CompositionInfo info = must(desk.llm.preview_composition(spec));
  EXPECT_EQ(info.segments[3].why_not, "computed under another anchor, not yet under this one");
  EXPECT_LE(distance(must(desk.llm.logits_from_chunks(spec)), scene.logits(desk.oracle)),
            tolerance());
}

TEST(ComposedAnchors, BlendBeginsWithWhatTheAnchorsMade) {
  Desk desk(kGoldens / "llama_gqa", most_exact(16));
  Dice dice(13);
  Scene scene = chains_of(dice);
  scene.place(Positions::kConcat);
  CompositionSpec spec = desk.compose(scene, Positions::kConcat);
  scene.recomputed = {scene.first_context() + 3, scene.first_context() + 20};
  spec.mode = ReuseMode::kBlend;
  spec.blend = {.selector = Selector::kExplicit, .tokens = scene.recomputed};
  EXPECT_LE(distance(must(desk.llm.logits_from_chunks(spec)), scene.logits(desk.oracle)),
            tolerance());
}

TEST(ComposedAnchors, AChainOfAllContextsIsThePlainPromptAndIsComputedOnce) {
  Desk desk(kGoldens / "llama_gqa", most_exact(16));
  Dice dice(14);
  Scene scene = make_scene(dice, 3, 16);
  scene.contexts[1].behind = {0};
  scene.contexts[2].behind = {0, 1};
  scene.place(Positions::kConcat);
  const CompositionSpec spec = desk.compose(scene, Positions::kConcat);
  const double computed = desk.stat("tokens_computed");
  const CompositionInfo info = must(desk.llm.preview_composition(spec));
  EXPECT_EQ(info.grade, ReuseGrade::kEqualMath);
  EXPECT_EQ(info.tokens_computed, std::ssize(scene.query.ids));
  EXPECT_LE(distance(must(desk.llm.logits_from_chunks(spec)), scene.exact_logits(desk.oracle)),
            tolerance());
  EXPECT_EQ(desk.stat("tokens_computed") - computed, static_cast<double>(scene.query.ids.size()));
  (void)desk.compose(scene, Positions::kConcat);
  EXPECT_EQ(desk.stat("tokens_computed") - computed, static_cast<double>(scene.query.ids.size()));
}

TEST(ComposedAnchors, AnotherProcessFindsThemInAStore) {
  const base::TemporaryFolder folder;
  const std::string store = folder.path() / "store";
  Dice dice(15);
  Scene scene = chains_of(dice);
  scene.place(Positions::kConcat);
  std::vector<float> wanted;
  {
    Desk desk(kGoldens / "llama_gqa", most_exact(16), {.store = store});
    wanted = desk.logits(desk.compose(scene, Positions::kConcat));
    ASSERT_TRUE(desk.llm.flush_store().ok());
  }
  Desk desk(kGoldens / "llama_gqa", most_exact(16), {.store = store});
  const CompositionSpec spec = desk.compose(scene, Positions::kConcat);
  EXPECT_EQ(desk.stat("tokens_computed"), 0);
  EXPECT_EQ(desk.logits(spec), wanted);
  EXPECT_EQ(anchor_ids(must(desk.llm.get_chunk(spec.context_chunk_ids[2])).anchor).size(), 3U);
}

TEST(ComposedAnchors, OneCallMayBringAChunkAndOneBehindIt) {
  Desk desk(kGoldens / "llama_gqa", most_exact(16));
  Dice dice(17);
  std::vector<ChunkContent> chunks = {{.content = dice.ids(5), .type = ChunkType::kSystemPrompt},
                                      {.content = dice.ids(9), .type = ChunkType::kContext},
                                      {.content = dice.ids(17), .type = ChunkType::kContext}};
  std::vector<std::string> ids;
  for (ChunkContent& chunk : chunks) {
    if (!ids.empty()) {
      chunk.options.anchor = anchor_of(ids);
    }
    ids.push_back(must(desk.llm.register_chunk(chunk)));
  }
  EXPECT_EQ(must(desk.llm.clear_chunks()), 3);
  EXPECT_EQ(must(desk.llm.register_chunks(chunks)), ids);
}

TEST(ComposedAnchors, AreRefusedWhereAChunkDoesNotStandInThem) {
  Desk desk(kGoldens / "llama_gqa", most_exact(16));
  Dice dice(16);
  const Scene scene = make_scene(dice, 2, 16);
  const CompositionSpec spec = desk.compose(scene, Positions::kConcat);
  const auto& [first, second] = std::pair(spec.context_chunk_ids[0], spec.context_chunk_ids[1]);
  const auto refusal = [&](const std::vector<std::string>& anchor) {
    const auto added =
        desk.llm.register_chunk({.content = dice.ids(4), .options = {.anchor = anchor_of(anchor)}});
    return added.ok() ? std::optional<ErrorCode>() : added.error().code;
  };
  EXPECT_EQ(refusal({first}), ErrorCode::kInvalidComposition) << "without its system chunk";
  EXPECT_EQ(refusal({first, spec.system_chunk_id}), ErrorCode::kInvalidComposition);
  EXPECT_EQ(refusal({spec.system_chunk_id, spec.query_chunk_id}), ErrorCode::kInvalidComposition);
  EXPECT_EQ(refusal({spec.system_chunk_id, std::string(64, 'a')}), ErrorCode::kNotFound);
  ASSERT_TRUE(must(desk.llm.delete_chunk(second)));
  EXPECT_EQ(refusal({spec.system_chunk_id, second}), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace quire::chunks
