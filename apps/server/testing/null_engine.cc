#include "testing/null_engine.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine.h"
#include "loop.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::server {
namespace {

class NullGeneration final : public Generation {
 public:
  NullGeneration(NullEngine& engine, Loop& loop, GenerationRequest request,
                 std::function<void()> notify)
      : engine_(engine), loop_(loop), request_(std::move(request)), notify_(std::move(notify)) {
    ++engine_.running;
    if (const auto* const ids = std::get_if<std::vector<TokenId>>(&request_.prompt)) {
      output_.prompt_token_ids = *ids;
    }
    output_.usage.prompt_tokens = static_cast<std::int64_t>(output_.prompt_token_ids.size());
    failure_ = std::exchange(engine_.failure, {});
    fail_after_ = engine_.fail_after;
  }
  ~NullGeneration() override { stop(); }

  void step() {
    timer_ = loop_.after(engine_.step_time, [this] {
      if (engine_.stuck) {
        return;
      }
      ++made_;
      notify_();
      if (made_ < limit()) {
        step();
      }
    });
  }
  [[nodiscard]] bool ready() override { return !ended_ && (taken_ < made_ || limit() == 0); }
  [[nodiscard]] Result<std::optional<Delta>> next() override {
    if (failure_ && taken_ >= fail_after_) {
      Error failure = *failure_;
      stop();
      return failure;
    }
    Delta delta;
    while (taken_ < std::min<std::int64_t>(made_, limit())) {
      const TokenId id = engine_.script.empty() ? static_cast<TokenId>(10 + taken_)
                                                : engine_.script[static_cast<std::size_t>(taken_)];
      delta.text +=
          engine_.script.empty()
              ? " " + std::to_string(taken_)
              : engine_.script_text(taken_ + 1).substr(output_.text.size() + delta.text.size());
      delta.token_ids.push_back(id);
      if (request_.sampling.logprobs) {
        delta.logprobs.push_back({{id, -0.5F}});
      }
      ++taken_;
    }
    output_.text += delta.text;
    output_.token_ids.insert(output_.token_ids.end(), delta.token_ids.begin(),
                             delta.token_ids.end());
    output_.logprobs.insert(output_.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    if (taken_ >= limit()) {
      delta.finished = true;
      delta.finish_reason = output_.finish_reason =
          taken_ < request_.sampling.max_tokens ? FinishReason::kStop : FinishReason::kLength;
      output_.usage.completion_tokens = taken_;
      stop();
    }
    return std::optional(std::move(delta));
  }
  [[nodiscard]] const GenerationOutput& output() const override { return output_; }
  [[nodiscard]] std::int64_t computed_tokens() const override {
    return made_ > 0 ? output_.usage.prompt_tokens + made_ : engine_.computed;
  }
  void abort() override { stop(); }

 private:
  [[nodiscard]] std::int64_t limit() const {
    const std::int64_t most = request_.sampling.max_tokens;
    return engine_.script.empty() ? most : std::min(most, std::ssize(engine_.script));
  }
  void stop() {
    if (!std::exchange(ended_, true)) {
      --engine_.running;
      loop_.cancel(timer_);
    }
  }

  NullEngine& engine_;
  Loop& loop_;
  GenerationRequest request_;
  std::function<void()> notify_;
  GenerationOutput output_;
  std::optional<Error> failure_;
  std::int64_t fail_after_ = 0;
  std::int64_t made_ = 0, taken_ = 0;
  Loop::Timer timer_ = 0;
  bool ended_ = false;
};

}  // namespace

Result<std::unique_ptr<Generation>> NullEngine::start(GenerationRequest request,
                                                      std::function<void()> notify) {
  ++started;
  requests.push_back(request);
  auto generation =
      std::make_unique<NullGeneration>(*this, loop_, std::move(request), std::move(notify));
  generation->step();
  return std::unique_ptr<Generation>(std::move(generation));
}

}  // namespace quire::server
