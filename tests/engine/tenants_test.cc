// Nothing that a tenant does or has is seen by another one. One tenant's random calls of every kind
// are made twice: by it alone, and among those of two others who do the like with the same texts.
// The results of the calls must agree, errors word for word; only times, block ids and request
// numbers may differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/base/str.h"
#include "quire/base/test_length.h"
#include "quire/checkpoints.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/store.h"
#include "quire/types.h"

namespace quire {
namespace {

using base::str_cat;

const SamplingParams kOne = {.temperature = 0, .max_tokens = 1};
constexpr std::array<const char*, 3> kSalts = {"", "ada", "bob"};

std::string shown(const Error& error) {
  return str_cat(error_code_name(error.code), " ", error.message, " ", error.chunk_id);
}

std::string shown(const std::vector<TokenId>& ids) {
  std::string text;
  for (const TokenId id : ids) {
    text += str_cat(id, " ");
  }
  return text;
}

std::string shown(const GenerationOutput& output) {
  return str_cat(shown(output.token_ids), output.usage.prompt_tokens, " ",
                 output.usage.cached_tokens);
}

std::string shown(const ChunkInfo& chunk) {
  return str_cat(chunk.chunk_id, " ", chunk_type_name(chunk.type), " ", chunk.metadata_json, " ",
                 chunk.access_count, " ", chunk.pinned ? "pinned " : "", chunk.priority, " ",
                 chunk.anchor, " ", chunk.num_variants, " ", chunk.memory_bytes);
}

std::string shown(const std::vector<ReusePart>& parts) {
  std::string text;
  for (const ReusePart& part : parts) {
    text += str_cat(part.chunk_id, part.hit ? " hit " : " ", part.tokens, " ", part.reason, "; ");
  }
  return text;
}

template <class T, class Show>
std::string said(const Result<T>& result, Show show) {
  return result.ok() ? std::string(show(*result)) : shown(result.error());
}
template <class T>
std::string said(const Result<T>& result) {
  return said(result, [](const T& value) { return shown(value); });
}
std::string said(const Status& status) { return status.ok() ? "ok" : shown(status.error()); }

// One tenant, its random numbers, and all that its calls have returned.
class Tenant {
 public:
  // All tenants of an LLM share its `folder`, a store.
  Tenant(ChunkedLLM& llm, std::string folder, std::string salt, std::uint32_t seed)
      : llm_(llm), folder_(std::move(folder)), salt_(std::move(salt)), random_(seed) {}

  void act() {
    const auto& calls = this->calls();
    transcript_.push_back(without_times(calls[below(calls.size())]()));
  }
  [[nodiscard]] const std::vector<std::string>& transcript() const { return transcript_; }

 private:
  using Call = std::function<std::string()>;

  std::size_t below(std::size_t end) {
    return std::uniform_int_distribution<std::size_t>(0, end - 1)(random_);
  }
  static std::string without_times(const std::string& text) {
    static const std::regex kAgo("[0-9]+ s ago");
    return std::regex_replace(text, kAgo, "some time ago");
  }

  // Returns one of a few prompts, so that all tenants have them.
  Ids ids() { return some_ids(9 + 8 * static_cast<int>(below(5)), static_cast<int>(below(3))); }
  std::string id() {
    const bool own = !known_.empty() && below(5) != 0;
    return own ? known_[below(known_.size())] : of_others_[below(of_others_.size())];
  }
  CompositionSpec spec() {
    CompositionSpec spec{.salt = salt_, .query_chunk_id = id()};
    spec.mode = static_cast<ReuseMode>(below(3));
    spec.without_system = below(2) == 0;
    if (!spec.without_system) {
      spec.system_chunk_id = id();
    }
    for (std::size_t i = below(3); i > 0; --i) {
      spec.context_chunk_ids.push_back(id());
    }
    spec.bos_sink = spec.mode == ReuseMode::kIndependent && below(2) == 0;
    return spec;
  }
  ChunkContent content() {
    ChunkContent made{.content = ids(), .type = static_cast<ChunkType>(below(3))};
    made.options.salt = salt_;
    made.options.priority = static_cast<std::int32_t>(below(2));
    if (made.type == ChunkType::kContext && below(4) == 0) {
      made.options.anchor = below(2) == 0 ? "" : id();
    }
    return made;
  }
  RequestOptions options() { return {.session = below(3) == 0 ? "s" : "", .salt = salt_}; }

