// Traces of requests: who asks when, and how much of the prompt is new. Synthetic ones follow from
// a seed, and nothing in them depends on the machine or the library of random distributions. Others
// were recorded from a server (record_trace.py).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/types.h"

namespace quire::bench {

// A turn of a session: its prompt is the first `kept` tokens of the session's prompt before it (of
// a first turn: of the tokens that all sessions begin with), and `fresh` tokens behind them.
struct TraceRequest {
  double seconds = 0;
  std::int32_t session = 0;
  std::int32_t turn = 0;  // from 0
  std::int64_t kept = 0;
  std::int64_t fresh = 0;
  double gap = -1;          // seconds to the session's next turn; below 0: there is none
  std::int32_t output = 0;  // tokens of the answer; 0: the trace does not say
};

// In order of time.
using Trace = std::vector<TraceRequest>;

// People who chat: sessions of 1 to 43 turns come at random for an hour, most have one turn;
// prompts of 900 to 126,000 tokens; minutes between turns. Calibrated against the conversation
// trace that was published with Mooncake (FAST'25): 12,031 requests in 3,537 s of 12,035 tokens on
// average.
[[nodiscard]] Trace chat_trace(std::uint64_t seed);

// Agents: 20,000 tokens that all of them share, 10,000 of their own, then 30 turns of 2,048 tokens
// in and 900 out with seconds for a tool between them; one of ten never returns after some turn.
[[nodiscard]] Trace agent_trace(std::uint64_t seed);

// Reads a recorded trace. Ends the program for a file that is none.
[[nodiscard]] Trace read_trace(const std::string& path);

// The prompts of a trace as token ids, `scale` tokens of the trace to one. Ask for each request
// once, in order.
class PromptMaker {
 public:
  PromptMaker(std::int32_t num_sessions, std::int32_t scale);
  // Valid until the next call.
  [[nodiscard]] std::span<const TokenId> prompt(const TraceRequest& request);

 private:
  std::int32_t scale_;
  std::uint64_t last_token_ = 0;
  std::vector<TokenId> shared_;                // what all sessions begin with, as far as needed
  std::vector<std::vector<TokenId>> prompts_;  // of sessions that go on
};

[[nodiscard]] std::int32_t num_sessions(const Trace& trace);

}  // namespace quire::bench
