// Random operations against a model that copies everything. For every chunk it keeps what the
// header says it has. It counts by adding up, and finds the chunk to evict by looking at each one.
// After each operation the counts must agree and every invariant of registry and ledger must hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

constexpr std::int32_t kNames = 20;  // chunks that the walk knows
constexpr std::int32_t kMaxTokens = 40;

// KV that lives while the registry or a sequence holds it.
constexpr std::int64_t kBytes[] = {10, 7,
                                   4};  // of a block, by format; the last one opens as the first
using Blocks = std::shared_ptr<const std::int64_t>;

struct ModelChunk {
  std::uint64_t registration = 0;
  std::uint64_t use = 0;
  std::uint64_t named = 0;  // when it was finished or registered again
  std::int64_t accesses = 0;
  std::int32_t priority = 0;
  bool pinned = false, listed = false;
  std::optional<double> ttl;
  WallClock::time_point accessed;
  std::int32_t holders = 0;
  std::map<VariantKey, Blocks> variants;
  std::map<VariantKey, std::int64_t> pending;
  std::map<std::string, std::int64_t> metadata;

  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const auto& [key, held] : variants) {
      sum += *held;
    }
    for (const auto& [key, aside] : pending) {
      sum += aside;
    }
    return sum;
  }
  [[nodiscard]] bool may_go() const { return listed && !pinned && holders == 0 && pending.empty(); }
};

struct Name {
  std::string id;
  ChunkType type = ChunkType::kContext;
  FormatId format;
  std::shared_ptr<const std::vector<TokenId>> tokens;
};

class RegistryStress {
 public:
  explicit RegistryStress(std::uint32_t seed)
      : random_(seed),
        block_tokens_(1 + below(9)),
        config_{.max_chunks = 6 + below(8),
                .max_blocks = 12 + below(60),
                .now = [this] { return now_; }},
        ledger_({.num_blocks = 512,
                 .block_tokens = block_tokens_,
                 .prefix_cache = false,
                 .formats = {{.block_bytes = kBytes[0]},
                             {.block_bytes = kBytes[1]},
                             {.block_bytes = kBytes[2], .open = kOwnFormat}},
                 .slab_blocks = 4}),
        registry_(std::make_unique<ChunkRegistry>(config_, ledger_)) {
    for (TokenId i = 0; i < kNames; ++i) {
      std::vector<TokenId> tokens(static_cast<std::size_t>(1 + below(kMaxTokens)), i);
      names_.push_back({.id = chunk_id({.model = "m"}, tokens),
                        .type = static_cast<ChunkType>(i % 3),
                        .format = {static_cast<std::uint8_t>(i / 3 % 3)},
                        .tokens = std::make_shared<const std::vector<TokenId>>(tokens)});
    }
  }

  void step() {
    const Name& name = names_[static_cast<std::size_t>(below(kNames))];
    const int kind = below(100);
    kind < 25   ? register_one(name)
    : kind < 45 ? end_one()
    : kind < 55 ? begin_variant(name)
    : kind < 63 ? hold(name)
    : kind < 72 ? release()
    : kind < 80 ? use(name)
    : kind < 87 ? update(name)
    : kind < 91 ? remove(name)
    : kind < 92 ? clear()
    : kind < 94 ? evict_unused()
    : kind < 98 ? pass_time()
                : look();
    verify();
  }

  void finish() {
    while (!flights_.empty()) {
      end_one();
    }
    while (!users_.empty()) {
      release();
    }
    registry_.reset();
    ASSERT_EQ(ledger_.counts().blocks_free, ledger_.config().num_blocks);
    ASSERT_TRUE(ledger_.check().ok());
  }

  [[nodiscard]] std::int64_t evictions() const { return evictions_; }
  [[nodiscard]] std::int64_t expirations() const { return expirations_; }
  [[nodiscard]] std::int64_t refusals() const { return refusals_; }
  [[nodiscard]] std::int64_t orphans() const { return orphans_; }

 private:
  // A prefill under way.
  struct Flight {
    const Name* name;
    VariantKey key;
  };
  // A request: it holds a chunk and, when composed of its KV, the blocks too.
  struct User {
    ChunkHold hold;
    std::optional<SeqId> sequence;
    Blocks blocks;
    std::uint64_t registration = 0;
  };

