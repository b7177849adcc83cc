// Shared by the tests of chunks in a store: a store, chunks, and the process before.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <string_view>
#include <utility>

#include "quire/api/llm_impl.h"
#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/tiers/reload_policy.h"
#include "quire/tiers/tier_service.h"

namespace quire {

class SavedChunks : public testing::Test {
 protected:
  // Opens an LLM with room for 16 blocks.
  [[nodiscard]] ChunkedLLM open_small() const {
    return ChunkedLLM::open(kModel,
                            here({.kv_budget_bytes = std::int64_t{16} * 32 * 4096, .threads = 2}),
                            {.store = folder_ / "store"})
        .value();
  }
  [[nodiscard]] ChunkedLLM open(const std::string& salt = "") const {
    return ChunkedLLM::open(kModel, here({.threads = 2}),
                            {.salt = salt, .store = folder_ / "store"})
        .value();
  }

  // Registers two cards under a system prompt and a query.
  [[nodiscard]] static CompositionSpec register_all(ChunkedLLM& llm) {
    const auto add = [&](Ids ids, ChunkType type) {
      return llm
          .register_chunk({.content = std::move(ids),
                           .type = type,
                           .options = {.metadata_json = R"({"source": "test"})"}})
          .value();
    };
    CompositionSpec spec{.system_chunk_id = add(some_ids(20, 1), ChunkType::kSystemPrompt)};
    spec.context_chunk_ids = {add(some_ids(45, 2), ChunkType::kContext),
                              add(some_ids(33, 3), ChunkType::kContext)};
    spec.query_chunk_id = add(some_ids(7, 4), ChunkType::kQuery);
    return spec;
  }

  static Ids answer(ChunkedLLM& llm, const CompositionSpec& spec) {
    const auto output =
        llm.generate_from_chunks(spec, {.temperature = 0, .max_tokens = 12, .ignore_eos = true});
    EXPECT_TRUE(output.ok()) << output.error().message;
    return output.ok() ? output->token_ids : Ids();
  }

  // Returns the composition of a process that has ended, and its answer.
  [[nodiscard]] std::pair<CompositionSpec, Ids> process_before(bool in_place = false) const {
    ChunkedLLM llm = open();
    CompositionSpec spec = register_all(llm);
    spec.computed_in_place = in_place;
    return {spec, answer(llm, spec)};
  }

  // Makes the engine believe that computing is faster than reading.
  static void make_computing_faster(ChunkedLLM& llm) {
    tiers::ReloadPolicy& pace = llm.llm().impl().open().value()->tiers().reload_policy();
    for (int i = 0; i < 5; ++i) {
      pace.note_read(100, 100);
      pace.note_computed(100, 0.1);
    }
  }

  // Damages the objects whose names begin so.
  void damage_objects(std::string_view beginning = "") const {
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder_)) {
      if (file.path().extension() == ".qkv" &&
          file.path().filename().string().starts_with(beginning)) {
        std::fstream damaged(file.path(), std::ios::in | std::ios::out | std::ios::binary);
        damaged.seekp(static_cast<std::streamoff>(file.file_size()) - 900);
        damaged.put('x').put('y').put('z');
      }
    }
  }

  [[nodiscard]] std::int64_t num_objects() const {
    std::int64_t count = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder_)) {
      count += file.path().extension() == ".qkv" ? 1 : 0;
    }
    return count;
  }

  // Tokens that answer() always computes: the query, and its own tokens but for the last.
  static constexpr double kOwnTokens = 7 + 11;

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

}  // namespace quire
