#include "copies_oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {
namespace {

// Seeded; the models of the tests have 200 ids.
Ids chunk_ids(std::size_t count, std::uint32_t seed) {
  Ids ids = some_ids(count, seed);
  for (TokenId& id : ids) {
    id = 20 + id % 100;
  }
  return ids;
}

std::string name_of(const CompositionSpec& spec) {
  std::string name = spec.system_chunk_id + "+" + spec.query_chunk_id;
  for (const std::string& context : spec.context_chunk_ids) {
    name += "+" + context;
  }
  return name + reuse_mode_name(spec.mode) + std::to_string(static_cast<int>(spec.positions)) +
         selector_name(spec.blend.selector) + (spec.computed_in_place ? " in place" : "");
}

// With its ids that of what decides how it goes on.
std::string name_of(const Copy& copy) {
  if (copy.composed == 0) {
    return "";
  }
  const std::string composed = "," + std::to_string(copy.composed);
  if (copy.edit == nullptr) {
    return name_of(copy.spec) + composed;
  }
  std::string name = "(" + name_of(copy.edit->before);
  for (const TokenId id : copy.edit->before.ids) {
    name += " " + std::to_string(id);
  }
  return name + ")" + std::to_string(copy.edit->start) + "-" + std::to_string(copy.edit->stop) +
         "+" + std::to_string(copy.edit->middle.size()) + composed;
}

}  // namespace

std::string describe(const Copy& copy) {
  std::string text =
      std::to_string(copy.ids.size()) + " tokens, " + std::to_string(copy.sampled) + " sampled";
  if (copy.composed > 0 && copy.edit != nullptr) {
    text += ", " + std::to_string(copy.composed) + " of them by an edit of [" +
            std::to_string(copy.edit->start) + ", " + std::to_string(copy.edit->stop) + ") of (" +
            describe(copy.edit->before) + ")";
  } else if (copy.composed > 0) {
    text += ", " + std::to_string(copy.composed) + " composed, mode " +
            reuse_mode_name(copy.spec.mode) + ", " +
            std::to_string(copy.spec.context_chunk_ids.size()) + " contexts, " +
            (copy.spec.without_system ? "no " : "a ") + "system chunk, " +
            (copy.spec.computed_in_place ? "in place, " : "") +
            (copy.spec.positions == Positions::kParallel ? "parallel" : "one after the other");
  }
  return text;
}

void Copy::append(const Ids& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  sampled = more.empty() ? sampled : 0;
}

// The last token that is left is computed again, so the composition gives one less than it had.
void Copy::cut(std::int64_t length) {
  sampled = length <= composed && length < std::ssize(ids)
                ? 0
                : std::max<std::int64_t>(0, sampled - (std::ssize(ids) - length));
  ids.resize(static_cast<std::size_t>(length));
  composed = length <= 1 ? 0 : std::min(composed, length - 1);
}

void Copy::replace(std::int64_t start, std::int64_t stop, const Ids& middle) {
  Ids changed = joined(middle, Ids(ids.begin() + stop, ids.end()));
  if (start < composed && !changed.empty()) {
    composed = 0;
    ids.resize(static_cast<std::size_t>(start));
  } else {
    cut(start);
  }
  append(changed);
}

// At the end, and where nothing is replaced by nothing, there is no KV to keep.
void Copy::replace_only(std::int64_t start, std::int64_t stop, const Ids& middle) {
  if (stop >= std::ssize(ids) - 1 || (start == stop && middle.empty())) {
    replace(start, stop, middle);
    return;
  }
  edit = std::make_shared<const ApproximateEdit>(
      ApproximateEdit{.before = *this, .start = start, .stop = stop, .middle = middle});
  ids.erase(ids.begin() + start, ids.begin() + stop);
  ids.insert(ids.begin() + start, middle.begin(), middle.end());
  sampled = 0;
  composed = std::ssize(ids) - 1;
}

