// Measures the worth of session hints: the share of prompt tokens in the prefix cache, on the real
// ledger with the memory of one accelerator. Evicts the least recently used block first, and
// follows hints of rising quality. No limit of memory and an oracle that knows the future are the
// bounds.
//
// Requests take no time and their output is not stored, as in the simulations of the published
// traces. One token of the ledger stands for kScale, one block for 512.
//
//   chat_trace_bench [SEEDS]   3 by default; fails below twice the hit ratio of LRU
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/types.h"
#include "random.h"
#include "traces.h"

namespace quire::bench {
namespace {

constexpr std::int32_t kScale = 16;
constexpr std::int64_t kTokensPerBlock = 512;
constexpr std::int32_t kBlockTokens = kTokensPerBlock / kScale;
constexpr std::int32_t kBlocks = 1600;           // 0.82 M tokens: 100 GiB at 128 KiB a token
constexpr std::int32_t kEnoughBlocks = 1 << 18;  // for all that a trace ever computes

// Hints that the users of a trace give.
struct Hints {
  const char* name = "";
  double share = 0;  // of sessions that say anything
  double sigma = 0;  // of the logarithm of what they expect, around the truth
  std::int32_t blocks = kBlocks;
  bool expects = false;  // say when they come back; all that say anything close their session
};

constexpr Hints kPolicies[] = {
    {.name = "no limit", .blocks = kEnoughBlocks},
    {.name = "LRU"},
    {.name = "close", .share = 1},
    {.name = "close 0.7", .share = 0.7},
    {.name = "exp 0.5", .share = 1, .sigma = 0.5, .expects = true},
    {.name = "exp 1.0", .share = 1, .sigma = 1.0, .expects = true},
    {.name = "exp 0.7x0.5", .share = 0.7, .sigma = 0.5, .expects = true},
    {.name = "exp 0.3x0.5", .share = 0.3, .sigma = 0.5, .expects = true},
    {.name = "exact", .share = 1, .expects = true},
};

kv::TimePoint at(double seconds) {
  return kv::TimePoint(
      std::chrono::duration_cast<kv::Clock::duration>(std::chrono::duration<double>(seconds)));
}

class Replay {
 public:
  Replay(const Trace& trace, const Hints& hints)
      : hints_(hints),
        ledger_({.num_blocks = hints.blocks, .block_tokens = kBlockTokens}),
        prompts_(num_sessions(trace), kScale),
        sessions_(static_cast<std::size_t>(num_sessions(trace))) {}

  // The share of prompt tokens that were cached.
  double run(const Trace& trace) {
    for (const TraceRequest& request : trace) {
      ledger_.cache().set_time(at(request.seconds));
      serve(request);
    }
    return static_cast<double>(ledger_.counts().tokens_reused) / static_cast<double>(tokens_);
  }

 private:
  void serve(const TraceRequest& request) {
    const std::span<const TokenId> prompt = prompts_.prompt(request);
    const bool hints = says_something(request.session);
    kv::SessionRef& session = sessions_[static_cast<std::size_t>(request.session)];
    if (hints && request.turn == 0) {
      session = ledger_.cache().open_session();
    }
    const SeqId id = ledger_.sequences().open(prompt, true, session);
    const auto missing =
        static_cast<std::int32_t>(prompt.size()) - ledger_.sequences().num_computed(id);
    if (!ledger_.sequences().extend(id, missing).ok()) {
      std::fprintf(stderr, "error: a prompt of %zu blocks does not fit\n",
                   prompt.size() / kBlockTokens);
      std::exit(1);
    }
    ledger_.sequences().advance(id, missing);
    ledger_.sequences().close(id);
    tokens_ += static_cast<std::int64_t>(prompt.size());
    if (hints) {
      hint(request, session);
    }
  }

  void hint(const TraceRequest& request, kv::SessionRef session) {
    if (request.gap < 0) {
      ledger_.cache().close_session(session);
    } else if (hints_.expects) {
      const double expected = request.gap * random_.log_normal(0, hints_.sigma);
      ledger_.cache().set_retention(session, {.expected_return = at(request.seconds + expected)});
    }
  }

  [[nodiscard]] bool says_something(std::int32_t session) const {
    return Random(static_cast<std::uint64_t>(session)).unit() < hints_.share;
  }

  Hints hints_;
  kv::Ledger ledger_;
  PromptMaker prompts_;
  std::vector<kv::SessionRef> sessions_;
  Random random_{7};
  std::int64_t tokens_ = 0;
};

// Evicts the block whose next use is farthest (Belady 1966), knowing all of the trace. No policy
// that evicts whole blocks does much better; it is not exactly optimal, as a prefix counts only up
// to its first missing block.
class Oracle {
 public:
  explicit Oracle(const Trace& trace) { name_blocks(trace); }

