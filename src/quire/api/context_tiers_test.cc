// Which items of a context stay where when memory is short. Oracle: the same item before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "quire/api/llm_impl.h"
#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/engine/engine.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/tiers/reload_policy.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire {
namespace {

using testing::HasSubstr;

// Cards that fill two blocks each.
std::string card(int number) {
  std::string text = "Card " + std::to_string(number) + ".";
  for (int i = 0; i < 12; ++i) {
    text += " Ada keeps a goose.";
  }
  return text;
}

class ContextTiers : public testing::Test {
 protected:
  [[nodiscard]] ContextManager open(const ContextOptions& options) const {
    return ContextManager::open(llm_, options).value();
  }
  [[nodiscard]] std::string store(const std::string& name = "store") const {
    return folder_.path() / name;
  }
  // Returns the bytes of host memory that one card takes.
  [[nodiscard]] std::int64_t card_bytes() const {
    ContextManager context = open({});
    return context.show(context.add(card(1)).value()).value().memory_bytes;
  }

  LLM llm_ = LLM::open(kModel, here({.threads = 2})).value();
  const TemporaryFolder folder_;
  const SamplingParams greedy_ = {.temperature = 0, .max_tokens = 6};
};

TEST_F(ContextTiers, TenantsDoNotSeeEachOthersSavedItems) {
  ContextManager alice = open({.store = store(), .salt = "alice"});
  const std::string hers = alice.add(card(1), {.name = "card"}).value();
  ASSERT_TRUE(alice.save(hers).ok());
  ContextManager bob = open({.store = store(), .salt = "bob"});
  EXPECT_EQ(bob.restore(hers).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(bob.restore("card").error().code, ErrorCode::kNotFound);
  const std::string his = bob.add(card(1)).value();
  EXPECT_NE(his, hers);
  ASSERT_TRUE(bob.save(his).ok());
  ASSERT_TRUE(bob.erase(his).ok());
  ContextManager again = open({.store = store(), .salt = "alice"});
  EXPECT_TRUE(again.restore("card").ok());
}

TEST_F(ContextTiers, ACompressedItemComesBackToTheBit) {
  const ContextOptions options{.store = store(), .compress = true};
  std::vector<TokenId> before;
  {
    ContextManager context = open(options);
    ASSERT_TRUE(context.save(context.add(card(1), {.name = "card"}).value()).ok());
    before = context.infer("Who?", greedy_).value().output.token_ids;
  }
  ContextManager context = open(options);
  ASSERT_TRUE(context.unload(context.add(card(2)).value(), true).ok());
  ASSERT_TRUE(context.deactivate(context.items().value().front().id).ok());
  const double computed = stat(llm_, "tokens_computed");
  ASSERT_TRUE(context.restore("card").ok());
  EXPECT_EQ(stat(llm_, "tokens_computed"), computed);
  ASSERT_TRUE(context.activate("card").ok());
  EXPECT_EQ(context.infer("Who?", greedy_).value().output.token_ids, before);
}

TEST_F(ContextTiers, WhatHostMemoryHasNoRoomForGoesToTheStore) {
  ContextManager context = open({.store = store(), .max_host_bytes = card_bytes()});
  const std::string first = context.add(card(1)).value();
  const std::string second = context.add(card(2)).value();
  const auto ask = [&] {
    const auto answer = context.infer("Who?", greedy_).value();
    EXPECT_TRUE(context.erase(answer.user_id).ok());
    EXPECT_TRUE(context.erase(answer.output_id).ok());
    return answer.output.token_ids;
  };
  const auto before = ask();
  ASSERT_TRUE(context.unload(first).ok());
  EXPECT_EQ(context.show(first).value().tier, Tier::kHost);
  ASSERT_TRUE(context.unload(second).ok());
  EXPECT_EQ(context.show(first).value().tier, Tier::kDisk);
  EXPECT_EQ(context.show(second).value().tier, Tier::kHost);
  const double computed = stat(llm_, "tokens_computed");
  ASSERT_TRUE(context.restore(first).ok());
  EXPECT_EQ(stat(llm_, "tokens_computed"), computed);
  EXPECT_EQ(ask(), before);
}

TEST_F(ContextTiers, WithoutAStoreItIsComputedAgain) {
  ContextManager context = open({.max_host_bytes = 1});
  const std::string id = context.add(card(1)).value();
  const auto before = context.infer(std::nullopt, greedy_).value();
  ASSERT_TRUE(context.erase(before.output_id).ok());
  ASSERT_TRUE(context.unload(id).ok());
  EXPECT_EQ(context.show(id).value().tier, Tier::kNone);
  EXPECT_EQ(context.infer(std::nullopt, greedy_).value().output.token_ids, before.output.token_ids);
}

TEST_F(ContextTiers, LowPrioritiesGoFirstAndPinnedItemsStay) {
  ContextManager context = open({.max_host_bytes = 2 * card_bytes()});
  std::vector<std::string> ids;
  for (const ItemRetentionUpdate& retention :
       {ItemRetentionUpdate{.pinned = true}, {.priority = 1}, {}}) {
    const int number = static_cast<int>(ids.size()) + 1;
    ids.push_back(context.add(card(number), {.retention = retention}).value());
  }
  for (const std::string& id : ids) {
    ASSERT_TRUE(context.unload(id).ok());
  }
  EXPECT_EQ(context.show(ids[0]).value().tier, Tier::kHost);
  EXPECT_EQ(context.show(ids[1]).value().tier, Tier::kHost);
  EXPECT_EQ(context.show(ids[2]).value().tier, Tier::kNone) << "used last, but priority 0";
  ASSERT_TRUE(context.set_retention(ids[1], {.pinned = true}).ok());
  ASSERT_TRUE(context.restore(ids[2]).ok());
  ASSERT_TRUE(context.set_retention(ids[2], {.pinned = true}).ok());
  ASSERT_TRUE(context.unload(ids[2]).ok());
  EXPECT_EQ(context.stats().value().host_items, 3) << "pinned items stay beyond the limit";
}

TEST_F(ContextTiers, AnInactiveItemWhoseTimeIsOverGivesUpItsKv) {
  ContextManager context = open({});
  const ItemOptions over{.retention = {.ttl_seconds = 0}};
  const std::string used = context.add(card(1), over).value();
  const std::string idle = context.add(card(2), over).value();
  const std::string later = context.add(card(3), {.retention = {.ttl_seconds = 1e9}}).value();
  ASSERT_TRUE(context.deactivate(idle).ok());
  ASSERT_TRUE(context.deactivate(later).ok());
  ASSERT_TRUE(context.populate().ok());
  EXPECT_EQ(context.show(used).value().tier, Tier::kDevice) << "it is active";
  EXPECT_EQ(context.show(idle).value().tier, Tier::kNone);
  EXPECT_EQ(context.show(later).value().tier, Tier::kDevice);
  EXPECT_TRUE(context.add(card(1)).ok());
  EXPECT_EQ(context.show(used).value().retention.ttl_seconds, 0) << "adding again keeps it";
}

TEST_F(ContextTiers, AddingAgainChangesWhatItSaysOfTheRetentionAndNothingElse) {
  ContextManager context = open({});
  const std::string id =
      context.add(card(1), {.retention = {.pinned = true, .priority = 3, .ttl_seconds = 60}})
          .value();
  ASSERT_TRUE(context.add(card(1), {.retention = {.priority = 5}}).ok());
  EXPECT_EQ(context.show(id).value().retention,
            (ItemRetention{.pinned = true, .priority = 5, .ttl_seconds = 60}));
  ASSERT_TRUE(context.add(card(1), {.retention = {.pinned = false}}).ok());
  EXPECT_EQ(context.show(id).value().retention, (ItemRetention{.priority = 5, .ttl_seconds = 60}));
  EXPECT_FALSE(context.add(card(1), {.retention = {.ttl_seconds = -1}}).ok());
}

TEST_F(ContextTiers, AddingAgainIsRefusedAsAWhole) {
  ContextManager context = open({.store = store()});
  const std::string id = context.add(card(1), {.name = "card", .tags = {"old"}}).value();
  ASSERT_TRUE(context.save(id).ok());
  const auto expect_refused = [&](const ItemOptions& options) {
    EXPECT_FALSE(context.add(card(1), options).ok());
    const ContextItem kept = context.show(id).value();
    EXPECT_EQ(kept.name, "card");
    EXPECT_EQ(kept.tags, std::vector<std::string>{"old"});
    EXPECT_EQ(kept.retention, ItemRetention());
  };
  expect_refused({.name = "other", .tags = {"new", ""}, .retention = {.priority = 1}});
  EXPECT_FALSE(context.add(card(2), {.tags = {""}}).ok());
  struct rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit nothing{.rlim_cur = 0, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // a refused write is an error then
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &nothing), 0);
  expect_refused({.name = "other", .tags = {"new"}, .retention = {.pinned = true}});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(context.add(card(1), {.retention = {.pinned = true}}).ok());
}

TEST_F(ContextTiers, RoomIsMadeEvenIfTheStoreCannotBeWritten) {
  LLM small =
      LLM::open(kModel, here({.kv_budget_bytes = std::int64_t{7} * 32 * 4096, .threads = 2}))
          .value();
  ContextManager context =
      ContextManager::open(small, {.store = store(), .max_host_bytes = 1}).value();
  std::filesystem::remove_all(store() + "/objects");
  std::ofstream(store() + "/objects") << "no folder";
  std::vector<std::string> ids;
  for (const int number : {1, 2, 3, 4}) {
    ids.push_back(context.add(card(number)).value());
    ASSERT_TRUE(context.deactivate(ids.back()).ok());
  }
  EXPECT_EQ(context.show(ids.front()).value().tier, Tier::kHost);
  EXPECT_EQ(context.show(ids.back()).value().tier, Tier::kDevice);
}

TEST_F(ContextTiers, WriteThroughSavesTurnsToo) {
  std::vector<std::string> ids;
  {
    ContextManager context = open({.store = store(), .write_through = true});
    ids.push_back(context.add(card(1), {.retention = {.pinned = true, .ttl_seconds = 60}}).value());
    const auto answer = context.infer("Who?", greedy_).value();
    ids.push_back(answer.user_id);
    ids.push_back(answer.output_id);
    EXPECT_EQ(context.stats().value().saved_items, 3);
  }
  LLM other = LLM::open(kModel, here({.threads = 2})).value();
  ContextManager context = ContextManager::open(other, {.store = store()}).value();
  for (const std::string& id : ids) {
    ASSERT_TRUE(context.restore(id).ok());
  }
  EXPECT_EQ(stat(other, "tokens_computed"), 0);
  EXPECT_TRUE(context.show(ids[0]).value().retention.pinned);
  EXPECT_NEAR(context.show(ids[0]).value().retention.ttl_seconds.value_or(0), 60, 1);
}

TEST_F(ContextTiers, WhatIsSavedIsComputedWhereThatIsFasterAndPossible) {
  ContextManager context = open({.store = store()});
  const std::string system = context.add(card(1), {.kind = ItemKind::kSystem}).value();
  const std::string id = context.add(card(2)).value();
  const auto tokens = static_cast<double>(context.show(id).value().token_ids.size());
  ASSERT_TRUE(context.save(id).ok());
  tiers::ReloadPolicy& pace = llm_.impl().open().value()->tiers().reload_policy();
  for (int i = 0; i < 5; ++i) {
    pace.note_read(100, 100);
    pace.note_computed(100, 0.1);
  }
  const auto computed_by_restore = [&] {
    EXPECT_TRUE(context.unload(id, true).ok());
    const ReusePart part = context.explain().value().back();
    EXPECT_EQ(part.chunk_id, id);
    if (context.show(system).ok()) {
      EXPECT_FALSE(part.hit);
      EXPECT_EQ(part.reason, pace.why_not_read());
      EXPECT_THAT(part.reason, HasSubstr("on disk, but computing is faster here: 1000 us a token"));
    } else {
      EXPECT_EQ(part.reason, "hit, on disk");
    }
    const double before = stat(llm_, "tokens_computed");
    EXPECT_TRUE(context.restore(id).ok());
    return stat(llm_, "tokens_computed") - before;
  };
  EXPECT_GE(computed_by_restore(), tokens);
  ASSERT_TRUE(context.erase(system).ok());
  EXPECT_EQ(computed_by_restore(), 0) << "nobody has what it has seen";
}

TEST_F(ContextTiers, ExplainSaysOfEachActiveItemWhereItsKvIsAndWhyNot) {
  ContextManager context = open({.store = store()});
  std::vector<std::string> ids;
  for (const int number : {1, 2, 3, 4, 5}) {
    ids.push_back(context.add(card(number), {.active = number < 5}).value());
  }
  ASSERT_TRUE(context.unload(ids[1]).ok());
  ASSERT_TRUE(context.save(ids[2]).ok() && context.unload(ids[2], true).ok());
  ASSERT_TRUE(context.unload(ids[3], true).ok());
  const auto expect_reasons = [&](const ContextManager& asked,
                                  const std::vector<std::string>& want) {
    const auto parts = asked.explain().value();
    ASSERT_EQ(parts.size(), want.size());
    std::int64_t position = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i].reason, want[i]);
      EXPECT_EQ(parts[i].hit, want[i].starts_with("hit"));
      EXPECT_EQ(parts[i].position, position);
      EXPECT_EQ(parts[i].chunk_type, "context");
      position += parts[i].tokens;
    }
  };
  const double computed = stat(llm_, "tokens_computed");
  expect_reasons(context, {"hit", "hit, in host memory", "hit, on disk", "not computed yet"});
  EXPECT_EQ(stat(llm_, "tokens_computed"), computed) << "and changes nothing";
  ASSERT_TRUE(context.populate().ok());
  expect_reasons(context, {"hit", "hit", "hit", "hit"});
  ContextManager strict = open({.store = store(), .fetch = false});
  const std::string unloaded = strict.add(card(1)).value();
  ASSERT_TRUE(strict.unload(unloaded).ok());
  expect_reasons(strict, {"unloaded; restore it"});
}