int Copy::num_edits() const {
  return composed == 0 || edit == nullptr ? 0 : 1 + edit->before.num_edits();
}

void Copy::grow(const Ids& generated) {
  ids.insert(ids.end(), generated.begin(), generated.end());
  sampled += std::ssize(generated);
}

Oracle::Oracle(const std::string& model, std::int32_t block_tokens, bool with_chunks,
               const std::string& kv_dtype, bool mixed)
    : llm_(ChunkedLLM::open(model, here({.kv_dtype = kv_dtype,
                                         .block_tokens = block_tokens,
                                         .kv_budget_bytes = std::int64_t{64} << 20,
                                         .threads = 1,
                                         .prefix_cache = false}))
               .value()) {
  if (!with_chunks) {
    return;
  }
  std::vector<std::string> formats = {""};
  if (mixed) {
    formats = {"", "int8", "fp8", exact_dtype(), "bfloat16"};
    if (block_tokens % 32 == 0) {
      formats.emplace_back("int4");
    }
  }
  std::size_t next_format = 0;
  std::string own_format;  // that of the first chunk, which asks for none
  const auto add = [&](ChunkContent content) {
    if (content.type != ChunkType::kQuery) {
      content.options.kv_dtype = formats[next_format++ % formats.size()];
    }
    std::string id = llm_.register_chunk(content).value();
    const ChunkInfo info = llm_.get_chunk(id).value();
    own_format = own_format.empty() ? info.kv_dtype : own_format;
    chunks_.push_back({.content = std::move(content),
                       .id = std::move(id),
                       .has_own_format = info.kv_dtype == own_format});
  };
  for (std::size_t i = 0; i < kSystems; ++i) {
    add({.content = chunk_ids(7 + 3 * i, 100 + static_cast<std::uint32_t>(i)),
         .type = ChunkType::kSystemPrompt});
  }
  for (std::size_t under = 0; under <= kSystems; ++under) {
    for (std::size_t i = 0; i < kContexts; ++i) {
      add({.content = chunk_ids(3 + 4 * i, 200 + static_cast<std::uint32_t>(i)),
           .options = {.anchor = under == 0 ? "" : chunks_[under - 1].id}});
    }
  }
  for (std::size_t i = 0; i < kQueries; ++i) {
    add({.content = chunk_ids(1 + 2 * i, 300 + static_cast<std::uint32_t>(i)),
         .type = ChunkType::kQuery});
  }
}

SamplingParams Oracle::params(std::size_t sampling, std::int64_t max_tokens) {
  const auto count = static_cast<std::int32_t>(max_tokens);
  if (sampling == 0) {
    return {.temperature = 0, .max_tokens = count, .ignore_eos = true};
  }
  if (sampling == 1) {
    return {.temperature = 0.8,
            .top_p = 0.9,
            .top_k = 40,
            .max_tokens = count,
            .ignore_eos = true,
            .seed = 5};
  }
  return {.repetition_penalty = 1.1,
          .presence_penalty = 0.2,
          .frequency_penalty = 0.1,
          .max_tokens = count,
          .ignore_eos = true,
          .seed = 7};
}

const Oracle::Chunk& Oracle::context(std::size_t index, std::size_t under) const {
  return chunks_[kSystems + under * kContexts + index];
}

const Oracle::Chunk& Oracle::query(std::size_t index) const {
  return chunks_[kSystems + (kSystems + 1) * kContexts + index];
}

