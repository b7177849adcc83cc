// Direct inference beyond 32k positions: sequences and blocks that stand there go on as if they had
// never stopped, bit for bit, and as the oracle in double precision says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dense_oracle.h"
#include "desk.h"
#include "quire/base/sanitized.h"
#include "quire/base/temporary_folder.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"
#include "scene.h"
#include "tiny_checkpoint.h"

namespace quire::chunks {
namespace {

SamplingParams greedy(std::int32_t tokens) {
  return {.temperature = 0, .max_tokens = tokens, .ignore_eos = true};
}

// Pieces that end before, at and behind the end of a block.
void append_in_pieces(Sequence& sequence, std::span<const TokenId> tokens) {
  for (const std::size_t wanted : {1, 31, 16, 7, 1 << 20}) {
    const std::size_t piece = std::min(wanted, tokens.size());
    ASSERT_TRUE(sequence.append(tokens.first(piece)).ok());
    tokens = tokens.subspan(piece);
  }
}

// Whatever goes on from `begun` with `more` equals `whole`, which was computed in one go.
void expect_every_way_on(LLM& llm, const Sequence& begun, std::span<const TokenId> more,
                         Sequence& whole) {
  const std::vector<float> logits = must(whole.logits());
  const auto answer = must(must(whole.fork()).generate(greedy(6))).token_ids;
  Sequence stepped = must(begun.fork());
  append_in_pieces(stepped, more);
  EXPECT_EQ(must(stepped.logits()), logits);
  ASSERT_TRUE(stepped.rollback_to(begun.num_tokens() + 2).ok());
  ASSERT_TRUE(stepped.append(more.subspan(2)).ok());
  EXPECT_EQ(must(stepped.logits()), logits) << "rolled back";

  const base::TemporaryFolder folder;
  const std::string file = folder.path() / "a.qkv";
  ASSERT_TRUE(stepped.save(file).ok());
  auto generated = must(stepped.generate(greedy(2))).token_ids;
  const auto rest = must(stepped.generate(greedy(4))).token_ids;
  generated.insert(generated.end(), rest.begin(), rest.end());
  EXPECT_EQ(generated, answer);
  EXPECT_EQ(must(must(llm.load_sequence(file)).generate(greedy(6))).token_ids, answer);

  EXPECT_EQ(must(llm.infer_from_blocks(must(begun.blocks()), more, greedy(6))).token_ids, answer);
  EXPECT_EQ(must(llm.infer_from_blocks(must(whole.blocks()), {}, greedy(6))).token_ids, answer)
      << "without a new token";
}

// A few tokens far away: between them is nothing, so that the oracle can follow.
TEST(FarPositions, ASequenceEqualsTheOracleHoweverItGoesOn) {
  Desk desk(write_checkpoint("far", {.max_positions = 262144}), most_exact(16));
  Dice dice(71);
  Scene scene = make_scene(dice, 3, 16);
  const Ids more = dice.ids(70);
  for (const std::int64_t start : {32'740, 65'530, 200'000}) {
    std::int64_t position = start;
    for (Scene::Segment& context : scene.contexts) {
      context.position = position;
      position += std::ssize(context.ids);
    }
    scene.query.position = position;
    const Sequence begun = must(desk.llm.sequence(desk.compose(scene, Positions::kFixed)));
    Scene all = scene;
    all.query.ids.insert(all.query.ids.end(), more.begin(), more.end());
    Sequence whole = must(desk.llm.sequence(desk.compose(all, Positions::kFixed)));
    const Matrix rows = all.logits(desk.oracle);
    const auto last = rows.row(rows.rows - 1);
    EXPECT_LE(distance({.logits = must(whole.logits()), .rows = 1},
                       {.rows = 1, .columns = rows.columns, .values = {last.begin(), last.end()}}),
              tolerance())
        << start;
    expect_greedy(must(must(whole.fork()).generate(greedy(6))).token_ids, all, desk.oracle);
    expect_every_way_on(desk.llm.llm(), begun, more, whole);
  }
}

TEST(FarPositions, AConversationOf33000TokensGoesOnAsIfItHadNeverStopped) {
  LLMOptions options = most_exact(32);
  options.kv_budget_bytes = std::int64_t{1} << 26;
  options.threads = 0;
  LLM llm = must(
      LLM::open(write_checkpoint("long talk", {.layers = 1, .max_positions = 40'000}), options));
  // Minutes with a sanitizer, which has seen such positions above.
  const Ids ids = Dice(72).ids(base::kSanitized ? 3'000 : 33'000);
  const auto before = std::span(ids).first(ids.size() - 300), more = std::span(ids).last(300);
  const Sequence begun = must(llm.sequence(before));
  const std::vector<float> cold =
      must(llm.forward(ids, ForwardReuse::kNone, ForwardRows::kLast)).logits;
  Sequence whole = must(begun.fork());
  ASSERT_TRUE(whole.append(more).ok());
  EXPECT_EQ(must(whole.logits()), cold);
  expect_every_way_on(llm, begun, more, whole);
}

}  // namespace
}  // namespace quire::chunks