TEST_F(ContextTiers, InModeExactExplainFollowsTheTokens) {
  ContextManager context = open({.mode = ReuseMode::kExact});
  const std::string first = context.add(card(1)).value();
  ASSERT_TRUE(context.add(card(2)).ok());
  EXPECT_EQ(context.explain().value().front().reason, "never seen");
  ASSERT_TRUE(context.populate().ok());
  for (const ReusePart& part : context.explain().value()) {
    EXPECT_TRUE(part.hit) << part.reason;
  }
  ASSERT_TRUE(context.deactivate(first).ok());
  const auto parts = context.explain().value();
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_FALSE(parts.front().hit) << "it stands behind something else now";
}

// A forecast for all items together equals what asking then does.
TEST_F(ContextTiers, ExplainForetellsWhatIsReadAndWhatIsComputed) {
  ContextManager context = open({.store = store()});
  std::vector<std::string> ids;
  for (int number = 0; number < 20; ++number) {
    ids.push_back(context.add(card(number)).value());
    ASSERT_TRUE(context.save(ids.back()).ok());
  }
  tiers::ReloadPolicy& pace = llm_.impl().open().value()->tiers().reload_policy();
  for (int i = 0; i < 5; ++i) {
    pace.note_read(100, 100);
    pace.note_computed(100, 0.1);
  }
  for (const std::string& id : ids) {
    ASSERT_TRUE(context.unload(id, true).ok());
  }
  std::int64_t expected = 0, read = 0;
  for (const ReusePart& part : context.explain().value()) {
    expected += part.hit ? 0 : part.tokens;
    read += part.hit ? 1 : 0;
  }
  EXPECT_EQ(read, 1) << "of sixteen one is read, so that the measurement stays young";
  EXPECT_EQ(context.populate().value(), expected);
}

