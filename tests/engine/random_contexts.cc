#include "random_contexts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copies_oracle.h"
#include "quire/api/test_support.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"
#include "random_site.h"

namespace quire {
namespace {

ContextManager open_context(const LLM& llm, const Site& site, const char* folder) {
  return ContextManager::open(llm, {.mode = site.scenario.context, .store = site.store(folder)})
      .value();
}

// No two begin alike, nor do sequences so.
Ids item_ids(std::int64_t which) {
  Ids ids = some_ids(static_cast<std::size_t>(3 + 3 * which), static_cast<std::uint32_t>(which));
  for (TokenId& id : ids) {
    id = 20 + id % 100;
  }
  ids.front() = 150 + static_cast<TokenId>(which);
  return ids;
}

}  // namespace

RandomContexts::RandomContexts(Site& site)
    : site_(site),
      context_(open_context(site.llm.llm(), site, "items")),
      mirror_(open_context(site.oracle.llm(), site, "mirror")),
      forgotten_(!site.disk.items.empty()) {}

std::vector<Operation> RandomContexts::operations() {
  std::vector<Operation> all = {{"add item", 8, [this] { return add(); }},
                                {"switch item", 8, [this] { return toggle(); }},
                                {"infer", 6, [this] { return infer(); }},
                                {"erase item", 7, [this] { return erase(); }},
                                {"populate", 3, [this] { return populate(); }}};
  if (!exact()) {
    all.push_back({"unload item", 8, [this] { return unload(); }});
    all.push_back({"restore item", 6, [this] { return restore(); }});
  }
  if (!exact() && site_.scenario.stores) {
    all.push_back({"save item", 3, [this] { return save(); }});
  }
  return all;
}

template <class T>
bool RandomContexts::refused(const T& result) {
  changed_ = true;
  if (!result.ok() && result.error().code == ErrorCode::kNotFound) {
    site_.was_refused = true;
    EXPECT_TRUE(forgotten_) << result.error().message;
    return true;
  }
  return site_.refused(result, site_.num_blocks + 1);
}

void RandomContexts::check() {
  if (!changed_) {
    return;
  }
  changed_ = false;
  items_ = context_.items().value();
  const std::vector<ContextItem> right = mirror_.items().value();
  ASSERT_EQ(items_.size(), right.size());
  item_blocks_ = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    ASSERT_EQ(items_[i].id, right[i].id);
    ASSERT_EQ(items_[i].token_ids, right[i].token_ids);
    ASSERT_EQ(items_[i].active, right[i].active);
    ASSERT_EQ(items_[i].parents, right[i].parents);
    if (items_[i].tier == Tier::kDevice && !exact()) {
      ASSERT_GT(items_[i].memory_bytes, 0);
      item_blocks_ += items_[i].memory_bytes / site_.block_bytes;
    }
  }
}

void RandomContexts::clear() {
  changed_ = true;
  forgotten_ = forgotten_ || !items_.empty();
  ASSERT_EQ(context_.clear(), std::ssize(items_));
  ASSERT_EQ(mirror_.clear(), std::ssize(items_));
  tip_.clear();
}

Ids RandomContexts::active_ids() const {
  Ids ids;
  for (const ContextItem& item : items_) {
    ids = joined(std::move(ids), item.active ? item.token_ids : Ids());
  }
  return ids;
}

// Behind the active items it stands already.
void RandomContexts::follow_tip() {
  if (exact()) {
    tip_ = context_.active_blocks().value().block_ids();
  }
}

bool RandomContexts::add() {
  const std::int64_t which = site_.below(8);
  const Ids ids = item_ids(which);
  if (items_.size() >= kMostItems || std::ssize(active_ids()) + std::ssize(ids) > kMostTokens) {
    return false;
  }
  const ItemOptions options{.kind = which == 0 ? ItemKind::kSystem : ItemKind::kContext,
                            .active = site_.below(4) > 0};
  const auto added = context_.add(ids, options);
  if (!refused(added)) {
    EXPECT_EQ(*added, mirror_.add(ids, options).value());
    // There it has its KV from now on, whatever is erased.
    EXPECT_TRUE(exact() || mirror_.restore(*added).ok());
  }
  return true;
}

