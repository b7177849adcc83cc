// Chunks against the same ids without them, on random weights of a real shape.
//
//   chunk_bench [MODEL [all|first-token|decode [DTYPE [BATCH CONTEXT]]]]
//   default: preset:llama-160m, all, auto, and the whole grid of batches and contexts
//   DTYPE: that of the computation, or q8g32 | q4g32 for weights of that kind
//
// 1. Time to first token of a 32-token query behind 16 cached chunks, and of the same ids uncached.
//    Bar: 10 times faster from 4k cached tokens on, growing with the length. Beside it, with a new
//    query each time and registering in the time: the chunks, independent of each other, in an
//    order that was never asked for, and the same behind a new head of 512 tokens, which is
//    computed too.
// 2. Setting up a composition of 16 chunks. Bar: 50 us whatever their length.
// 3. Decoding of 16 requests that share a 4k context, with shared reads and without. Bars: 2 times
//    faster where a KV head serves one query head, as in the default; and never below 0.98 of flat
//    on the grid of any model.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "must.h"
#include "quire/quire.h"

namespace {

using quire::ChunkContent;
using quire::ChunkedLLM;
using quire::ChunkType;
using quire::CompositionSpec;
using quire::SamplingParams;
using quire::TokenId;
using Clock = std::chrono::steady_clock;

constexpr int kChunks = 16;
constexpr int kQueryTokens = 32;
constexpr int kHeadTokens = 512;
constexpr int kRounds = 3;
constexpr int kSharedRounds = 5;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  return times[times.size() / 2];
}

std::vector<TokenId> ids_of(int count, std::uint32_t seed) {
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525 + 1013904223;
    ids.push_back(static_cast<TokenId>(seed >> 8) % 30000 + 100);
  }
  return ids;
}

struct Pile {
  CompositionSpec spec;
  std::vector<TokenId> joined;
};

Pile register_pile(ChunkedLLM& llm, int chunks, int chunk_tokens, std::uint32_t seed) {
  std::vector<ChunkContent> contents;
  contents.push_back({.content = ids_of(16, seed), .type = ChunkType::kSystemPrompt});
  for (int i = 0; i < chunks; ++i) {
    contents.push_back({.content = ids_of(chunk_tokens, seed + 1 + static_cast<std::uint32_t>(i))});
  }
  contents.push_back({.content = ids_of(kQueryTokens, seed + 1000), .type = ChunkType::kQuery});
  const auto ids = must(llm.register_chunks(contents));
  Pile pile{.spec = {.system_chunk_id = ids.front(),
                     .context_chunk_ids = {ids.begin() + 1, ids.end() - 1},
                     .query_chunk_id = ids.back()}};
  for (const ChunkContent& content : contents) {
    const auto& part = std::get<std::vector<TokenId>>(content.content);
    pile.joined.insert(pile.joined.end(), part.begin(), part.end());
  }
  return pile;
}

ChunkedLLM open_model(const std::string& model, const std::string& dtype, bool share_reads) {
  quire::LLMOptions options;
  const bool quantized = dtype.starts_with('q');
  options.dtype = quantized ? "auto" : dtype;
  options.quantize = quantized ? dtype : "";
  options.kv_budget_bytes = std::int64_t{3} << 30;
  options.share_reads = share_reads;
  return must(ChunkedLLM::open(model, options, {.chunk_memory_ratio = 0.8}));
}

SamplingParams one_token() { return {.temperature = 0, .max_tokens = 1}; }

// Seconds from registering what is new to the first token. The first of `added` is the query.
double first_token_seconds(ChunkedLLM& llm, CompositionSpec spec,
                           const std::vector<ChunkContent>& added) {
  const auto start = Clock::now();
  const auto ids = must(llm.register_chunks(added));
  spec.query_chunk_id = ids.front();
  spec.context_chunk_ids.insert(spec.context_chunk_ids.begin(), ids.begin() + 1, ids.end());
  must(llm.generate_from_chunks(spec, one_token()));
  return seconds_since(start);
}

struct Rearranged {
  std::vector<double> new_order, new_head;
};

// The chunks of a pile, each time in another order.
Rearranged rearrange(ChunkedLLM& llm, const Pile& pile) {
  CompositionSpec spec{.without_system = true,
                       .context_chunk_ids = pile.spec.context_chunk_ids,
                       .query_chunk_id = pile.spec.query_chunk_id,
                       .mode = quire::ReuseMode::kIndependent};
  must(llm.generate_from_chunks(spec, one_token()));  // computes them without the system chunk
  Rearranged seconds;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    std::ranges::rotate(spec.context_chunk_ids, spec.context_chunk_ids.begin() + 3);
    std::vector<ChunkContent> added = {
        {.content = ids_of(kQueryTokens, 2000 + round), .type = ChunkType::kQuery}};
    seconds.new_order.push_back(first_token_seconds(llm, spec, added));
    added.front().content = ids_of(kQueryTokens, 3000 + round);
    added.push_back({.content = ids_of(kHeadTokens, 4000 + round)});
    seconds.new_head.push_back(first_token_seconds(llm, spec, added));
  }
  return seconds;
}

