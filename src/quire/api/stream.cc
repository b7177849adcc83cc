#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "quire/answer.h"
#include "quire/api/stream_impl.h"
#include "quire/base/check.h"
#include "quire/base/no_memory.h"
#include "quire/chat.h"
#include "quire/engine/engine.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {
Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&& other) noexcept {
  if (this != &other) {
    close();
    impl_ = std::move(other.impl_);
  }
  return *this;
}
Stream::~Stream() { close(); }

bool Stream::Impl::arrived(int timeout_ms) {
  if (channel != nullptr || refusal) {
    return true;
  }
  auto answer = submission->take(timeout_ms);
  if (!answer) {
    return false;
  }
  if (answer->ok()) {
    channel = std::move(*answer).value();
  } else {
    refusal = std::move(*answer).error();
  }
  return true;
}

// Without deltas the output is split at once.
Status Stream::Impl::split(std::optional<Delta>& delta) {
  if (!parser) {
    return {};
  }
  if (!delta) {
    if (output) {
      const Delta whole{.text = output->text, .token_ids = output->token_ids, .finished = true};
      QUIRE_TRY(output->answer, parser->take(whole));
    }
    return {};
  }
  QUIRE_TRY(AnswerParts parts, parser->take(*delta));
  answer.thinking += parts.thinking;
  answer.content += parts.content;
  answer.thinking_tokens += parts.thinking_tokens;
  answer.tool_calls.insert(answer.tool_calls.end(), parts.tool_calls.begin(),
                           parts.tool_calls.end());
  delta->answer = std::move(parts);
  if (output) {
    output->answer = std::move(answer);
  }
  return {};
}

RequestId Stream::request_id() const {
  const bool taken = !impl_->engine->home().left() && impl_->arrived(-1) && !impl_->refusal;
  return taken ? impl_->channel->id() : RequestId{};
}

std::int64_t Stream::computed_tokens() const {
  const bool taken = !impl_->engine->home().left() && impl_->arrived(0) && !impl_->refusal;
  return taken ? impl_->channel->computed_tokens() : 0;
}

bool Stream::wait(int timeout_ms) {
  if (impl_->ended || impl_->engine->home().left()) {
    return true;
  }
  const auto start = std::chrono::steady_clock::now();
  if (!impl_->arrived(timeout_ms)) {
    return false;
  }
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - start);
  const int left = timeout_ms - static_cast<int>(waited.count());
  return impl_->refusal || impl_->channel->wait(timeout_ms < 0 ? timeout_ms : std::max(left, 0));
}

Result<std::optional<Delta>> Stream::next() try {
  if (impl_->ended) {
    return std::optional<Delta>();
  }
  QUIRE_TRY_STATUS(impl_->engine->home().check());
  QUIRE_TRY_STATUS(impl_->engine->thread().check_outside());
  [[maybe_unused]] const bool arrived = impl_->arrived(-1);
  if (const std::optional<Error>& refusal = impl_->refusal; refusal.has_value()) {
    impl_->ended = true;
    return *refusal;
  }
  auto delta = impl_->channel->next();
  if (!delta.ok()) {
    impl_->ended = true;
    return delta;
  }
  const std::optional<Delta>& given = *delta;
  if (!given.has_value() || given->finished) {
    impl_->ended = true;
    QUIRE_TRY(impl_->output, impl_->channel->take_generation());
  }
  QUIRE_TRY_STATUS(impl_->split(*delta));
  return delta;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

bool Stream::finished() const { return impl_->output.has_value(); }

const GenerationOutput& Stream::output() const {
  const std::optional<GenerationOutput>& output = impl_->output;
  QUIRE_CHECK(output.has_value(), "the stream has not finished; ask finished() first");
  return *output;
}

void Stream::close() {
  if (impl_ == nullptr || impl_->ended) {
    return;
  }
  impl_->ended = true;
  engine::Engine& engine = *impl_->engine;
  // A closed engine has ended the request already.
  if (impl_->waits) {
    engine.abort_surely(impl_->channel->id());
    return;
  }
  if (impl_->submission != nullptr) {
    impl_->submission->give_up();
  }
  if (!engine.home().left() && impl_->arrived(0) && !impl_->refusal) {
    engine.abandon(impl_->channel->id());
  }
}

}  // namespace quire