CompositionSpec Oracle::any_spec(std::mt19937& random) const {
  const std::size_t under = random() % (kSystems + 1);
  CompositionSpec spec{.query_chunk_id = query(random() % kQueries).id};
  if (under == 0) {
    spec.without_system = true;
  } else {
    spec.system_chunk_id = system(under - 1).id;
  }
  spec.mode = static_cast<ReuseMode>(random() % 4);
  const bool apart = spec.mode == ReuseMode::kIndependent;
  const std::size_t contexts = random() % 3 + (under == 0 ? 1 : 0);
  for (std::size_t i = 0; i < contexts; ++i) {
    spec.context_chunk_ids.push_back(context(random() % kContexts, apart ? 0 : under).id);
  }
  if (spec.mode == ReuseMode::kBlend) {
    spec.blend = {.selector = random() % 2 == 0 ? Selector::kFirst : Selector::kQueryAttention,
                  .share = 0.3};
  } else if (spec.mode != ReuseMode::kExact && random() % 4 == 0) {
    spec.positions = Positions::kParallel;
  }
  const bool anchored = spec.mode == ReuseMode::kAnchored || spec.mode == ReuseMode::kBlend;
  spec.computed_in_place = anchored && random() % 3 == 0;
  return spec;
}

bool Oracle::is_plain(const CompositionSpec& spec) const {
  std::vector<std::string> parts = spec.context_chunk_ids;
  parts.push_back(spec.system_chunk_id);
  return spec.mode == ReuseMode::kExact && std::ranges::all_of(chunks_, [&](const Chunk& chunk) {
           return std::ranges::find(parts, chunk.id) == parts.end() || chunk.has_own_format;
         });
}

Copy Oracle::behind(const CompositionSpec& spec, std::size_t sampling) const {
  Copy copy{.sampling = sampling, .spec = spec};
  std::vector<std::string> parts = spec.context_chunk_ids;
  if (!spec.system_chunk_id.empty()) {
    parts.insert(parts.begin(), spec.system_chunk_id);
  }
  parts.push_back(spec.query_chunk_id);
  for (const std::string& id : parts) {
    const auto chunk = std::ranges::find(chunks_, id, &Chunk::id);
    copy.composed = is_plain(spec) ? 0 : std::ssize(copy.ids);
    copy.ids = joined(std::move(copy.ids), std::get<Ids>(chunk->content.content));
  }
  return copy;
}

// Cold: all but the chunks is computed anew.
Sequence Oracle::make(const Copy& copy) {
  if (copy.composed == 0) {
    return llm_.llm().sequence(copy.ids).value();
  }
  Sequence sequence = copy.edit == nullptr ? llm_.sequence(copy.spec).value() : make(*copy.edit);
  const std::int64_t given = copy.composed + 1;
  EXPECT_TRUE(sequence.rollback_to(given).ok());
  EXPECT_TRUE(sequence.append(Ids(copy.ids.begin() + given, copy.ids.end())).ok());
  EXPECT_EQ(sequence.tokens(), copy.ids);
  return sequence;
}

Sequence Oracle::make(const ApproximateEdit& edit) {
  Sequence sequence = make(edit.before);
  const Status edited =
      sequence.replace(edit.start, edit.stop, edit.middle, {}, EditMode::kApproximate);
  EXPECT_TRUE(edited.ok()) << edited.error().message;
  return sequence;
}

Ids Oracle::next(const Copy& copy, std::int64_t count) {
  Copy start = copy;
  start.ids.resize(copy.ids.size() - static_cast<std::size_t>(copy.sampled));
  Ids& known = next_[{name_of(start) + "/" + std::to_string(copy.sampling), start.ids}];
  const std::int64_t last = copy.sampled + count;
  if (std::ssize(known) < last) {
    known = make(start).generate(params(copy.sampling, (last + 7) / 8 * 8)).value().token_ids;
  }
  return {known.begin() + copy.sampled, known.begin() + last};
}

const std::vector<float>& Oracle::logits(const Copy& copy) {
  std::vector<float>& known = logits_[{name_of(copy), copy.ids}];
  if (known.empty()) {
    known = make(copy).logits().value();
  }
  return known;
}

const std::vector<float>& Oracle::composed_logits(const CompositionSpec& spec) {
  std::vector<float>& known = logits_[{name_of(spec) + "/all", {}}];
  if (known.empty()) {
    known = llm_.logits_from_chunks(spec).value().logits;
  }
  return known;
}

}  // namespace quire