  double run() {
    std::vector<std::int64_t> next(names_.size(), kNever);  // by position in uses_
    std::map<std::int64_t, std::int64_t> seen;
    for (std::size_t i = names_.size(); i-- > 0;) {
      if (const auto found = seen.find(names_[i]); found != seen.end()) {
        next[i] = found->second;
      }
      seen[names_[i]] = static_cast<std::int64_t>(i);
    }
    std::int64_t hits = 0;
    std::size_t begin = 0;
    for (const std::size_t end : ends_) {
      hits += serve(begin, end, next);
      begin = end;
    }
    return static_cast<double>(hits * kTokensPerBlock) / static_cast<double>(tokens_);
  }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  void name_blocks(const Trace& trace) {
    std::vector<std::vector<std::int64_t>> sessions(static_cast<std::size_t>(num_sessions(trace)));
    std::vector<std::int64_t> shared;
    std::int64_t last = 0;
    for (const TraceRequest& request : trace) {
      const auto full = [](std::int64_t tokens) {
        return static_cast<std::size_t>(tokens / kTokensPerBlock);
      };
      const std::int64_t tokens = request.kept + request.fresh;
      std::vector<std::int64_t>& blocks = sessions[static_cast<std::size_t>(request.session)];
      if (request.turn == 0) {
        while (shared.size() < full(request.kept)) {
          shared.push_back(++last);
        }
        blocks.assign(shared.begin(),
                      shared.begin() + static_cast<std::ptrdiff_t>(full(request.kept)));
      }
      blocks.resize(std::min(blocks.size(), full(request.kept)));
      while (blocks.size() < full(tokens)) {
        blocks.push_back(++last);
      }
      names_.insert(names_.end(), blocks.begin(), blocks.end());
      ends_.push_back(names_.size());
      tokens_ += tokens;
    }
  }

  std::int64_t serve(std::size_t begin, std::size_t end, const std::vector<std::int64_t>& next) {
    std::int64_t hits = 0;
    bool whole = true;
    for (std::size_t i = begin; i < end; ++i) {
      const auto found = cached_.find(names_[i]);
      whole = whole && found != cached_.end();
      hits += whole ? 1 : 0;
      if (found != cached_.end()) {
        order_.erase({found->second, found->first});
      }
      cached_[names_[i]] = next[i];
      order_.emplace(next[i], names_[i]);
      while (std::ssize(cached_) > kBlocks) {
        const auto farthest = std::prev(order_.end());
        cached_.erase(farthest->second);
        order_.erase(farthest);
      }
    }
    return hits;
  }

  std::vector<std::int64_t> names_;  // of the full blocks of all requests, one after the other
  std::vector<std::size_t> ends_;    // of each request's
  std::map<std::int64_t, std::int64_t> cached_;            // name to next use
  std::set<std::pair<std::int64_t, std::int64_t>> order_;  // next use, name
  std::int64_t tokens_ = 0;
};

// The worst ratio of hints (all users, or most) to LRU.
double show(const char* workload, Trace (*make)(std::uint64_t), int seeds) {
  std::printf("%-6s %5s", workload, "seed");
  for (const Hints& hints : kPolicies) {
    std::printf(" %11s", hints.name);
  }
  std::printf(" %11s\n", "oracle");
  double worst = std::numeric_limits<double>::infinity();
  for (int seed = 1; seed <= seeds; ++seed) {
    const Trace trace = make(static_cast<std::uint64_t>(seed));
    std::printf("%6zu %5d", trace.size(), seed);
    double plain = 0;
    for (const Hints& hints : kPolicies) {
      const double ratio = Replay(trace, hints).run(trace);
      std::printf(" %10.1f%%", 100 * ratio);
      std::fflush(stdout);
      plain = hints.name == std::string("LRU") ? ratio : plain;
      if (hints.sigma > 0 && hints.share > 0.5) {
        worst = std::min(worst, ratio / plain);
      }
    }
    std::printf(" %10.1f%%\n", 100 * Oracle(trace).run());
  }
  return worst;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  const int seeds = argc > 1 ? std::atoi(argv[1]) : 3;
  const double chat = quire::bench::show("chat", quire::bench::chat_trace, seeds);
  const double agents = quire::bench::show("agents", quire::bench::agent_trace, seeds);
  std::printf("hints against LRU, worst case: chat %.2f, agents %.2f\n", chat, agents);
  return chat >= 2 ? 0 : 1;
}
