#include "traces.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "quire/types.h"
#include "random.h"

namespace quire::bench {
namespace {

constexpr std::int64_t kRootTokens = 512;  // of chat: what every prompt begins with
constexpr std::int64_t kLongestPrompt = 126'000;

// A session's turns one after the other, as they are appended to the trace.
struct Session {
  std::int32_t id = 0;
  double seconds = 0;
  std::int64_t tokens = 0;
};

std::int64_t log_normal_tokens(Random& random, double mu, double sigma) {
  return std::max<std::int64_t>(1, std::llround(random.log_normal(mu, sigma)));
}

std::int32_t chat_turns(Random& random) {
  constexpr std::array kSessions = {5114, 1311, 464, 200, 117, 55, 27, 26, 10, 16};  // of 1.. turns
  constexpr int kMore = 33, kMost = 43;
  std::int64_t pick = random.below(kMore + std::int64_t{7340});
  for (std::size_t i = 0; i < kSessions.size(); ++i) {
    pick -= kSessions[i];
    if (pick < 0) {
      return static_cast<std::int32_t>(i) + 1;
    }
  }
  return static_cast<std::int32_t>(random.below(kMost - std::ssize(kSessions)) +
                                   std::ssize(kSessions) + 1);
}

std::int64_t first_chat_prompt(Random& random) {
  if (random.unit() < 0.27) {
    return 890 + random.below(611);
  }
  return std::clamp<std::int64_t>(log_normal_tokens(random, 9.2, 0.98), 900, kLongestPrompt);
}

void next_chat_prompt(Random& random, std::int64_t before, TraceRequest& request) {
  if (random.unit() < 0.08) {  // something at the end was taken back
    const double share = 0.1 + 0.85 * random.unit();
    request.kept = std::max<std::int64_t>(1, std::llround(static_cast<double>(before) * share));
    request.fresh = 0;
    return;
  }
  const bool little = random.unit() < 0.85;
  request.kept = before;
  request.fresh =
      little ? log_normal_tokens(random, 6.05, 1.0) : log_normal_tokens(random, 8.4, 0.9);
}

void sort_by_time(Trace& trace) { std::ranges::stable_sort(trace, {}, &TraceRequest::seconds); }

}  // namespace

Trace chat_trace(std::uint64_t seed) {
  constexpr double kSessionsPerSecond = 2.08, kSeconds = 3537;
  Random random(seed);
  Trace trace;
  std::int32_t sessions = 0;
  double start = 0;
  while ((start += random.exponential(1 / kSessionsPerSecond)) < kSeconds) {
    const std::int32_t turns = chat_turns(random);
    TraceRequest request{.seconds = start, .session = sessions++, .kept = kRootTokens};
    request.fresh = first_chat_prompt(random) - kRootTokens;
    for (; request.turn < turns && request.seconds < kSeconds; ++request.turn) {
      if (request.turn > 0) {
        next_chat_prompt(random, request.kept + request.fresh, request);
      }
      request.gap = request.turn + 1 < turns ? random.log_normal(4.85, 0.9) : -1;
      trace.push_back(request);
      request.seconds += request.gap;
    }
  }
  sort_by_time(trace);
  return trace;
}

Trace agent_trace(std::uint64_t seed) {
  constexpr double kAgentsPerSecond = 0.1, kSeconds = 1800;
  constexpr std::int32_t kTurns = 30;
  constexpr std::int64_t kShared = 20'000, kOwn = 10'000, kIn = 2'048, kOut = 900;
  constexpr double kTokensPerSecond = 60;  // of generation
  Random random(seed);
  Trace trace;
  std::int32_t agents = 0;
  double start = 0;
  while ((start += random.exponential(1 / kAgentsPerSecond)) < kSeconds) {
    const bool stays_away = random.unit() < 0.1;
    const auto turns =
        static_cast<std::int32_t>(stays_away ? 1 + random.below(kTurns - 1) : kTurns);
    TraceRequest request{.seconds = start, .session = agents++, .kept = kShared, .fresh = kOwn};
    for (; request.turn < turns; ++request.turn) {
      if (request.turn > 0) {
        request.kept += request.fresh;
        request.fresh = kIn + kOut;
      }
      request.gap =
          request.turn + 1 < turns ? kOut / kTokensPerSecond + random.log_normal(1.5, 1.2) : -1;
      trace.push_back(request);
      request.seconds += request.gap;
    }
  }
  sort_by_time(trace);
  return trace;
}

Trace read_trace(const std::string& path) {
  std::ifstream file(path);
  Trace trace;
  std::map<std::int32_t, std::size_t> last;  // by session: its turn before
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) {
      continue;
    }
    TraceRequest request;
    std::istringstream fields(line);
    fields >> request.seconds >> request.session >> request.turn >> request.kept >> request.fresh >>
        request.output;
    const auto before = last.find(request.session);
    const bool fits = (before == last.end() && request.turn == 0) ||
                      (before != last.end() && trace[before->second].turn + 1 == request.turn);
    if (fields.fail() || !fits || request.kept + request.fresh < 1 || request.output < 1 ||
        (!trace.empty() && request.seconds < trace.back().seconds)) {
      std::fprintf(stderr, "error: %s is no trace: %s\n", path.c_str(), line.c_str());
      std::exit(1);
    }
    if (before != last.end()) {
      trace[before->second].gap = request.seconds - trace[before->second].seconds;
    }
    last[request.session] = trace.size();
    trace.push_back(request);
  }
  if (trace.empty()) {
    std::fprintf(stderr, "error: %s has no requests\n", path.c_str());
    std::exit(1);
  }
  return trace;
}

PromptMaker::PromptMaker(std::int32_t num_sessions, std::int32_t scale)
    : scale_(scale), prompts_(static_cast<std::size_t>(num_sessions)) {}

// Every token of the trace is another one: only what is kept, or shared by all, is alike.
std::span<const TokenId> PromptMaker::prompt(const TraceRequest& request) {
  const auto scaled = [this](std::int64_t tokens) {
    return static_cast<std::size_t>((tokens + scale_ - 1) / scale_);
  };
  const auto fill = [this](std::vector<TokenId>& tokens, std::size_t size) {
    while (tokens.size() < size) {
      tokens.push_back(static_cast<TokenId>(mix(++last_token_) >> 33));
    }
  };
  const std::size_t kept = scaled(request.kept);
  std::vector<TokenId>& prompt = prompts_[static_cast<std::size_t>(request.session)];
  if (request.turn == 0) {
    fill(shared_, kept);
    prompt.assign(shared_.begin(), shared_.begin() + static_cast<std::ptrdiff_t>(kept));
  }
  prompt.resize(std::min(prompt.size(), kept));
  fill(prompt, scaled(request.kept + request.fresh));
  return prompt;
}

std::int32_t num_sessions(const Trace& trace) {
  std::int32_t sessions = 0;
  for (const TraceRequest& request : trace) {
    sessions = std::max(sessions, request.session + 1);
  }
  return sessions;
}

}  // namespace quire::bench
