// How requests come into the engine: checked, queued, and aborted.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/engine_thread.h"
#include "quire/engine/model_bundle.h"
#include "quire/engine/request_table.h"
#include "quire/engine/session_service.h"
#include "quire/engine/submission.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sampling/sampling_params.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

Status check_ids(std::span<const TokenId> ids, std::int32_t vocab_size, std::string_view what) {
  const auto bad = std::find_if(ids.begin(), ids.end(),
                                [vocab_size](TokenId id) { return id < 0 || id >= vocab_size; });
  if (bad == ids.end()) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(what, " holds token id ", *bad, ", but the vocabulary ends at ",
                        vocab_size - 1)};
}

}  // namespace

Status Engine::check_prompt(std::span<const TokenId> tokens) const {
  const std::int32_t context_length = model_config().context_length;
  if (tokens.empty()) {
    return {ErrorCode::kInvalidArgument, "the prompt is empty; give at least one token"};
  }
  QUIRE_TRY_STATUS(check_ids(tokens, model_config().vocab_size, "the prompt"));
  if (std::ssize(tokens) > context_length) {
    return {ErrorCode::kOverflow,
            base::str_cat("the prompt has ", tokens.size(), " tokens, the model's context ",
                          model_config().context_text(), "; shorten the prompt")};
  }
  return {};
}

Status Engine::check(const NewRequest& request) const {
  QUIRE_TRY_STATUS(check_prompt(request.prompt));
  return request.kind == RequestKind::kGenerate ? check(request.params) : Status();
}

Status Engine::check(const SamplingParams& params) const {
  const std::int32_t vocab_size = model_config().vocab_size;
  QUIRE_TRY_STATUS(sampling::check_params(params));
  if (params.n != 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("n is ", params.n,
                          ", and this call has one output; use generate, chat or "
                          "generate_from_chunks, or call once for each output")};
  }
  QUIRE_TRY_STATUS(check_ids(params.stop_token_ids, vocab_size, "stop_token_ids"));
  for (const auto& [id, bias] : params.logit_bias) {
    QUIRE_TRY_STATUS(check_ids({&id, 1}, vocab_size, "logit_bias"));
  }
  if (!params.stop.empty() && core_->bundle.text == nullptr) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("stop strings need a tokenizer: ", core_->bundle.text_error)};
  }
  return {};
}

Status Engine::prepare(NewRequest& request) const {
  QUIRE_CHECK(!request.composed, "compositions come from the chunk service");
  QUIRE_TRY_STATUS(check(request));
  QUIRE_TRY_STATUS(SessionService::check_user({.session = request.session,
                                               .salt = request.salt,
                                               .deadline_seconds = request.urgency.deadline_seconds,
                                               .tenant = request.urgency.tenant,
                                               .followers = request.followers}));
  // The KV of the last sampled token is never needed, so one more token than positions fits.
  const std::int64_t room =
      model_config().context_length - std::ssize(request.prompt) + std::int64_t{1};
  request.params.max_tokens =
      static_cast<std::int32_t>(request.kind == RequestKind::kGenerate
                                    ? std::min<std::int64_t>(request.params.max_tokens, room)
                                    : 0);
  return {};
}

Result<std::vector<std::shared_ptr<Channel>>> Engine::submit(std::vector<NewRequest> requests) {
  for (NewRequest& request : requests) {
    QUIRE_TRY_STATUS(prepare(request));
  }
  std::vector<std::shared_ptr<Channel>> channels;
  Status accepted;
  QUIRE_TRY_STATUS(
      thread_.call([&] { accepted = requests_->enqueue(std::move(requests), channels); }));
  QUIRE_TRY_STATUS(accepted);
  return channels;
}

Result<std::shared_ptr<Submission>> Engine::submit_later(NewRequest request) {
  QUIRE_TRY_STATUS(home_.check());
  QUIRE_TRY_STATUS(prepare(request));
  auto submission = std::make_shared<Submission>(request.notify);
  const auto enqueue_now = [this, submission,
                            kept =
                                std::make_shared<std::optional<NewRequest>>(std::move(request))] {
    std::optional<NewRequest> taken = std::exchange(*kept, std::nullopt);
    if (!taken) {
      return;  // the task comes again, for it was refused memory, and has answered so
    }
    if (submission->unwanted()) {
      submission->answer(Error{.code = ErrorCode::kCancelled, .message = "the stream was closed"});
      return;
    }
    std::vector<std::shared_ptr<Channel>> channels;
    try {
      std::vector<NewRequest> requests;
      requests.push_back(*std::move(taken));
      if (Status accepted = requests_->enqueue(std::move(requests), channels); !accepted.ok()) {
        submission->answer(std::move(accepted).error());
        return;
      }
    } catch (const std::bad_alloc&) {
      submission->answer(base::no_memory("the request"));
      throw;  // a request that was begun is given up
    }
    submission->answer(channels.front());
    if (submission->unwanted()) {  // since it was asked above
      requests_->abort(channels.front()->id());
    }
  };
  if (!thread_.post(enqueue_now)) {
    return closed_error();
  }
  return submission;
}

Result<bool> Engine::abort(RequestId id) {
  bool found = false;
  QUIRE_TRY_STATUS(thread_.call([&] { found = requests_->abort(id); }));
  return found;
}

void Engine::abort_surely(RequestId id) noexcept {
  base::do_surely([&]() -> Status {
    QUIRE_TRY([[maybe_unused]] const bool found, abort(id));
    return {};
  });
}

void Engine::abandon(RequestId id) noexcept {
  base::do_surely([&] {
    thread_.post([this, id] { requests_->abort(id); });  // a closed engine has ended it already
    return Status();
  });
}

}  // namespace quire::engine
