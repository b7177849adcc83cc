#include "random_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "copies_oracle.h"
#include "quire/api/llm_impl.h"
#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/engine/engine.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/sequence_service.h"
#include "random_sequences.h"
#include "random_site.h"

namespace quire {
namespace {

std::vector<std::string> ids_of(const CompositionSpec& spec) {
  std::vector<std::string> ids = spec.context_chunk_ids;
  ids.push_back(spec.query_chunk_id);
  if (!spec.system_chunk_id.empty()) {
    ids.push_back(spec.system_chunk_id);
  }
  return ids;
}

}  // namespace

RandomChunks::RandomChunks(Site& site, RandomSequences& sequences)
    : site_(site), sequences_(sequences) {
  for (const auto& [id, pinned] : site.disk.chunks) {
    known_[id].pinned = pinned;
  }
}

std::vector<Operation> RandomChunks::operations() {
  // Each change of a store is made durable.
  const int change = site_.scenario.stores ? 1 : 4;
  return {{"register chunk", 4 * change, [this] { return register_chunk(); }},
          {"delete chunk", change, [this] { return delete_chunk(); }},
          {"pin chunk", change, [this] { return pin(); }},
          {"evict unused chunks", 1, [this] { return evict_unused(); }},
          {"coalesce chunks", 2, [this] { return coalesce(); }},
          {"compose", 8, [this] { return compose(); }},
          {"logits of chunks", 2, [this] { return logits(); }},
          {"sequence of chunks", 5, [this] { return compose_sequence(); }},
          {"generate from prompts", change, [this] { return generate(); }}};
}

const Oracle::Chunk& RandomChunks::any_chunk() {
  const auto& chunks = site_.oracle.chunks();
  return chunks[static_cast<std::size_t>(site_.below(std::ssize(chunks)))];
}

CompositionSpec RandomChunks::any_spec() {
  CompositionSpec spec = site_.oracle.any_spec(site_.random);
  for (int tries = 0; tries < 60 && !has_all(spec); ++tries) {
    spec = site_.oracle.any_spec(site_.random);
  }
  return spec;
}

// Returns true where all chunks are registered, and now and then otherwise, for a call that is
// refused.
bool RandomChunks::worth_asking(const CompositionSpec& spec) {
  return has_all(spec) || site_.below(4) == 0;
}

bool RandomChunks::has_all(const CompositionSpec& spec) const {
  return std::ranges::all_of(ids_of(spec),
                             [&](const std::string& id) { return known_.contains(id); });
}

// Chunks that were not pinned may have made room for others, unless they are on disk too.
void RandomChunks::check() {
  // Since the first coalescing, each use may move the last tokens of a chunk.
  coalesced_ = stat(site_.llm, "blocks_coalesced");
  if (!changed_ && coalesced_ == 0) {
    return;
  }
  changed_ = false;
  std::map<std::string, Known> before;
  before.swap(known_);
  for (const ChunkInfo& info : site_.llm.list_chunks().value()) {
    ASSERT_TRUE(before.contains(info.chunk_id) || perhaps_.contains(info.chunk_id))
        << chunk_type_name(info.type) << " chunk was deleted, or never registered";
    if (before.contains(info.chunk_id)) {
      ASSERT_EQ(info.pinned, before[info.chunk_id].pinned);
    }
    check_one(info);
  }
  double gone = 0;
  for (const auto& [id, chunk] : before) {
    if (!known_.contains(id)) {
      ASSERT_FALSE(chunk.pinned || site_.scenario.stores);
      ++gone;
    }
  }
  const auto evictions = static_cast<double>(site_.llm.chunk_stats().value().evictions);
  if (!site_.scenario.stores && perhaps_.empty()) {
    ASSERT_EQ(gone, evictions - evictions_);
  }
  evictions_ = evictions;
  perhaps_.clear();
  if (site_.scenario.stores) {
    site_.disk.chunks.clear();
    for (const auto& [id, chunk] : known_) {
      site_.disk.chunks[id] = chunk.pinned;
    }
  }
}

void RandomChunks::check_one(const ChunkInfo& info) {
  const auto& chunks = site_.oracle.chunks();
  const auto right = std::ranges::find(chunks, info.chunk_id, &Oracle::Chunk::id);
  ASSERT_NE(right, chunks.end());
  ASSERT_EQ(info.token_ids, std::get<Ids>(right->content.content));
  ASSERT_EQ(info.type, right->content.type);
  Known& known = known_[info.chunk_id];
  known.pinned = info.pinned;
  known.blocks = blocks_of(info);
  const auto full = std::ssize(info.token_ids) / site_.scenario.block_tokens;
  if (site_.scenario.mixed) {
    return;
  }
  if (site_.scenario.by_block()) {
    ASSERT_GE(info.memory_bytes, info.num_variants * full * site_.block_bytes);
    ASSERT_GE(info.memory_bytes, std::ssize(known.blocks) * site_.block_bytes);
    return;
  }
  ASSERT_EQ(info.memory_bytes, std::ssize(known.blocks) * site_.block_bytes);
}

// In place a context stands right behind the system chunk, or behind one other context.
std::vector<std::int32_t> RandomChunks::blocks_of(const ChunkInfo& info) const {
  std::vector<std::int32_t> gaps = {0};
  for (std::size_t i = 0; i < Oracle::kContexts; ++i) {
    const Ids& ids = std::get<Ids>(site_.oracle.context(i, 0).content.content);
    gaps.push_back(static_cast<std::int32_t>(ids.size()));
  }
  const auto runtime = site_.llm.llm().impl().open().value();
  std::vector<std::int32_t> blocks;
  std::int64_t variants = 0;
  for (std::size_t i = 0; i < gaps.size() && variants < info.num_variants; ++i) {
    const auto run = runtime->sequences().runs().chunk_run(
        info.chunk_id, "", {{.before = info.anchor, .gap = gaps[i]}});
    if (run.ok()) {
      blocks.insert(blocks.end(), run->blocks.begin(), run->blocks.end());
      ++variants;
    }
  }
  return blocks;
}

void RandomChunks::add_blocks(BlockSet& held) const {
  for (const auto& [id, chunk] : known_) {
    held.add(chunk.blocks);
  }
}

void RandomChunks::clear() {
  const auto cleared = site_.llm.clear_chunks();
  ASSERT_TRUE(cleared.ok());
  ASSERT_EQ(*cleared, std::ssize(known_));
  known_.clear();
  changed_ = true;
}

template <class T>
bool RandomChunks::refused(const T& result, const CompositionSpec& spec, std::int64_t tokens) {
  changed_ = true;
  const std::vector<std::string> ids = ids_of(spec);
  if (!has_all(spec)) {
    EXPECT_FALSE(result.ok()) << "composed of what is not registered";
    site_.was_refused = true;
    if (!result.ok()) {
      // Another chunk of it may be read first, and not fit.
      const bool may_lack = site_.scenario.stores;
      EXPECT_TRUE(result.error().code == ErrorCode::kNotFound ||
                  (may_lack && result.error().code == ErrorCode::kOutOfBlocks))
          << result.error().message;
    }
    return true;
  }
  const bool from_disk = site_.scenario.stores && !result.ok();
  if (from_disk && result.error().code == ErrorCode::kNotFound) {
    // A system chunk that does not fit now is not there.
    site_.was_refused = true;
    EXPECT_TRUE(std::ranges::any_of(ids, [&](const auto& id) {
      return id != spec.query_chunk_id && known_[id].blocks.empty();
    })) << result.error().message;
    return true;
  }
  // Blended tokens have blocks of their own, and so has the end of each chunk. Chunks, and what of
  // them is computed in place, may hold a part of the pool only.
  const std::int64_t most = 2 * site_.blocks_for(tokens) + 2 * std::ssize(ids) + 2;
  const bool of_a_part = from_disk || spec.computed_in_place;
  return site_.refused(result, of_a_part ? site_.num_blocks + most : most);
}

bool RandomChunks::register_chunk() {
  const Oracle::Chunk& chunk = any_chunk();
  ChunkContent content = chunk.content;
  content.options.pinned = site_.below(8) == 0;
  changed_ = true;
  const auto id = site_.llm.register_chunk(content);
  const std::string anchor = content.options.anchor.value_or("");
  if (!id.ok() && id.error().code == ErrorCode::kNotFound) {
    const auto under = known_.find(anchor);
    EXPECT_TRUE(!anchor.empty() && (under == known_.end() || under->second.blocks.empty()))
        << id.error().message;
    return true;
  }
  // Chunks may hold a part of the pool only.
  if (!site_.refused(id, site_.num_blocks + 1)) {
    EXPECT_EQ(*id, chunk.id);
    Known& known = known_[chunk.id];
    known.pinned = known.pinned || content.options.pinned;
  }
  return true;
}

bool RandomChunks::delete_chunk() {
  const std::string& id = any_chunk().id;
  EXPECT_EQ(site_.llm.delete_chunk(id).value(), known_.erase(id) > 0);
  EXPECT_EQ(site_.llm.get_chunk(id).error().code, ErrorCode::kNotFound);
  changed_ = true;
  return true;
}

bool RandomChunks::pin() {
  if (known_.empty()) {
    return false;
  }
  auto& [id, known] = site_.any(known_);
  const bool pinned = site_.below(3) == 0;
  const auto updated = site_.llm.update_chunk(id, {.pinned = pinned});
  changed_ = true;
  if (!updated.ok()) {  // what is on disk is brought back for it
    EXPECT_TRUE(site_.scenario.stores && known.blocks.empty()) << updated.error().message;
    return true;
  }
  known.pinned = pinned;
  return true;
}

bool RandomChunks::evict_unused() {
  EXPECT_TRUE(site_.llm.evict_unused_chunks(3600).ok());
  changed_ = true;
  return true;
}

// Frees what the counters say. The checks behind it count blocks by their holders.
bool RandomChunks::coalesce() {
  const double before = stat(site_.llm, "blocks_coalesced");
  const auto freed = site_.llm.coalesce();
  EXPECT_TRUE(freed.ok());
  EXPECT_EQ(stat(site_.llm, "blocks_coalesced"), before + static_cast<double>(freed.value()));
  changed_ = true;
  return true;
}

bool RandomChunks::compose() {
  const CompositionSpec spec = any_spec();
  if (!worth_asking(spec)) {
    return false;
  }
  const Copy copy =
      site_.oracle.behind(spec, static_cast<std::size_t>(site_.below(Oracle::kSamplings)));
  const std::int64_t count = 1 + site_.below(8);
  const auto foreseen = site_.llm.preview_composition(spec);
  const auto output = site_.llm.generate_from_chunks(spec, Oracle::params(copy.sampling, count));
  if (!refused(output, spec, std::ssize(copy.ids) + count)) {
    EXPECT_EQ(output->token_ids, site_.oracle.next(copy, count));
    EXPECT_EQ(output->prompt_token_ids, copy.ids);
    EXPECT_EQ(output->reuse.grade, foreseen.value().grade);
    // With stores it depends on what is measured meanwhile.
    if (!site_.scenario.stores) {
      EXPECT_EQ(output->usage.cached_tokens, foreseen.value().tokens_reused);
    }
  }
  return true;
}

bool RandomChunks::logits() {
  const CompositionSpec spec = any_spec();
  if (!worth_asking(spec)) {
    return false;
  }
  const auto output = site_.llm.logits_from_chunks(spec);
  if (!refused(output, spec, std::ssize(site_.oracle.behind(spec, 0).ids))) {
    EXPECT_EQ(output->logits, site_.oracle.composed_logits(spec));
  }
  return true;
}

bool RandomChunks::compose_sequence() {
  if (!sequences_.has_room()) {
    return false;
  }
  const CompositionSpec spec = any_spec();
  if (!worth_asking(spec)) {
    return false;
  }
  Copy copy = site_.oracle.behind(spec, static_cast<std::size_t>(site_.below(Oracle::kSamplings)));
  auto sequence = site_.llm.sequence(spec);
  if (!refused(sequence, spec, std::ssize(copy.ids))) {
    sequences_.keep(std::move(sequence).value(), std::move(copy));
  }
  return true;
}

// Registers what is missing, for good or for this call, in the pool's own format.
bool RandomChunks::generate() {
  if (site_.scenario.mixed) {
    return false;
  }
  const CompositionSpec spec = site_.oracle.any_spec(site_.random);
  const Copy copy =
      site_.oracle.behind(spec, static_cast<std::size_t>(site_.below(Oracle::kSamplings)));
  const auto ids = [&](const std::string& id) {
    const auto& chunks = site_.oracle.chunks();
    return std::get<Ids>(std::ranges::find(chunks, id, &Oracle::Chunk::id)->content.content);
  };
  ChunkedPrompt prompt{.query = ids(spec.query_chunk_id)};
  if (!spec.system_chunk_id.empty()) {
    prompt.system = ids(spec.system_chunk_id);
  }
  for (const std::string& context : spec.context_chunk_ids) {
    prompt.contexts.emplace_back(ids(context));
  }
  const bool persist = site_.below(2) == 0;
  const std::int64_t count = 1 + site_.below(4);
  const auto output =
      site_.llm.generate(prompt, spec, Oracle::params(copy.sampling, count), persist);
  changed_ = true;
  for (const std::string& id : ids_of(spec)) {
    perhaps_.insert(id);
  }
  if (site_.refused(output, site_.num_blocks + 1)) {
    return true;
  }
  EXPECT_EQ(output->output.token_ids, site_.oracle.next(copy, count));
  EXPECT_EQ(output->query_id, spec.query_chunk_id);
  EXPECT_EQ(output->system_id, spec.system_chunk_id);
  EXPECT_EQ(output->context_ids, spec.context_chunk_ids);
  if (persist) {
    for (const std::string& id : ids_of(spec)) {
      known_.try_emplace(id);
    }
  } else {
    std::erase_if(perhaps_, [&](const std::string& id) { return !known_.contains(id); });
  }
  return true;
}

}  // namespace quire