  const std::vector<Call>& calls() {
    if (!calls_.empty()) {
      return calls_;
    }
    LLM& plain = llm_.llm();
    calls_ = {
        [&] { return said(plain.generate(ids(), kOne, options())); },
        [&] { return said(plain.explain(ids(), options())); },
        [&] {
          return said(plain.forward(ids(), ForwardReuse::kExact, ForwardRows::kLast, {}, options()),
                      [](const ForwardOutput& output) { return str_cat(output.cached_tokens); });
        },
        [&] { return register_one(); },
        [&] { return register_one(); },
        [&] { return register_one(); },
        [&] {
          return said(llm_.list_chunks({}, "{}", salt_), [](const std::vector<ChunkInfo>& chunks) {
            std::string text;
            for (const ChunkInfo& chunk : chunks) {
              text += str_cat(shown(chunk), "\n");
            }
            return text;
          });
        },
        [&] { return said(llm_.get_chunk(id(), salt_)); },
        [&] { return said(llm_.update_chunk(id(), {.priority = 1}, salt_)); },
        [&] {
          return said(llm_.delete_chunk(id(), false, salt_),
                      [](bool deleted) { return deleted ? "deleted" : "none"; });
        },
        [&] {
          return below(6) != 0 ? std::string()
                               : said(llm_.clear_chunks(ChunkType::kQuery, salt_),
                                      [](std::int64_t count) { return str_cat(count); });
        },
        [&] {
          return below(6) != 0 ? std::string()
                               : said(llm_.evict_unused_chunks(0, salt_),
                                      [](std::int64_t count) { return str_cat(count); });
        },
        [&] {
          return said(llm_.chunk_stats(salt_), [](const ChunkStats& stats) {
            return str_cat(stats.total_chunks, " ", stats.memory_used_bytes, " ", stats.cache_hits,
                           " ", stats.cache_misses, " ", stats.evictions);
          });
        },
        [&] {
          return said(llm_.preview_composition(spec()), [](const CompositionInfo& info) {
            return str_cat(info.total_tokens, " ", info.tokens_reused, " ", info.tokens_computed,
                           " ", info.num_blocks, " ", info.new_blocks);
          });
        },
        [&] { return said(llm_.explain(spec())); },
        [&] { return said(llm_.generate_from_chunks(spec(), kOne, {}, options())); },
        [&] {
          return said(llm_.logits_from_chunks(spec()), [](const ForwardOutput& output) {
            return str_cat(output.rows, " ", static_cast<std::int64_t>(output.logits.size()));
          });
        },
        [&] {
          return said(llm_.chunk_blocks(id(), salt_),
                      [](const BlockList& blocks) { return str_cat(blocks.num_tokens()); });
        },
        [&] {
          ChunkedPrompt prompt{.system = ids(), .contexts = {ids()}, .query = ids()};
          return said(llm_.generate(prompt, {}, kOne, below(2) == 0, {}, options()),
                      [](const RegisteredGeneration& made) { return shown(made.output); });
        },
        [&] {
          return said(plain.sequence(ids(), {}, options()),
                      [](const Sequence& sequence) { return str_cat(sequence.num_tokens()); });
        },
        [&] {
          const std::vector<std::int32_t> typed = {static_cast<std::int32_t>(below(60))};
          (void)plain.find_blocks(typed, 5, salt_);  // which block is whose differs
          return std::string();
        },
        [&] { return said(plain.pause_session("s", 1.0, salt_)); },
        [&] { return said(plain.close_session("s", salt_)); },
        [&] { return said(plain.set_retention("s", {.priority = 1}, salt_)); },
        [&] { return talk(); },
        [&] { return save(); },
        [&] {
          return said(Store::open(folder_, {.tenant = salt_})->list(),
                      [](std::vector<StoreEntry> entries) {
                        // They come by milliseconds of their last use, which tell how fast it was.
                        std::ranges::sort(entries, {}, &StoreEntry::key);
                        std::string text;
                        for (const StoreEntry& entry : entries) {
                          text += str_cat(entry.key, " ", entry.tokens, " ", entry.bytes, "; ");
                        }
                        return text;
                      });
        },
    };
    return calls_;
  }

