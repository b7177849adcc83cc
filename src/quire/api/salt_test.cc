// Tests salts of the public LLM on the demo model. A tenant finds what it has computed, and nobody
// else does, in the pool, on the host or on disk. Results never depend on the salt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/checkpoints.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"

namespace quire {
namespace {

using testing::HasSubstr;

constexpr int kBlockTokens = 8;

class Salts : public testing::Test {
 protected:
  static LLMOptions options() { return here({.block_tokens = kBlockTokens, .threads = 2}); }

  std::int64_t cached(const std::string& salt) const { return cached(prompt_, salt); }
  std::int64_t cached(const Ids& prompt, const std::string& salt) const {
    const auto part = llm_.explain(prompt, {.salt = salt}).value().front();
    return part.hit ? part.tokens : 0;
  }
  std::int64_t reused(const std::string& salt) {
    const auto output = llm_.generate(prompt_, greedy_, {.salt = salt}).value();
    EXPECT_TRUE(answer_.empty() || output.token_ids == answer_);
    answer_ = output.token_ids;
    return output.usage.cached_tokens;
  }

  LLM llm_ = LLM::open(kModel, options()).value();
  const Ids prompt_ = some_ids(81, 3);  // ten blocks and one token
  const SamplingParams greedy_ = {.temperature = 0, .max_tokens = 4};
  const TemporaryFolder folder_;
  std::vector<TokenId> answer_;
};

TEST_F(Salts, APrefixIsReusedWithinItsSaltAndNotBeyond) {
  EXPECT_EQ(reused("alice"), 0);
  EXPECT_EQ(reused("bob"), 0);
  EXPECT_EQ(reused(""), 0);
  EXPECT_EQ(reused("alice"), 80);
  EXPECT_EQ(reused("bob"), 80);
  EXPECT_EQ(reused(""), 80);
  EXPECT_EQ(stat(llm_, "blocks_cached"), 3 * 10);
}

TEST_F(Salts, EveryWayToAskHasOne) {
  ASSERT_TRUE(
      llm_.forward(prompt_, ForwardReuse::kExact, ForwardRows::kLast, {}, {.salt = "forward"})
          .ok());
  Stream stream = llm_.stream(prompt_, greedy_, {.salt = "stream"}).value();
  while (stream.next().value()) {
  }
  const std::vector<Prompt> prompts(2, prompt_);
  const std::vector<RequestOptions> whose = {{.salt = "left"}, {.salt = "right"}};
  const auto outputs = llm_.generate_batch(prompts, {&greedy_, 1}, {}, whose).value();
  EXPECT_EQ(outputs[0].token_ids, outputs[1].token_ids);
  for (const char* const salt : {"forward", "stream", "left", "right"}) {
    EXPECT_EQ(cached(salt), 80) << salt;
  }
  EXPECT_EQ(cached(""), 0);
  EXPECT_EQ(stat(llm_, "blocks_cached"), 4 * 10) << "nor do two of one batch share";
}

TEST_F(Salts, ExplainSaysNothingOfAnotherOne) {
  EXPECT_EQ(reused("alice"), 0);
  Ids other = prompt_;
  other.front() += 1;
  for (const Ids& prompt : {prompt_, other}) {
    EXPECT_EQ(llm_.explain(prompt, {.salt = "bob"}).value().front().reason, "never seen");
    EXPECT_EQ(llm_.explain(prompt).value().front().reason, "never seen");
  }
}

std::vector<std::array<std::int64_t, 3>> across(const LLM& llm, const Prompt& prompt) {
  std::vector<std::array<std::int64_t, 3>> parts;
  for (const CachedPart& part : llm.explain_across_salts(prompt).value()) {
    parts.push_back({part.position, part.tokens, part.num_salts});
  }
  return parts;
}

TEST_F(Salts, TheOperatorSeesHowManyHoldEachPart) {
  using Parts = std::vector<std::array<std::int64_t, 3>>;
  const std::int64_t all = std::ssize(prompt_);
  EXPECT_EQ(across(llm_, prompt_), (Parts{{0, all, 0}})) << "nobody has asked";
  EXPECT_EQ(reused("alice"), 0);
  EXPECT_EQ(across(llm_, prompt_), (Parts{{0, 80, 1}, {80, all - 80, 0}}));
  EXPECT_EQ(reused(""), 0);
  Ids half(prompt_.begin(), prompt_.begin() + 41);
  ASSERT_TRUE(llm_.generate(half, greedy_, {.salt = "bob"}).ok());
  EXPECT_EQ(across(llm_, prompt_), (Parts{{0, 40, 3}, {40, 40, 2}, {80, all - 80, 0}}));
  EXPECT_EQ(llm_.explain(prompt_, {.salt = "cleo"}).value().front().reason, "never seen")
      << "a tenant learns nothing of it";
  EXPECT_EQ(stat(llm_, "blocks_cached"), 10 + 10 + 5) << "looking changes nothing";
  EXPECT_EQ(across(llm_, Ids{}), Parts{});
  ASSERT_TRUE(llm_.clear_prefix_cache().ok());
  EXPECT_EQ(across(llm_, prompt_), (Parts{{0, all, 0}}));
}

TEST_F(Salts, ALongOneIsRefusedWhereverItIsGiven) {
  const std::string longest(1024, 's'), more(1025, 's');
  const auto expect_refused = [](const auto& result, const std::string& argument) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(result.error().message,
                HasSubstr(argument + " must have at most 1024 bytes, not 1025"));
  };
  expect_refused(llm_.generate(prompt_, greedy_, {.salt = more}), "salt");
  expect_refused(llm_.explain(prompt_, {.salt = more}), "salt");
  expect_refused(ContextManager::open(llm_, {.salt = more}), "salt");
  expect_refused(ChunkedLLM::open(kModel, options(), {.salt = more}), "salt");
  expect_refused(CheckpointManager::open(llm_, folder_.path() / "store", {.tenant = more}),
                 "tenant");
  EXPECT_TRUE(llm_.generate(prompt_, greedy_, {.salt = longest}).ok());
  EXPECT_TRUE(ChunkedLLM::open(kModel, options(), {.salt = longest}).ok());
}

TEST_F(Salts, ASequenceKeepsItsOwn) {
  Sequence sequence = llm_.sequence(prompt_, {}, {.salt = "alice"}).value();
  const Mark mark = sequence.checkpoint().value();
  ASSERT_TRUE(sequence.append(some_ids(40, 4)).ok());
  Sequence fork = sequence.fork().value();
  ASSERT_TRUE(fork.replace(40, 60, some_ids(5, 5)).ok());
  ASSERT_TRUE(fork.generate(greedy_).ok());
  ASSERT_TRUE(sequence.rollback_to(1).ok());
  ASSERT_TRUE(sequence.append(some_ids(40, 6)).ok());
  const Ids begun = sequence.tokens();
  ASSERT_TRUE(sequence.rollback_to(0).ok());
  ASSERT_TRUE(sequence.append(some_ids(40, 7)).ok());
  for (const Ids& tokens : {fork.tokens(), begun, sequence.tokens()}) {
    EXPECT_GE(cached(tokens, "alice"), std::ssize(tokens) - 1 - kBlockTokens);
    EXPECT_EQ(cached(tokens, ""), 0);
    EXPECT_EQ(cached(tokens, "bob"), 0);
  }
  EXPECT_EQ(sequence.append(prompt_, {}, {.salt = "bob"}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(fork.generate(greedy_, {}, {.salt = "bob"}).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(sequence.append(some_ids(3, 8), {}, {.salt = "alice"}).ok());
}

TEST_F(Salts, BlocksAreUsedWithTheirs) {
  Sequence hers = llm_.sequence(prompt_, {}, {.salt = "alice"}).value();
  Sequence his = llm_.sequence(prompt_, {}, {.salt = "bob"}).value();
  const BlockList blocks = hers.blocks().value();
  const Ids more = some_ids(20, 9);
  for (const auto& refused :
       {llm_.sequence(blocks, more, {}, {.salt = "bob"}),
        llm_.sequence(BlockList::join(std::array{blocks, his.blocks().value()}).value(), more)}) {
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
  ASSERT_TRUE(llm_.infer_from_blocks(blocks, more, greedy_).ok());
  EXPECT_GE(cached(joined(prompt_, more), "alice"), 96);
  EXPECT_EQ(cached(joined(prompt_, more), ""), 0);
  // Behind several lists nothing is cached; an edit makes it a plain prompt again.
  Sequence both = llm_.sequence(BlockList::join(std::array{blocks, blocks}).value(), more).value();
  ASSERT_TRUE(both.replace(10, 11, {}).ok());
  EXPECT_GE(cached(both.tokens(), "alice"), 160);
  EXPECT_EQ(cached(both.tokens(), ""), 0);
}

TEST_F(Salts, ALoadedSequenceIsWhoeverLoadsIt) {
  const std::string path = folder_.path() / "a.qkv";
  ASSERT_TRUE(llm_.sequence(prompt_, {}, {.salt = "alice"}).value().save(path).ok());
  for (const bool wait : {true, false}) {
    const std::string salt = wait ? "bob" : "carol";
    {
      Sequence loaded = llm_.load_sequence(path, {.wait = wait, .salt = salt}).value();
      EXPECT_EQ(loaded.generate(greedy_).value().token_ids,
                llm_.generate(prompt_, greedy_, {.salt = "dave"}).value().token_ids);
    }
    EXPECT_EQ(cached(salt), 80);
    EXPECT_EQ(cached(""), 0);
  }
}

TEST_F(Salts, CheckpointsOfTenantsShareNoKvAndGiveTheirSequencesTheirSalt) {
  const std::string store = folder_.path() / "store";
  std::int64_t bytes = 0;
  for (const std::string salt : {"alice", "bob"}) {
    Sequence sequence = llm_.sequence(prompt_, {}, {.salt = salt}).value();
    const NamedSequence named{.name = "talk", .sequence = &sequence};
    auto others = CheckpointManager::open(llm_, store, {.tenant = "carol"}).value();
    EXPECT_EQ(others.save({&named, 1}).error().code, ErrorCode::kInvalidArgument);
    auto own = CheckpointManager::open(llm_, store, {.tenant = salt}).value();
    const CheckpointInfo saved = own.save({&named, 1}).value();
    EXPECT_GT(saved.written_bytes, 0);
    EXPECT_TRUE(bytes == 0 || bytes == saved.written_bytes) << "of the other one nothing is used";
    bytes = saved.written_bytes;
    EXPECT_EQ(own.save({&named, 1}).value().written_objects, 0) << "of its own all is";
  }
  LLM later = LLM::open(kModel, options()).value();
  auto own = CheckpointManager::open(later, store, {.tenant = "alice"}).value();
  EXPECT_EQ(own.load("", {}, {.salt = "bob"}).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(own.load().ok());
  EXPECT_TRUE(later.explain(prompt_, {.salt = "alice"}).value().front().hit);
  EXPECT_FALSE(later.explain(prompt_, {.salt = "bob"}).value().front().hit);
  EXPECT_FALSE(later.explain(prompt_).value().front().hit);
}

TEST_F(Salts, ContextsShareNoPrefixInAnyMode) {
  for (const ReuseMode mode : {ReuseMode::kAnchored, ReuseMode::kExact}) {
    const std::string suffix = reuse_mode_name(mode);
    const auto ask = [&](const std::string& salt) {
      auto context = ContextManager::open(llm_, {.mode = mode, .salt = salt}).value();
      EXPECT_TRUE(context.add(prompt_).ok());
      const double before = stat(llm_, "tokens_computed");
      const auto refused = context.infer("Who?", greedy_, {}, {}, {.salt = "carol"});
      EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
      answer_ = context.infer("Who?", greedy_).value().output.token_ids;
      EXPECT_EQ(context.populate().value(), 0);
      return stat(llm_, "tokens_computed") - before;
    };
    const double first = ask("alice " + suffix);
    const auto answer = answer_;
    EXPECT_EQ(cached("alice " + suffix), 80);
    EXPECT_EQ(cached(""), 0);
    EXPECT_EQ(ask("bob " + suffix), first);
    EXPECT_EQ(answer_, answer);
    EXPECT_LE(ask("alice " + suffix), first);
  }
}

TEST_F(Salts, ThatOfTheChunksIsThatOfRequestsWithoutOne) {
  auto chunked = ChunkedLLM::open(kModel, options(), {.salt = "alice"}).value();
  LLM& llm = chunked.llm();
  ASSERT_TRUE(llm.generate(prompt_, greedy_).ok());
  EXPECT_TRUE(llm.explain(prompt_, {.salt = "alice"}).value().front().hit);
  EXPECT_TRUE(llm.explain(prompt_).value().front().hit);
  EXPECT_FALSE(llm.explain(prompt_, {.salt = "bob"}).value().front().hit);
  const std::string context = chunked.register_chunk({.content = some_ids(40, 11)}).value();
  const std::string query =
      chunked.register_chunk({.content = some_ids(9, 12), .type = ChunkType::kQuery}).value();
  CompositionSpec spec{.without_system = true, .mode = ReuseMode::kExact};
  spec.context_chunk_ids = {context};
  spec.query_chunk_id = query;
  ASSERT_TRUE(chunked.generate_from_chunks(spec, greedy_).ok());
  const Ids whole = joined(some_ids(40, 11), some_ids(9, 12));
  EXPECT_TRUE(llm.explain(whole).value().front().hit);
  EXPECT_FALSE(llm.explain(whole, {.salt = "bob"}).value().front().hit);
  EXPECT_EQ(chunked.generate_from_chunks(spec, greedy_, {}, {.salt = "bob"}).error().code,
            ErrorCode::kNotFound);
  EXPECT_EQ(chunked.sequence(spec, {}, {.salt = "bob"}).error().code, ErrorCode::kNotFound);
  spec.salt = "alice";
  EXPECT_EQ(chunked.sequence(spec, {}, {.salt = "bob"}).error().code, ErrorCode::kInvalidArgument);
  spec.salt = "";
  auto checkpoints = CheckpointManager::open(llm, folder_.path() / "own").value();
  Sequence sequence = llm.sequence(prompt_).value();
  const NamedSequence named{.name = "talk", .sequence = &sequence};
  EXPECT_TRUE(checkpoints.save({&named, 1}).ok()) << "their tenant is that salt too";
}

// Three tenants ask about the same few texts, in a pool that is too small for them.
TEST_F(Salts, ARandomRunOfTenantsHitsNothingButTheirOwnAndComputesTheSame) {
  constexpr std::array<const char*, 4> kTenants = {"", "alice", "bob", "carol"};
  LLMOptions small = options();
  small.kv_budget_bytes = std::int64_t{80} * 8 * 4096;
  LLM llm = LLM::open(kModel, small).value();
  LLMOptions cold = options();
  cold.prefix_cache = false;
  LLM oracle = LLM::open(kModel, cold).value();
  std::mt19937 random(77);
  std::map<std::string, std::vector<Ids>> asked;
  std::map<Ids, std::vector<TokenId>> answers;
  std::int64_t hits = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string tenant = kTenants[random() % kTenants.size()];
    const Ids text = some_ids(20 + random() % 60, 1 + random() % 3);
    const Ids prompt = joined(text, some_ids(random() % 20, 20 + random() % 2));
    std::int64_t longest = 0;
    for (const Ids& known : asked[tenant]) {
      longest =
          std::max<std::int64_t>(longest, std::ranges::mismatch(known, prompt).in1 - known.begin());
    }
    const auto output = llm.generate(prompt, greedy_, {.salt = tenant}).value();
    ASSERT_LE(output.usage.cached_tokens, longest) << "request " << i << " of " << tenant;
    hits += output.usage.cached_tokens;
    auto& answer = answers[prompt];
    if (answer.empty()) {
      answer = oracle.generate(prompt, greedy_).value().token_ids;
    }
    if (!on_gpu()) {
      ASSERT_EQ(output.token_ids, answer) << "request " << i;
    }
    asked[tenant].push_back(joined(prompt, output.token_ids));
  }
  EXPECT_GT(hits, 500);
  EXPECT_GT(stat(llm, "evictions"), 50);
}

}  // namespace
}  // namespace quire
