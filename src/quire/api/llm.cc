#include "quire/llm.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/api/await.h"
#include "quire/api/choices.h"
#include "quire/api/llm_impl.h"
#include "quire/api/stream_impl.h"
#include "quire/api/tokenizer_impl.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/base/work_meter.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine.h"
#include "quire/engine/llm_options.h"
#include "quire/interrupt.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/sampling.h"
#include "quire/text/work_limits.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire {
namespace {

using engine::NewRequest;
using engine::RequestKind;

Error closed_error() {
  return {.code = ErrorCode::kClosed, .message = "the LLM is closed; open the model again"};
}

}  // namespace

Result<std::vector<TokenId>> prompt_ids(const engine::Engine& engine, const Prompt& prompt,
                                        const Interrupt& interrupted) {
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
    return *ids;
  }
  if (engine.text() == nullptr) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("a text prompt needs a tokenizer: ", engine.text_error())};
  }
  base::WorkMeter meter(text::kWorkOfCall, interrupted);
  return engine.text()->tokenizer.encode(std::get<std::string>(prompt), {.meter = &meter});
}

Result<std::shared_ptr<runtime::Runtime>> LLM::Impl::open() const try {
  QUIRE_TRY_STATUS(home.check());
  const std::lock_guard lock(mutex);
  if (runtime == nullptr) {
    return closed_error();
  }
  return runtime;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::shared_ptr<engine::Engine>> LLM::Impl::open_engine() const {
  QUIRE_TRY(const auto opened, open());
  return engine_of(opened);
}

LLM::LLM(std::shared_ptr<Impl> impl, bool closes) : impl_(std::move(impl)), closes_(closes) {}
LLM::LLM(LLM&&) noexcept = default;
LLM& LLM::operator=(LLM&& other) noexcept {
  if (this != &other) {
    if (closes_) {
      close();
    }
    impl_ = std::move(other.impl_);
    closes_ = other.closes_;
  }
  return *this;
}
LLM::~LLM() {
  if (closes_) {
    close();
  }
}

Result<LLM> LLM::open(const std::string& model, const LLMOptions& options) try {
  QUIRE_TRY_STATUS(options.validate());
  QUIRE_TRY(auto runtime, runtime::Runtime::start(model, engine::to_engine_options(options)));
  auto impl = std::make_shared<Impl>();
  impl->runtime = std::move(runtime);
  return LLM(std::move(impl));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

void LLM::close() {
  if (impl_ == nullptr || impl_->home.left()) {
    return;
  }
  std::shared_ptr<runtime::Runtime> runtime;
  {
    const std::lock_guard lock(impl_->mutex);
    runtime.swap(impl_->runtime);
  }
  if (runtime != nullptr) {
    runtime->close();
  }
}

Result<GenerationOutput> LLM::generate(const Prompt& prompt, const SamplingParams& params,
                                       const RequestOptions& options) try {
  QUIRE_TRY(auto outputs, generate_batch({&prompt, 1}, {&params, 1}, {}, {&options, 1}));
  return std::move(outputs.front());
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status check_counts(std::size_t requests, std::size_t params, std::size_t options,
                    std::string_view what) {
  if (params != 1 && params != requests) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(params, " sampling params for ", requests, " ", what,
                          "s; give one, or one per ", what)};
  }
  if (options > 1 && options != requests) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(options, " request options for ", requests, " ", what,
                          "s; give none, one, or one per ", what)};
  }
  return {};
}

RequestOptions options_of(std::span<const RequestOptions> options, std::size_t index) {
  return options.empty() ? RequestOptions() : options[options.size() == 1 ? 0 : index];
}

Result<std::vector<GenerationOutput>> LLM::generate_batch(std::span<const Prompt> prompts,
                                                          std::span<const SamplingParams> params,
                                                          const Interrupt& interrupted,
                                                          std::span<const RequestOptions> options,
                                                          const PromptProgress& progress) try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  QUIRE_TRY_STATUS(check_counts(prompts.size(), params.size(), options.size(), "prompt"));
  std::vector<std::vector<TokenId>> ids;
  for (const Prompt& prompt : prompts) {
    QUIRE_TRY(ids.emplace_back(), prompt_ids(*engine, prompt, interrupted));
  }
  if (progress || asks_for_choices(params)) {
    return generate_choices(*engine, ids, params, options, interrupted, progress);
  }
  std::vector<NewRequest> requests;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    RequestOptions whose = options_of(options, i);
    requests.push_back({.prompt = std::move(ids[i]),
                        .params = params[params.size() == 1 ? 0 : i],
                        .session = std::move(whose.session),
                        .salt = std::move(whose.salt),
                        .explain = whose.explain,
                        .urgency = engine::urgency_of(whose)});
  }
  QUIRE_TRY(const auto channels, engine->submit(std::move(requests)));
  return await_outputs(*engine, channels, interrupted);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::unique_ptr<Stream::Impl>> start_stream(const std::shared_ptr<engine::Engine>& engine,
                                                   std::vector<TokenId> ids,
                                                   const SamplingParams& params,
                                                   const RequestOptions& options) {
  std::vector<NewRequest> requests;
  requests.push_back({.prompt = std::move(ids),
                      .params = params,
                      .session = options.session,
                      .salt = options.salt,
                      .streaming = options.deltas,
                      .notify = options.notify,
                      .explain = options.explain,
                      .urgency = engine::urgency_of(options),
                      .followers = options.followers,
                      .follows = options.follows});
  auto impl = std::make_unique<Stream::Impl>();
  impl->engine = engine;
  if (options.notify) {
    impl->waits = false;
    QUIRE_TRY(impl->submission, engine->submit_later(std::move(requests.front())));
  } else {
    QUIRE_TRY(const auto channels, engine->submit(std::move(requests)));
    impl->channel = channels.front();
  }
  return impl;
}

Result<Stream> LLM::stream(const Prompt& prompt, const SamplingParams& params,
                           const RequestOptions& options, const Interrupt& interrupted) try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  QUIRE_TRY(auto ids, prompt_ids(*engine, prompt, interrupted));
  QUIRE_TRY(auto started, start_stream(engine, std::move(ids), params, options));
  return Stream(std::move(started));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<ForwardOutput> LLM::forward(std::span<const TokenId> token_ids, ForwardReuse reuse,
                                   ForwardRows rows, const Interrupt& interrupted,
                                   const RequestOptions& options) try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  std::vector<NewRequest> requests;
  requests.push_back(
      {.kind = rows == ForwardRows::kAll ? RequestKind::kForwardAll : RequestKind::kForwardLast,
       .prompt = {token_ids.begin(), token_ids.end()},
       .reuse = reuse == ForwardReuse::kExact,
       .session = options.session,
       .salt = options.salt,
       .urgency = engine::urgency_of(options)});
  QUIRE_TRY(const auto channels, engine->submit(std::move(requests)));
  QUIRE_TRY_STATUS(await(*engine, channels, interrupted));
  return channels.front()->take_forward();
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Tokenizer> LLM::tokenizer() const try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  if (engine->text() == nullptr) {
    return {ErrorCode::kUnsupported, engine->text_error()};
  }
  return wrap_tokenizer(engine->text());
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<std::string>> LLM::remarks() const try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  return engine->bundle().remarks;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<bool> LLM::abort(RequestId request) try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  return engine->abort(request);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

}  // namespace quire