  // Something with a context, whose items are those of earlier calls.
  std::string talk() {
    if (!context_) {
      context_ = ContextManager::open(llm_.llm(), {.store = folder_, .salt = salt_}).value();
    }
    const auto added = context_->add(ids());
    std::string text = said(added, [](const std::string& item) { return item; });
    if (added.ok() && below(3) == 0) {
      text += said(context_->save(*added));
    }
    if (below(3) == 0) {
      text += said(context_->infer(std::nullopt, kOne),
                   [](const ContextManager::Answer& answer) { return shown(answer.output); });
    }
    text += said(context_->explain());
    if (below(3) == 0) {
      text += str_cat(context_->clear());
    }
    return text;
  }

  // A checkpoint, and what there is of the tenant's then.
  std::string save() {
    CheckpointManager checkpoints =
        CheckpointManager::open(llm_.llm(), folder_, {.tenant = salt_, .keep = 2}).value();
    const auto sequence = llm_.llm().sequence(ids(), {}, options());
    if (!sequence.ok()) {
      return shown(sequence.error());
    }
    const NamedSequence named{.name = "a", .sequence = &*sequence};
    std::string text = said(checkpoints.save({&named, 1}), [](const CheckpointInfo& info) {
      return str_cat(info.name, " ", info.bytes, " ", info.written_bytes, "; ");
    });
    text += said(checkpoints.list(), [](const std::vector<CheckpointInfo>& known) {
      std::string names;
      for (const CheckpointInfo& info : known) {
        names += str_cat(info.name, " ");
      }
      return names;
    });
    return text + said(checkpoints.load(), [](const std::vector<LoadedSequence>& loaded) {
             return shown(loaded.front().sequence.tokens());
           });
  }

  std::string register_one() {
    const auto made = llm_.register_chunk(content());
    if (made.ok() && std::ranges::find(known_, *made) == known_.end()) {
      known_.push_back(*made);
    }
    return said(made, [](const std::string& chunk_id) { return chunk_id; });
  }

 public:
  // Ids that other tenants' chunks have, and one of nothing.
  std::vector<std::string> of_others_ = {std::string(64, '0')};

 private:
  ChunkedLLM& llm_;
  std::string folder_;
  std::string salt_;
  std::optional<ContextManager> context_;
  std::mt19937 random_;
  std::vector<Call> calls_;
  std::vector<std::string> known_;
  std::vector<std::string> transcript_;
};

// Ids that the other tenants' chunks of these texts have: they are the same in every process.
std::vector<std::string> ids_of_others() {
  ChunkedLLM llm = ChunkedLLM::open(kModel, here({.block_tokens = 8, .threads = 2})).value();
  std::vector<std::string> ids = {std::string(64, '0')};
  for (const char* const salt : {"ada", "bob"}) {
    for (const ChunkType type :
         {ChunkType::kSystemPrompt, ChunkType::kContext, ChunkType::kQuery}) {
      ChunkContent content{.content = some_ids(17, 1), .type = type};
      content.options.salt = salt;
      ids.push_back(llm.register_chunk(content).value());
    }
  }
  return ids;
}

TEST(Tenants, WhatOthersDoChangesNothing) {
  const std::vector<std::string> foreign = ids_of_others();
  const int seeds = base::test_length(20, 4);
  const int calls = base::test_length(400, 150);
  for (int seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    const TemporaryFolder folder;
    const std::string own = folder.path() / "own", common = folder.path() / "common";
    const auto open = [] {  // without the store: how long reading takes would show
      return ChunkedLLM::open(kModel, here({.block_tokens = 8, .threads = 2})).value();
    };
    ChunkedLLM quiet = open();
    Tenant alone(quiet, own, "", static_cast<std::uint32_t>(seed));
    alone.of_others_ = foreign;
    ChunkedLLM shared = open();
    std::vector<Tenant> tenants;
    for (std::size_t i = 0; i < kSalts.size(); ++i) {
      tenants.emplace_back(shared, common, kSalts[i],
                           static_cast<std::uint32_t>(seed + 100 * static_cast<int>(i)));
    }
    tenants.front().of_others_ = foreign;
    for (int call = 0; call < calls; ++call) {
      alone.act();
      for (Tenant& tenant : tenants) {
        tenant.act();
      }
      ASSERT_EQ(tenants.front().transcript().back(), alone.transcript().back()) << "call " << call;
    }
  }
}

}  // namespace
}  // namespace quire
