// Channel: one request's results on their way from the engine thread to the thread that asked.
//
// Thread rule: the engine thread writes, any one thread reads; everything is locked.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {

// Bytes to reserve for each token: text is rarely longer.
inline constexpr std::size_t kTextBytesPerToken = 16;

// A delta on its way, borrowed for the call.
struct DeltaView {
  std::string_view text;
  std::span<const TokenId> token_ids;
  std::span<const TokenLogprobs> logprobs;
  bool finished = false;
  FinishReason finish_reason = FinishReason::kStop;
};

class Channel {
 public:
  // Makes the channel of a request that samples with `seed`. Without `streaming` there are no
  // deltas, only the end. Until `room_tokens` tokens wait to be taken, a push allocates nothing.
  // The engine's thread calls `notify` behind every push and the end; it may be empty.
  Channel(RequestId id, std::uint64_t seed, bool streaming, std::size_t room_tokens,
          std::function<void()> notify = {});

  [[nodiscard]] RequestId id() const { return id_; }
  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  [[nodiscard]] bool streaming() const { return streaming_; }

  // Adds a delta. Engine side. The first of finish and fail ends the request; what comes later is
  // ignored.
  void push(const DeltaView& delta);
  void finish(GenerationOutput output);
  void finish(ForwardOutput output);
  void fail(Error error);
  // Notes how many of the sequence's own tokens have KV. A token that a step computes counts as the
  // share of the layers that are done.
  void note_computed(std::int64_t tokens) { computed_tokens_ = tokens; }

  // Waits at most `timeout_ms` (negative: for ever). Returns true when a delta or the end is there.
  // Caller side.
  [[nodiscard]] bool wait(int timeout_ms);
  // Waits at most `timeout_ms` for the end of the request.
  [[nodiscard]] bool wait_end(int timeout_ms);
  // Returns the next delta, waiting for it, or nullopt once the request has ended and all were
  // taken.
  [[nodiscard]] Result<std::optional<Delta>> next();
  // Returns the error with which the request has ended. Ok also while it runs.
  [[nodiscard]] Status failure();
  // Waits for the end.
  [[nodiscard]] Result<GenerationOutput> take_generation();
  [[nodiscard]] Result<ForwardOutput> take_forward();
  // Returns the cached tokens of a request that has ended, its output taken or not. 0 of one that
  // has failed.
  [[nodiscard]] std::int64_t cached_tokens();
  [[nodiscard]] std::int64_t computed_tokens() const { return computed_tokens_; }

 private:
  // The ends of a delta's parts among the parts of all waiting deltas.
  struct Ends {
    std::size_t text = 0, token_ids = 0, logprobs = 0;
  };
  [[nodiscard]] bool ready() const { return next_ < ends_.size() || ended_; }
  [[nodiscard]] Delta take_delta();
  void end(std::unique_lock<std::mutex>& lock);
  void tell();
  template <class Condition>
  [[nodiscard]] bool wait_until(int timeout_ms, Condition condition);

  const RequestId id_;
  const std::uint64_t seed_;
  const bool streaming_;
  const std::function<void()> notify_;
  std::atomic<std::int64_t> computed_tokens_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Ends> ends_;  // [deltas]
  std::size_t next_ = 0;    // index of the next delta to be taken
  Delta parts_;             // parts of all deltas, joined; finished as the last one
  bool ended_ = false;
  std::optional<Error> error_;
  GenerationOutput generation_;
  ForwardOutput forward_;
};

}  // namespace quire::engine