  std::int32_t below(std::int32_t bound) {
    return static_cast<std::int32_t>(random_() % static_cast<std::uint32_t>(bound));
  }
  ModelChunk* known(const std::string& id) {
    const auto found = model_.find(id);
    return found == model_.end() ? nullptr : &found->second;
  }
  // Returns the chunk that find() would find; expired ones go.
  ModelChunk* listed(const std::string& id) {
    ModelChunk* chunk = known(id);
    if (chunk != nullptr && has_expired(*chunk)) {
      ++expirations_;
      model_.erase(id);
      return nullptr;
    }
    return chunk != nullptr && chunk->listed ? chunk : nullptr;
  }
  [[nodiscard]] bool has_expired(const ModelChunk& chunk) const {
    return chunk.ttl && chunk.may_go() &&
           std::chrono::duration<double>(now_ - chunk.accessed).count() > *chunk.ttl;
  }
  void expire(const std::vector<std::string>& spared = {}) {
    expirations_ += static_cast<std::int64_t>(std::erase_if(model_, [&](const auto& entry) {
      return has_expired(entry.second) && std::ranges::count(spared, entry.first) == 0;
    }));
  }
  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const auto& [id, chunk] : model_) {
      sum += chunk.bytes();
    }
    return sum;
  }
  [[nodiscard]] std::int64_t bytes_for(const Name& name) const {
    const auto size = static_cast<std::int32_t>(name.tokens->size());
    const std::int64_t last = kBytes[name.format.value == 2 ? 0 : name.format.value];
    return size / block_tokens_ * kBytes[name.format.value] + (size % block_tokens_ > 0 ? last : 0);
  }
  void touch(ModelChunk& chunk) {
    chunk.use = ++clock_;
    chunk.accessed = now_;
    ++chunk.accesses;
  }

  // Returns the error with which beginning must be refused; nullopt, and the model has evicted,
  // when it is not.
  std::optional<ErrorCode> make_room(int chunks, std::int64_t wanted,
                                     const std::vector<std::string>& spared) {
    const std::int64_t limit = config_.max_blocks * kBytes[0];
    if (wanted > limit) {
      return ErrorCode::kOverflow;
    }
    expire(spared);
    const auto before = model_;
    while (true) {
      const bool crowded = std::ssize(model_) + chunks > config_.max_chunks;
      const bool full = bytes() + wanted > limit;
      if (!crowded && !full) {
        evictions_ += std::ssize(before) - std::ssize(model_);
        return std::nullopt;
      }
      auto victim = model_.end();
      for (auto it = model_.begin(); it != model_.end(); ++it) {
        const ModelChunk& chunk = it->second;
        const bool helps = crowded || chunk.bytes() > 0;
        const auto order = [](const ModelChunk& c) { return std::tuple(c.priority, c.use); };
        if (chunk.may_go() && helps && std::ranges::count(spared, it->first) == 0 &&
            (victim == model_.end() || order(chunk) < order(victim->second))) {
          victim = it;
        }
      }
      if (victim == model_.end()) {
        model_ = before;
        return ErrorCode::kOutOfBlocks;
      }
      model_.erase(victim);
    }
  }

  template <class T>
  void expect_answer(const T& answer, std::optional<ErrorCode> refusal) {
    ASSERT_EQ(answer.ok(), !refusal.has_value());
    if (refusal) {
      ++refusals_;
      ASSERT_EQ(answer.error().code, *refusal) << answer.error().message;
    }
  }

  NewChunk new_chunk(const Name& name) {
    NewChunk chunk{.id = name.id, .type = name.type, .format = name.format, .tokens = name.tokens};
    chunk.metadata_json = base::str_cat(R"({")", below(3), R"(":)", below(100), "}");
    chunk.pinned = below(12) == 0;
    chunk.priority = below(3) - 1;
    chunk.ttl_seconds = below(3) == 0 ? std::optional<double>(1 + below(60)) : std::nullopt;
    return chunk;
  }
  static void merge_metadata(ModelChunk& to, std::string_view from) {
    const base::Json object = base::parse_kept_object(from, "metadata").value();
    for (const auto [key, value] : object.view().members()) {
      to.metadata[std::string(key)] = value.as_int();
    }
  }

  void register_one(const Name& name) {
    NewChunk chunk = new_chunk(name);
    ModelChunk* there = listed(name.id);
    ASSERT_EQ(registry_->find(name.id) != nullptr, there != nullptr);
    if (there != nullptr) {
      there->pinned = there->pinned || chunk.pinned;
      there->ttl = chunk.ttl_seconds ? chunk.ttl_seconds : there->ttl;
      there->priority = chunk.priority != 0 ? chunk.priority : there->priority;
      merge_metadata(*there, chunk.metadata_json);
      touch(*there);
      hits_ += there->variants.empty() ? 0 : 1;
      there->named = ++named_;
      registry_->merge(chunk);
      return;
    }
    if (known(name.id) == nullptr) {  // else somebody is at it
      begin(name, std::move(chunk));
    }
  }

  void begin(const Name& name, NewChunk chunk) {
    std::optional<VariantKey> key;
    if (name.type != ChunkType::kQuery) {
      key = VariantKey{.before = name.type == ChunkType::kContext ? any_system() : ""};
    }
    ModelChunk entry{.priority = chunk.priority, .pinned = chunk.pinned, .ttl = chunk.ttl_seconds};
    merge_metadata(entry, chunk.metadata_json);
    const std::int64_t wanted = key ? bytes_for(name) : 0;
    const auto refusal = make_room(1, wanted, {key ? key->before : ""});
    const Result<const Chunk*> begun = registry_->begin(std::move(chunk), key);
    expect_answer(begun, refusal);
    if (!begun.ok()) {
      return;
    }
    entry.accessed = now_;
    entry.use = entry.registration = ++clock_;
    if (key) {
      entry.pending[*key] = wanted;
      flights_.push_back({.name = &name, .key = *key});
    } else {
      entry.listed = true;
      registry_->finish(name.id);
    }
    model_[name.id] = std::move(entry);
  }

  std::string any_system() {
    expire();
    const std::string last = registry_->last_system("");
    std::pair<std::uint64_t, std::string> expected;
    for (const auto& [id, chunk] : model_) {
      if (chunk.listed && name_of(id).type == ChunkType::kSystemPrompt) {
        expected = std::max(expected, {chunk.named, id});
      }
    }
    EXPECT_EQ(last, expected.second);
    return below(3) == 0 ? "" : last;
  }

  void begin_variant(const Name& name) {
    ModelChunk* there = listed(name.id);
    const VariantKey key{.before = below(2) == 0 ? "bos" : "", .gap = below(3)};
    ASSERT_EQ(registry_->find(name.id) != nullptr, there != nullptr);
    if (there == nullptr || there->variants.contains(key) || there->pending.contains(key) ||
        name.type == ChunkType::kQuery) {
      return;
    }
    const auto refusal = make_room(0, bytes_for(name), {name.id, key.before});
    const VariantName variant(name.id, key);
    const Status begun = registry_->variants().begin({&variant, 1});
    expect_answer(begun, refusal);
    if (begun.ok()) {
      known(name.id)->pending[key] = bytes_for(name);
      flights_.push_back({.name = &name, .key = key});
    }
  }

  // KV of the chunk, as a prefill leaves it.
  SegmentId computed(const Name& name) {
    if (name.format != kOwnFormat) {
      return ledger_.segments().reserve(*name.tokens, 0, name.format).value();
    }
    const SeqId sequence = ledger_.sequences().open(*name.tokens, false);
    const auto count = static_cast<std::int32_t>(name.tokens->size());
    EXPECT_TRUE(ledger_.sequences().extend(sequence, count).ok());
    ledger_.sequences().advance(sequence, count);
    const SegmentId segment = ledger_.segments().seal(sequence).value();
    ledger_.sequences().close(sequence);
    return segment;
  }

  void end_one() {
    if (flights_.empty()) {
      return;
    }
    const auto flight = flights_.begin() + below(static_cast<int>(flights_.size()));
    const auto [name, key] = *flight;
    flights_.erase(flight);
    std::optional<SegmentId> segment;
    if (below(6) != 0) {
      segment = computed(*name);
    }
    ModelChunk* there = known(name->id);
    const bool wanted = there != nullptr && there->pending.contains(key);
    orphans_ += wanted ? 0 : 1;
    ASSERT_EQ(registry_->variants().end(name->id, key, segment).ok(), wanted);
    if (!wanted) {
      return;
    }
    there->pending.erase(key);
    if (!segment) {
      if (!there->listed && there->pending.empty()) {
        model_.erase(name->id);
      }
      return;
    }
    there->variants[key] = std::make_shared<const std::int64_t>(bytes_for(*name));
    if (!std::exchange(there->listed, true)) {
      there->named = ++named_;
    }
    registry_->finish(name->id);
  }

  void hold(const Name& name) {
    ModelChunk* there = listed(name.id);
    const Chunk* chunk = registry_->find(name.id);
    ASSERT_EQ(chunk != nullptr, there != nullptr);
    if (there == nullptr || users_.size() >= 8) {
      return;
    }
    User user{.registration = there->registration};
    if (!there->variants.empty()) {
      const auto pick = below(static_cast<int>(there->variants.size()));
      user.blocks = std::next(there->variants.begin(), pick)->second;
      const SegmentUse use{.segment = std::next(chunk->variants.begin(), pick)->second};
      user.sequence = ledger_.segments().compose({&use, 1}).value();
    }
    user.hold = registry_->usage().hold(name.id);
    ++there->holders;
    users_.push_back(std::move(user));
  }

  void release() {
    if (users_.empty()) {
      return;
    }
    const auto user = users_.begin() + below(static_cast<int>(users_.size()));
    registry_->usage().release(user->hold);
    if (user->sequence) {
      ledger_.sequences().close(*user->sequence);
    }
    ModelChunk* there = known(user->hold.id);
    if (there != nullptr && there->registration == user->registration) {
      --there->holders;
    }
    users_.erase(user);
  }

  void use(const Name& name) {
    ModelChunk* there = listed(name.id);
    ASSERT_EQ(registry_->find(name.id) != nullptr, there != nullptr);
    if (there != nullptr) {
      registry_->usage().use(name.id);
      touch(*there);
    }
  }

  void update(const Name& name) {
    ModelChunk* there = listed(name.id);
    ChunkUpdate update;
    if (below(2) == 0) {
      update.pinned = below(4) == 0;
    }
    if (below(2) == 0) {
      update.priority = below(3) - 1;
    }
    if (below(3) == 0) {
      update.ttl_seconds.emplace();
      if (below(2) == 0) {
        update.ttl_seconds->emplace(1 + below(60));
      }
    }
    if (below(3) == 0) {
      update.metadata_json = R"({"u": 5})";
    }
    ASSERT_EQ(registry_->update(name.id, "", update).ok(), there != nullptr);
    if (there == nullptr) {
      return;
    }
    there->pinned = update.pinned.value_or(there->pinned);
    there->priority = update.priority.value_or(there->priority);
    there->ttl = update.ttl_seconds.value_or(there->ttl);
    if (update.metadata_json) {
      there->metadata["u"] = 5;
    }
  }

  void remove(const Name& name) {
    const ModelChunk* there = known(name.id);
    const bool expected = there != nullptr && there->listed;
    ASSERT_EQ(registry_->remove(name.id, Removal::kDeleted), expected);
    if (expected) {
      model_.erase(name.id);
    }
  }

  void clear() {
    const auto type = below(2) == 0 ? std::optional(static_cast<ChunkType>(below(3)))
                                    : std::optional<ChunkType>();
    expire();
    const auto gone = std::erase_if(model_, [&](const auto& entry) {
      const ModelChunk& chunk = entry.second;
      return chunk.listed && chunk.holders == 0 && chunk.pending.empty() &&
             (!type || name_of(entry.first).type == *type);
    });
    ASSERT_EQ(registry_->clear("", type), static_cast<std::int64_t>(gone));
  }

  void evict_unused() {
    const double age = below(50);
    expire();
    const auto gone = std::erase_if(model_, [&](const auto& entry) {
      return entry.second.may_go() &&
             std::chrono::duration<double>(now_ - entry.second.accessed).count() >= age;
    });
    ASSERT_EQ(registry_->evict_unused("", age), static_cast<std::int64_t>(gone));
  }

  void pass_time() { now_ += std::chrono::milliseconds(below(20'000)); }

  [[nodiscard]] const Name& name_of(const std::string& id) const {
    return *std::ranges::find(names_, id, &Name::id);
  }

  // Everything about every chunk.
  void look() {
    expire();
    std::map<std::uint64_t, std::string> expected;  // by registration
    for (const auto& [id, chunk] : model_) {
      if (chunk.listed) {
        expected[chunk.registration] = id;
      }
    }
    const std::vector<const Chunk*> got = registry_->list("");
    ASSERT_EQ(got.size(), expected.size());
    auto next = expected.begin();
    for (const Chunk* chunk : got) {
      ASSERT_EQ(chunk->id, (next++)->second);
      compare(*chunk, model_.at(chunk->id));
    }
  }

  void compare(const Chunk& chunk, const ModelChunk& model) const {
    ASSERT_EQ(chunk.accesses, model.accesses);
    ASSERT_EQ(chunk.accessed, model.accessed);
    ASSERT_EQ(chunk.holders, model.holders);
    ASSERT_EQ(chunk.pinned, model.pinned);
    ASSERT_EQ(chunk.priority, model.priority);
    ASSERT_EQ(chunk.ttl_seconds, model.ttl);
    ASSERT_EQ(chunk.pending, model.pending);
    ASSERT_EQ(registry_->room().bytes_of(chunk), model.bytes());
    ASSERT_TRUE(std::ranges::equal(
        chunk.variants, model.variants, {}, [](const auto& variant) { return variant.first; },
        [](const auto& variant) { return variant.first; }));
    for (const auto& [key, segment] : chunk.variants) {
      ASSERT_EQ(ledger_.segments().num_bytes(segment), *model.variants.at(key));
    }
    const base::Json metadata = base::parse_kept_object(chunk.metadata_json, "metadata").value();
    ASSERT_EQ(metadata.view().size(), model.metadata.size());
    for (const auto& [key, value] : model.metadata) {
      ASSERT_EQ(metadata.view().find(key).as_int(), value);
    }
  }

  void verify() const {
    const Status registry = registry_->check();
    ASSERT_TRUE(registry.ok()) << registry.error().message;
    const Status ledger = ledger_.check();
    ASSERT_TRUE(ledger.ok()) << ledger.error().message;
    const RegistryCounts counts = registry_->counts("");
    ASSERT_EQ(counts.bytes, bytes());
    ASSERT_EQ(counts.evictions, evictions_);
    ASSERT_EQ(counts.hits, hits_);
    std::map<const std::int64_t*, std::int64_t> alive;
    for (const auto& [id, chunk] : model_) {
      for (const auto& [key, held] : chunk.variants) {
        alive[held.get()] = *held;
      }
    }
    for (const User& user : users_) {
      if (user.blocks) {
        alive[user.blocks.get()] = *user.blocks;
      }
    }
    std::int64_t in_use = 0;
    for (const auto& [kv, count] : alive) {
      in_use += count;
    }
    ASSERT_EQ(ledger_.counts().bytes_in_use, in_use);
  }

  std::mt19937 random_;
  std::int32_t block_tokens_;
  WallClock::time_point now_{std::chrono::seconds(1'000'000)};
  RegistryConfig config_;
  Ledger ledger_;
  std::unique_ptr<ChunkRegistry> registry_;
  std::vector<Name> names_;
  std::map<std::string, ModelChunk> model_;
  std::vector<Flight> flights_;
  std::vector<User> users_;
  std::uint64_t clock_ = 0;  // of uses
  std::uint64_t named_ = 0;
  std::int64_t hits_ = 0, evictions_ = 0, expirations_ = 0;
  std::int64_t refusals_ = 0, orphans_ = 0;
};

TEST(ChunkRegistryStress, RandomOperationsEqualACopyEverythingModel) {
  constexpr int kWalks = 40;
  constexpr int kSteps = 2500;
  std::int64_t evictions = 0;
  std::int64_t expirations = 0;
  std::int64_t refusals = 0;
  std::int64_t orphans = 0;
  for (int seed = 0; seed < kWalks; ++seed) {
    RegistryStress stress(static_cast<std::uint32_t>(seed));
    for (int i = 0; i < kSteps; ++i) {
      stress.step();
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << " step " << i;
    }
    evictions += stress.evictions();
    expirations += stress.expirations();
    refusals += stress.refusals();
    orphans += stress.orphans();
    stress.finish();
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << " at its end";
  }
  // The walk reached what it is for.
  EXPECT_GT(evictions, 1000);
  EXPECT_GT(expirations, 1000);
  EXPECT_GT(refusals, 1000);
  EXPECT_GT(orphans, 10);
}

}  // namespace
}  // namespace quire::kv