TEST_F(ContextTiers, AStoreThatCannotBeWrittenIsToldAndNothingIsLost) {
  ContextManager through = open({.store = store("through"), .write_through = true});
  ContextManager back = open({.store = store("back"), .max_host_bytes = 1});
  const std::string id = back.add(card(1)).value();
  for (const char* name : {"through", "back"}) {
    std::filesystem::remove_all(store(name) + "/objects");
    std::ofstream(store(name) + "/objects") << "no folder";
  }
  EXPECT_FALSE(through.add(card(1)).ok());
  EXPECT_TRUE(through.items().value().empty());
  const auto before = back.infer(std::nullopt, greedy_).value();
  ASSERT_TRUE(back.erase(before.output_id).ok());
  EXPECT_FALSE(back.unload(id).ok());
  EXPECT_EQ(back.show(id).value().tier, Tier::kHost) << "beyond the limit, but there";
  EXPECT_EQ(back.infer(std::nullopt, greedy_).value().output.token_ids, before.output.token_ids);
}

TEST_F(ContextTiers, RetentionOfWhatHasLeftTheStoreIsKeptHere) {
  ContextManager context = open({.store = store()});
  ContextManager other = open({.store = store()});
  const std::string id = context.add(card(1)).value();
  ASSERT_TRUE(context.save(id).ok());
  ASSERT_TRUE(other.restore(id).ok());
  ASSERT_TRUE(other.erase(id).ok());
  EXPECT_TRUE(context.set_retention(id, {.priority = 3}).ok());
  EXPECT_EQ(context.show(id).value().retention.priority, 3);
  EXPECT_FALSE(context.show(id).value().saved);
}

