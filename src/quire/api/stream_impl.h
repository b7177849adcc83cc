// The members of a Stream.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "quire/answer.h"
#include "quire/chat.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/engine/submission.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire {

struct Stream::Impl {
  std::shared_ptr<engine::Engine> engine;
  std::shared_ptr<engine::Channel> channel;  // null until the engine has taken the request
  std::shared_ptr<engine::Submission>
      submission;  // submission of a request that is not waited for, else null
  std::optional<Error> refusal;
  std::optional<GenerationOutput> output;
  std::optional<AnswerParser> parser;  // of a chat
  AnswerParts answer;                  // the parts of all deltas so far
  bool waits = true;                   // close() does, until the blocks are free
  bool ended = false;

  // Waits at most `timeout_ms` (negative: for ever) until the request was taken or refused.
  [[nodiscard]] bool arrived(int timeout_ms);
  // Gives a delta of a chat its parts, and at the end the output those of all deltas.
  [[nodiscard]] Status split(std::optional<Delta>& delta);
};

// Starts a request and returns the members of its stream. Errors: those of LLM::stream.
[[nodiscard]] Result<std::unique_ptr<Stream::Impl>> start_stream(
    const std::shared_ptr<engine::Engine>& engine, std::vector<TokenId> ids,
    const SamplingParams& params, const RequestOptions& options);

}  // namespace quire
