// Runs a decoder over hand-made batches: sequences with blocks of their own, no ledger, no engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/state_pool.h"
#include "quire/model/decoder.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::model::testing {

using Ids = std::vector<TokenId>;

inline device::ThreadPool& pool() {
  static device::ThreadPool threads(2);
  return threads;
}

inline kernels::KernelContext context_of(device::Isa isa) {
  return {.table = &kernels::kernels_for(isa), .pool = &pool()};
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The decoder of a model folder or .gguf file.
inline Result<Decoder> open_decoder(const std::filesystem::path& path,
                                    const kernels::KernelContext& context,
                                    const PackOptions& options) {
  QUIRE_TRY(const auto model_files, weights::ModelFiles::open(path));
  auto config = model_files.gguf() != nullptr
                    ? config_from_gguf(*model_files.gguf())
                    : config_from_hf(read_text(path / "config.json"),
                                     read_text(path / "generation_config.json"));
  if (!config.ok()) {
    return config.error();
  }
  return Decoder::open(context, *config, model_files, options);
}
inline Result<Decoder> open_decoder(const std::filesystem::path& path, device::Isa isa,
                                    const PackOptions& options) {
  return open_decoder(path, context_of(isa), options);
}

inline Result<Decoder> open_decoder(const std::filesystem::path& path, device::Isa isa,
                                    kernels::WeightFormat format) {
  return open_decoder(path, isa, PackOptions{.format = format});
}

struct Sequence {
  std::vector<std::int32_t> blocks;
  std::int32_t num_tokens = 0;
  std::int32_t state = -1;  // of a model with states, from its first tokens on
};

// New tokens of one sequence in a step.
struct Piece {
  Sequence* sequence = nullptr;
  std::span<const TokenId> ids;
};

enum class Rows { kAll, kLast, kNone };

class Runner {
 public:
  Runner(Decoder& decoder, tensor::DType kv_dtype, std::int32_t block_tokens,
         std::int32_t num_blocks)
      : decoder_(decoder),
        pool_(kv_store::PagedPool::create(decoder.config().kv_geometry(kv_dtype, block_tokens),
                                          num_blocks)
                  .value()),
        block_tokens_(block_tokens) {
    constexpr std::int32_t kStates = 8;
    states_ = kv_store::StatePool::create(decoder.config().state_geometry(), kStates, 64).value();
    for (int layer = 0; layer < decoder.config().kv_layers(); ++layer) {
      views_.push_back(pool_.view(layer));
    }
    shuffle_blocks(num_blocks);
  }

  // Feeds all pieces in one batch; logits of their rows (or of the last row of each, or none), in
  // order.
  std::vector<float> step(std::span<const Piece> pieces, Rows rows) {
    clear();
    for (const Piece& piece : pieces) {
      add(piece, rows);
    }
    std::vector<attention::Entry> entries;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto [first, count] = row_ranges_[i];
      entries.push_back({.blocks = pieces[i].sequence->blocks,
                         .num_tokens = pieces[i].sequence->num_tokens,
                         .rows = std::span(entry_rows_).subspan(first, count)});
    }
    const auto logits = decoder_
                            .forward({.token_ids = ids_,
                                      .positions = positions_,
                                      .slots = slots_,
                                      .entries = entries,
                                      .logit_rows = logit_rows_,
                                      .state_runs = state_runs_,
                                      .states = states_.view()},
                                     views_)
                            .value();
    return {logits.begin(), logits.end()};
  }

  std::vector<float> feed(Sequence& sequence, std::span<const TokenId> ids,
                          Rows rows = Rows::kAll) {
    const Piece piece{&sequence, ids};
    return step({&piece, 1}, rows);
  }

 private:
  // A fixed shuffle, so that consecutive blocks of a sequence are not consecutive in memory.
  void shuffle_blocks(std::int32_t num_blocks) {
    for (std::int32_t block = 0; block < num_blocks; ++block) {
      free_.push_back(block);
    }
    std::uint32_t state = 12345;
    for (std::size_t i = free_.size(); i > 1; --i) {
      state = state * 1664525U + 1013904223U;
      std::swap(free_[i - 1], free_[(state >> 8U) % i]);
    }
  }

  void clear() {
    ids_.clear();
    positions_.clear();
    slots_.clear();
    entry_rows_.clear();
    row_ranges_.clear();
    logit_rows_.clear();
    state_runs_.clear();
  }

  void add(const Piece& piece, Rows rows) {
    Sequence& sequence = *piece.sequence;
    row_ranges_.emplace_back(entry_rows_.size(), piece.ids.size());
    if (states_.view().num_states > 0) {
      const bool begins = sequence.state < 0;
      sequence.state = begins ? next_state_++ : sequence.state;
      state_runs_.push_back({.first_row = static_cast<std::int32_t>(ids_.size()),
                             .num_rows = static_cast<std::int32_t>(piece.ids.size()),
                             .from = begins ? -1 : sequence.state,
                             .to = sequence.state});
    }
    for (std::size_t i = 0; i < piece.ids.size(); ++i) {
      const std::int32_t position = sequence.num_tokens++;
      if (position % block_tokens_ == 0) {
        sequence.blocks.push_back(free_.back());
        free_.pop_back();
      }
      const auto row = static_cast<std::int32_t>(ids_.size());
      ids_.push_back(piece.ids[i]);
      positions_.push_back(position);
      slots_.push_back({sequence.blocks.back(), position % block_tokens_});
      entry_rows_.push_back({row, position, position + 1});
      if (rows == Rows::kAll || (rows == Rows::kLast && i + 1 == piece.ids.size())) {
        logit_rows_.push_back(row);
      }
    }
  }

  Decoder& decoder_;
  kv_store::PagedPool pool_;
  kv_store::StatePool states_;
  std::int32_t next_state_ = 0;
  std::vector<StateRun> state_runs_;
  std::int32_t block_tokens_;
  std::vector<tensor::PagedKVView> views_;
  std::vector<std::int32_t> free_;
  Ids ids_;
  std::vector<std::int32_t> positions_;
  std::vector<tensor::KVSlot> slots_;
  std::vector<attention::EntryRow> entry_rows_;
  std::vector<std::pair<std::size_t, std::size_t>> row_ranges_;  // first, count per piece
  std::vector<std::int32_t> logit_rows_;
};

inline TokenId argmax(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i) {
    best = logits[i] > logits[best] ? i : best;
  }
  return static_cast<TokenId>(best);
}

// `count` greedy ids after `prompt`; stops after `stop` (-1: never).
inline Ids greedy(Runner& runner, const Ids& prompt, std::size_t count, TokenId stop = -1) {
  Sequence sequence;
  Ids out;
  Ids next = prompt;
  while (out.size() < count) {
    out.push_back(argmax(runner.feed(sequence, next, Rows::kLast)));
    if (out.back() == stop) {
      break;
    }
    next = {out.back()};
  }
  return out;
}

}  // namespace quire::model::testing