// Returns the objects in a store by name.
std::map<std::string, std::string> objects(const std::string& store) {
  std::map<std::string, std::string> found;
  for (const auto& file : std::filesystem::recursive_directory_iterator(store)) {
    if (file.path().extension() == ".qkv") {
      std::ifstream in(file.path(), std::ios::binary);
      found[file.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
    }
  }
  return found;
}

TEST_F(ContextTiers, SavingFromHostMemoryWritesTheSameFileAndTakesNoBlock) {
  ContextManager context = open({.store = store("device")});
  ContextManager unloaded = open({.store = store("host")});
  const std::string id = context.add(card(1)).value();
  ASSERT_TRUE(context.save(id).ok());
  ASSERT_EQ(unloaded.add(card(1)).value(), id);
  ASSERT_TRUE(unloaded.unload(id).ok());
  const double in_use = stat(llm_, "blocks_in_use");
  ASSERT_TRUE(unloaded.save(id).ok());
  EXPECT_EQ(stat(llm_, "blocks_in_use"), in_use);
  EXPECT_EQ(unloaded.show(id).value().tier, Tier::kHost);
  EXPECT_EQ(objects(store("host")).size(), 1);
  EXPECT_EQ(objects(store("host")), objects(store("device")));
}

TEST_F(ContextTiers, WhatAnotherContextErasesFromTheStoreIsSavedNoMore) {
  ContextManager context = open({.store = store(), .max_host_bytes = 1});
  ContextManager other = open({.store = store()});
  const std::string id = context.add(card(1)).value();
  const auto erased = [&] {
    ASSERT_TRUE(context.save(id).ok());
    ASSERT_TRUE(context.show(id).value().saved);
    ASSERT_TRUE(other.restore(id).ok());
    ASSERT_TRUE(other.erase(id).ok());
  };
  erased();
  EXPECT_FALSE(context.show(id).value().saved);
  EXPECT_EQ(context.stats().value().saved_items, 0);
  ASSERT_TRUE(context.unload(id).ok()) << "there is no room in host memory: it is saved again";
  EXPECT_EQ(context.show(id).value().tier, Tier::kDisk);
  erased();
  EXPECT_EQ(context.show(id).value().tier, Tier::kNone);
  ASSERT_TRUE(context.save(id).ok()) << "it is computed again";
  EXPECT_TRUE(context.show(id).value().saved);
}

TEST_F(ContextTiers, LimitsAndTimesThatAreNoneAreRefused) {
  const auto why = [&](const ContextOptions& options) {
    return ContextManager::open(llm_, options).error().message;
  };
  EXPECT_THAT(why({.max_host_bytes = -1}), HasSubstr("max_host_bytes"));
  EXPECT_THAT(why({.max_store_bytes = -1}), HasSubstr("max_store_bytes"));
  EXPECT_THAT(why({.write_through = true}), HasSubstr("write_through"));
  EXPECT_THAT(why({.mode = ReuseMode::kExact, .store = store(), .write_through = true}),
              HasSubstr("anchored"));
  ContextManager context = open({});
  for (const double ttl :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const ItemRetentionUpdate retention{.ttl_seconds = ttl};
    EXPECT_THAT(context.add(card(1), {.retention = retention}).error().message,
                HasSubstr("ttl_seconds"));
    EXPECT_TRUE(context.items().value().empty());
  }
  const std::string id = context.add(card(1)).value();
  EXPECT_FALSE(context.set_retention(id, {.ttl_seconds = -1}).ok());
  EXPECT_FALSE(context.show(id).value().retention.ttl_seconds.has_value());
  EXPECT_EQ(context.set_retention("nobody", {}).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace quire