void first_tokens(ChunkedLLM& llm) {
  std::printf("%10s %14s %14s %8s %14s %15s %14s\n", "tokens", "chunks [ms]", "uncached [ms]",
              "ratio", "compose [us]", "new order [ms]", "new head [ms]");
  for (const int chunk_tokens : {32, 64, 128, 256, 448}) {
    const Pile pile = register_pile(llm, kChunks, chunk_tokens, 7);
    std::vector<double> cached;
    std::vector<double> uncached;
    std::vector<double> set_up;
    for (int round = 0; round < kRounds; ++round) {
      cached.push_back(
          must(llm.generate_from_chunks(pile.spec, one_token())).timing.first_token_seconds);
      must(llm.llm().clear_prefix_cache());
      uncached.push_back(
          must(llm.llm().generate(pile.joined, one_token())).timing.first_token_seconds);
      for (int i = 0; i < 20; ++i) {
        const auto start = Clock::now();
        must(llm.compose(pile.spec));
        set_up.push_back(seconds_since(start));
      }
    }
    const Rearranged rearranged = rearrange(llm, pile);
    std::printf("%10zu %14.2f %14.2f %7.1fx %14.1f %15.2f %14.2f\n", pile.joined.size(),
                median(cached) * 1e3, median(uncached) * 1e3, median(uncached) / median(cached),
                median(set_up) * 1e6, median(rearranged.new_order) * 1e3,
                median(rearranged.new_head) * 1e3);
    must(llm.clear_chunks());
  }
}

// Seconds per step of `batch` requests that decode behind the same chunks, once all have begun.
double step_seconds(ChunkedLLM& llm, const Pile& pile, int batch) {
  constexpr std::int32_t kTokens = 25;
  const std::vector<CompositionSpec> specs(static_cast<std::size_t>(batch), pile.spec);
  const SamplingParams params = {.temperature = 0, .max_tokens = kTokens, .ignore_eos = true};
  const auto outputs = must(llm.batch_generate_from_chunks(specs, {&params, 1}));
  double first_token = 0;
  double total = 0;
  for (const quire::GenerationOutput& output : outputs) {
    first_token = std::max(first_token, output.timing.first_token_seconds);
    total = std::max(total, output.timing.total_seconds);
  }
  return (total - first_token) / (kTokens - 1);
}

struct Grid {
  std::vector<int> batches = {1, 4, 16};
  std::vector<int> chunk_tokens = {4, 16, 64, 256};
};

// Times of one batch and context, with shared reads and without, measured in turn.
struct Turns {
  std::vector<double> with, without, ratios;
};

// Shared and flat take turns, and their ratio is taken turn by turn: other work on the machine
// passes, the order of the two does not. `turns`: a place for each batch of each context.
void take_turns(ChunkedLLM& shared, ChunkedLLM& flat, const Grid& grid, std::vector<Turns>& turns) {
  auto at = turns.begin();
  for (const int chunk_tokens : grid.chunk_tokens) {
    const Pile pile = register_pile(shared, kChunks, chunk_tokens, 7);
    register_pile(flat, kChunks, chunk_tokens, 7);
    for (const int batch : grid.batches) {
      for (int round = 0; round < kSharedRounds; ++round) {
        at->with.push_back(step_seconds(shared, pile, batch));
        at->without.push_back(step_seconds(flat, pile, batch));
        at->ratios.push_back(at->without.back() / at->with.back());
      }
      ++at;
    }
  }
}

// Twice, the one opened first and then the other: where the weights of a model come to lie makes a
// difference of some per cent that has nothing to do with sharing.
void shared_decode(const std::string& model, const std::string& dtype, const Grid& grid) {
  std::vector<Turns> turns(grid.chunk_tokens.size() * grid.batches.size());
  for (const bool shared_first : {true, false}) {
    ChunkedLLM first = open_model(model, dtype, shared_first);
    ChunkedLLM second = open_model(model, dtype, !shared_first);
    take_turns(shared_first ? first : second, shared_first ? second : first, grid, turns);
  }
  std::printf("\n%8s %8s %14s %14s %8s\n", "batch", "context", "shared [ms]", "flat [ms]", "ratio");
  auto at = turns.begin();
  for (const int chunk_tokens : grid.chunk_tokens) {
    for (const int batch : grid.batches) {
      std::printf("%8d %8d %14.2f %14.2f %7.2fx\n", batch, chunk_tokens * kChunks,
                  median(at->with) * 1e3, median(at->without) * 1e3, median(at->ratios));
      ++at;
    }
  }
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): what a bench throws may end it.
int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "preset:llama-160m";
  const std::string part = argc > 2 ? argv[2] : "all";
  const std::string dtype = argc > 3 ? argv[3] : "auto";
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // lines as they come, in pipes too
  if (part != "decode") {
    ChunkedLLM llm = open_model(model, dtype, true);
    first_tokens(llm);
  }
  if (part != "first-token") {
    shared_decode(model, dtype,
                  argc > 5 ? Grid{{std::stoi(argv[4])}, {std::stoi(argv[5]) / kChunks}} : Grid{});
  }
  return 0;
}
