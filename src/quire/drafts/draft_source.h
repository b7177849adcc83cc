// DraftSource: where guesses at the next tokens come from.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "quire/drafts/guess.h"
#include "quire/types.h"

namespace quire::drafts {

// The tokens of a request so far. Views, valid during a call.
struct DraftHistory {
  std::span<const std::span<const TokenId>> prompt;  // pieces of a composed prompt; none: plain
  std::span<const TokenId> own;     // tokens of the request's own sequence: of a plain request all,
                                    // of a composed one the end of the prompt and the output
  std::span<const TokenId> output;  // generated tokens
  std::string_view salt;            // whose cached prefixes the request shares
  std::string_view tenant;          // whose service it is
};

// Return all tokens in one list, and their number.
[[nodiscard]] std::vector<TokenId> all_tokens(const DraftHistory& history);

[[nodiscard]] std::int64_t num_tokens(const DraftHistory& history);

// A request for one guess.
struct DraftQuery {
  RequestId request;
  DraftHistory history;
  std::int32_t most = 0;  // tokens one behind the other
  // Tokens in all: first those that the request allows, then those that the step asks for. A source
  // that only knows chains does without the more.
  std::int32_t most_in_tree = 0;
  Guess* draft{};  // gets them; empty before
};

// Thread rule: the engine thread.
class DraftSource {
 public:
  DraftSource() = default;
  virtual ~DraftSource() = default;
  DraftSource(const DraftSource&) = delete;
  DraftSource& operator=(const DraftSource&) = delete;

  // Answers all queries of a step. A guess may be short or empty, and may hold any number.
  virtual void propose(std::span<const DraftQuery> queries) = 0;
  // Sets how long the next propose() may compute prompts. Infinite: as long as it takes. A prompt
  // that takes longer goes on with the next call, and has no guess until then.
  virtual void set_prompt_seconds(double /*seconds*/) {}
  // Returns the seconds in which the last propose() has computed prompts.
  [[nodiscard]] virtual double prompt_seconds() const { return 0; }
  // Returns the seconds that a request's first guess takes beside those of any guess: a draft model
  // computes the prompt then. 0: none, or nothing is known of them.
  [[nodiscard]] virtual double seconds_to_begin(const DraftQuery& /*query*/) const { return 0; }
  // Hears that a request has ended, however it did.
  virtual void forget(RequestId /*request*/) {}
  // Hears the output of a request that is done.
  virtual void learn(const DraftHistory& /*history*/) {}
};

}  // namespace quire::drafts