bool RandomContexts::toggle() {
  if (items_.empty()) {
    return false;
  }
  const ContextItem& item = site_.any(items_);
  if (!item.active && std::ssize(active_ids()) + std::ssize(item.token_ids) > kMostTokens) {
    return false;
  }
  for (ContextManager* const context : {&context_, &mirror_}) {
    const Status done = item.active ? context->deactivate(item.id) : context->activate(item.id);
    EXPECT_TRUE(done.ok()) << done.error().message;
  }
  changed_ = true;
  return true;
}

bool RandomContexts::infer() {
  const Ids before = active_ids();
  const std::int64_t count = 1 + site_.below(5);
  if (before.empty() || items_.size() >= kMostItems ||
      std::ssize(before) + count + 1 > kMostTokens) {
    return false;
  }
  const Copy copy{.ids = before,
                  .sampling = static_cast<std::size_t>(site_.below(Oracle::kSamplings))};
  SamplingParams params = Oracle::params(copy.sampling, count);
  params.logprobs = 2;
  const auto answer = context_.infer(std::nullopt, params);
  if (refused(answer)) {
    return true;
  }
  const auto right = mirror_.infer(std::nullopt, params).value();
  EXPECT_EQ(answer->output.token_ids, right.output.token_ids);
  EXPECT_EQ(answer->output.logprobs, right.output.logprobs);
  EXPECT_EQ(answer->output_id, right.output_id);
  if (exact()) {
    EXPECT_EQ(answer->output.token_ids, site_.oracle.next(copy, count));
  }
  follow_tip();
  return true;
}

bool RandomContexts::unload() {
  if (items_.empty()) {
    return false;
  }
  const ContextItem& item = site_.any(items_);
  const bool drop = site_.below(2) == 0;
  const Status unloaded = context_.unload(item.id, drop);
  EXPECT_TRUE(unloaded.ok()) << unloaded.error().message;
  const Tier tier = context_.show(item.id).value().tier;
  const Tier nowhere = item.saved ? Tier::kDisk : Tier::kNone;
  const bool in_memory = item.tier == Tier::kDevice || item.tier == Tier::kHost;
  EXPECT_EQ(tier, !drop && in_memory ? Tier::kHost : nowhere);
  changed_ = true;
  return true;
}

// Items of this context, or saved ones.
bool RandomContexts::restore() {
  const bool saved = !site_.disk.items.empty() && site_.below(4) == 0;
  if ((saved ? site_.disk.items.empty() : items_.empty()) || items_.size() > kMostItems) {
    return false;
  }
  const std::string id = saved ? site_.any(site_.disk.items) : site_.any(items_).id;
  const Status restored = context_.restore(id);
  if (!refused(restored)) {
    const Status right = mirror_.restore(id);
    EXPECT_TRUE(right.ok()) << right.error().message;
    EXPECT_EQ(context_.show(id).value().tier, Tier::kDevice);
  }
  return true;
}

bool RandomContexts::save() {
  if (items_.empty()) {
    return false;
  }
  const std::string id = site_.any(items_).id;
  if (!refused(context_.save(id))) {
    EXPECT_TRUE(mirror_.save(id).ok());
    if (std::ranges::find(site_.disk.items, id) == site_.disk.items.end()) {
      site_.disk.items.push_back(id);
    }
  }
  return true;
}

bool RandomContexts::erase() {
  if (items_.empty() || (items_.size() < 4 && site_.below(3) > 0)) {
    return false;
  }
  const std::string id = site_.any(items_).id;
  for (ContextManager* const context : {&context_, &mirror_}) {
    const Status erased = context->erase(id);
    EXPECT_TRUE(erased.ok()) << erased.error().message;
  }
  std::erase(site_.disk.items, id);
  EXPECT_EQ(context_.restore(id).error().code, ErrorCode::kNotFound);
  changed_ = true;
  forgotten_ = true;
  return true;
}

bool RandomContexts::populate() {
  if (active_ids().empty()) {
    return false;
  }
  const auto populated = context_.populate();
  if (!refused(populated)) {
    follow_tip();
  }
  return true;
}

}  // namespace quire
