// Measures whether computing waits for a load. A sequence comes from a file onto a GPU layer by
// layer while a prompt behind it is computed. The load alone (one token is computed behind it,
// which needs all layers), the prompt alone (the KV is in place), and both at once; beside them a
// load that is waited for before anything is computed.
//
//   load_overlap_bench [MODEL [SAVED TOKENS [NEW TOKENS [FOLDER]]]]
//
// Were the first layer computed only when the last one has arrived, both would take the sum of the
// two. Bar: at most 0.9 of it. Medians; all are measured in turn. The file lies in memory.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <ratio>
#include <span>
#include <string>
#include <vector>

#include "../must.h"
#include "quire/quire.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<TokenId>;

constexpr int kRounds = 15;
constexpr double kBar = 0.9;

// Below 32,000, where the smallest vocabulary of a preset ends.
Ids some_ids(std::size_t count, TokenId first) {
  Ids ids;
  for (std::size_t i = 0; i < count; ++i) {
    ids.push_back(first + static_cast<TokenId>((i * 7919) % 10000));
  }
  return ids;
}

void check(const Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "error: %s\n", status.error().message.c_str());
    std::exit(1);
  }
}

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Computes what is appended, and one token behind it.
void compute(Sequence& sequence, std::span<const TokenId> added) {
  check(sequence.append(added));
  [[maybe_unused]] const auto output =
      must(sequence.generate({.temperature = 0, .max_tokens = 1, .ignore_eos = true}));
}

struct Times {
  double waited = 0;  // load, then compute
  double load = 0, compute = 0, both = 0;
};

Times measure(LLM& llm, const Sequence& in_place, const std::string& file, const Ids& added) {
  std::vector<double> waited, load, alone, both;
  const auto time = [](std::vector<double>& times, const std::function<Sequence()>& make,
                       std::span<const TokenId> ids) {
    const auto start = Clock::now();
    Sequence sequence = make();
    compute(sequence, ids);
    times.push_back(milliseconds_since(start));
  };
  const auto whole = [&] { return must(llm.load_sequence(file)); };
  const auto at_once = [&] { return must(llm.load_sequence(file, {.wait = false})); };
  for (int round = 0; round <= kRounds; ++round) {  // the first one is not counted
    time(waited, whole, added);
    time(load, at_once, std::span(added).first(1));
    time(alone, [&] { return must(in_place.fork()); }, added);
    time(both, at_once, added);
  }
  for (std::vector<double>* const times : {&waited, &load, &alone, &both}) {
    times->erase(times->begin());
  }
  return {median(waited), median(load), median(alone), median(both)};
}

bool run(const std::string& model, std::size_t saved, std::size_t added,
         const std::filesystem::path& folder) {
  LLM llm = must(
      LLM::open(model, {.device = "cuda", .kv_budget_bytes = kAutoBudget, .prefix_cache = false}));
  const std::filesystem::path file = folder / "load_overlap_bench.qkv";
  const Sequence sequence = must(llm.sequence(some_ids(saved + 1, 1)));
  check(sequence.save(file));
  const Times times = measure(llm, sequence, file, some_ids(added, 7));
  const double megabytes = static_cast<double>(std::filesystem::file_size(file)) * 1e-6;
  std::filesystem::remove(file);
  const double sum = times.load + times.compute;
  const double hidden = (sum - times.both) / std::min(times.load, times.compute);
  const bool met = times.both <= kBar * sum;
  std::printf("%s: %zu saved tokens (%.0f MB), %zu computed behind them\n", model.c_str(), saved,
              megabytes, added);
  std::printf("load waited for, then compute: %.1f ms\n", times.waited);
  std::printf(
      "load %.1f ms, compute %.1f ms, both %.1f ms: %.2f of the sum, %.2f of the longer, "
      "%.0f %% of the shorter hidden%s\n",
      times.load, times.compute, times.both, times.both / sum,
      times.both / std::max(times.load, times.compute), 100 * hidden,
      met ? "" : "  bar 0.9 NOT MET");
  return met;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  const auto number = [&](int index, std::size_t otherwise) {
    return argc > index ? std::strtoul(argv[index], nullptr, 10) : otherwise;
  };
  return quire::run(argc > 1 ? argv[1] : "preset:llama-3.2-1b", number(2, 8192), number(3, 1536),
                    argc > 4 ? argv[4] : "/dev/shm")
             ? 0
             : 1;
}
