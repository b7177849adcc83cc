#include "quire/llm.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
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
#include "quire/chat.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/engine/llm_options.h"
#include "quire/engine/session_service.h"
#include "quire/interrupt.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/sampling.h"
#include "quire/text/work_limits.h"
#include "quire/types.h"

namespace quire {
namespace {

using engine::NewRequest;
using engine::RequestKind;

Error closed_error() {
  return {.code = ErrorCode::kClosed, .message = "the LLM is closed; open the model again"};
}

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

}  // namespace

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

namespace {

// Says how far the requests of the channels are, whose prompts have so many tokens.
void report(std::span<const std::shared_ptr<engine::Channel>> channels,
            std::span<const std::int64_t> tokens, const PromptProgress& progress) {
  std::int64_t done = 0;
  std::int64_t wanted = 0;
  for (std::size_t i = 0; i < channels.size(); ++i) {
    done += std::min(channels[i]->computed_tokens(), tokens[i]);
    wanted += tokens[i];
  }
  progress(done, wanted);
}

}  // namespace

Result<std::vector<GenerationOutput>> LLM::generate_batch(std::span<const Prompt> prompts,
                                                          std::span<const SamplingParams> params,
                                                          const Interrupt& interrupted,
                                                          std::span<const RequestOptions> options,
                                                          const PromptProgress& progress) try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  QUIRE_TRY_STATUS(check_counts(prompts.size(), params.size(), options.size(), "prompt"));
  std::vector<std::vector<TokenId>> ids;
  std::vector<std::int64_t> tokens;
  for (const Prompt& prompt : prompts) {
    QUIRE_TRY(ids.emplace_back(), prompt_ids(*engine, prompt, interrupted));
    tokens.push_back(std::ssize(ids.back()));
  }
  std::vector<std::shared_ptr<engine::Channel>> first;  // of each prompt, once all are submitted
  const auto submit = [&](std::span<const Choice> choices) {
    std::vector<NewRequest> requests;
    for (const Choice& choice : choices) {
      RequestOptions whose = options_of(options, choice.prompt);
      requests.push_back({.prompt = ids[choice.prompt],
                          .params = choice.params,
                          .session = std::move(whose.session),
                          .salt = std::move(whose.salt),
                          .streaming = choice.leads,
                          .explain = whose.explain && choice.index == 0});
    }
    auto channels = engine->submit(std::move(requests));
    if (channels.ok() && first.empty()) {
      first = *channels;
    }
    return channels;
  };
  if (!progress) {
    return run_choices(*engine, prompts.size(), params, submit, interrupted);
  }
  auto outputs = run_choices(*engine, prompts.size(), params, submit, [&] {
    report(first, tokens, progress);
    return interrupted && interrupted();
  });
  if (outputs.ok()) {
    report(first, tokens, progress);
  }
  return outputs;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Stream> LLM::stream(const Prompt& prompt, const SamplingParams& params,
                           const RequestOptions& options, const Interrupt& interrupted) try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  QUIRE_TRY(auto ids, prompt_ids(*engine, prompt, interrupted));
  std::vector<NewRequest> requests;
  requests.push_back({.prompt = std::move(ids),
                      .params = params,
                      .session = options.session,
                      .salt = options.salt,
                      .streaming = options.deltas,
                      .notify = options.notify,
                      .explain = options.explain});
  auto impl = std::make_unique<Stream::Impl>();
  impl->engine = engine;
  if (options.notify) {
    impl->waits = false;
    QUIRE_TRY(impl->submission, engine->submit_later(std::move(requests.front())));
  } else {
    QUIRE_TRY(const auto channels, engine->submit(std::move(requests)));
    impl->channel = channels.front();
  }
  return Stream(std::move(impl));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<GenerationOutput> LLM::chat(std::string_view messages_json, const SamplingParams& params,
                                   std::string_view variables_json,
                                   const RequestOptions& options) try {
  QUIRE_TRY(const auto tokens, tokenizer());
  QUIRE_TRY(auto ids, tokens.apply_chat_template(messages_json, true, variables_json));
  return generate(std::move(ids), params, options);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Stream> LLM::stream_chat(std::string_view messages_json, const SamplingParams& params,
                                std::string_view variables_json,
                                const RequestOptions& options) try {
  QUIRE_TRY(const auto tokens, tokenizer());
  QUIRE_TRY(auto ids, tokens.apply_chat_template(messages_json, true, variables_json));
  return stream(std::move(ids), params, options);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<GenerationOutput> LLM::chat(std::span<const ChatMessage> messages,
                                   const SamplingParams& params, std::string_view variables_json,
                                   const RequestOptions& options) {
  QUIRE_TRY(const std::string json, to_json(messages));
  return chat(json, params, variables_json, options);
}

Result<Stream> LLM::stream_chat(std::span<const ChatMessage> messages, const SamplingParams& params,
                                std::string_view variables_json, const RequestOptions& options) {
  QUIRE_TRY(const std::string json, to_json(messages));
  return stream_chat(json, params, variables_json, options);
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
       .salt = options.salt});
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

Result<std::int64_t> LLM::clear_prefix_cache() try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  return engine->clear_prefix_cache();
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status LLM::pause_session(const std::string& session, std::optional<double> expected_return_seconds,
                          const std::string& salt) try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  return engine->sessions().pause(session, salt, expected_return_seconds);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status LLM::close_session(const std::string& session, const std::string& salt) try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  return engine->sessions().close(session, salt);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status LLM::set_retention(const std::string& session, const SessionRetention& retention,
                          const std::string& salt) try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  return engine->sessions().set_retention(session, salt, retention);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<ReusePart>> LLM::explain(const Prompt& prompt,
                                            const RequestOptions& options) const try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  QUIRE_TRY(const std::vector<TokenId> ids, prompt_ids(*engine, prompt, {}));
  QUIRE_TRY_STATUS(engine::SessionService::check_user({.salt = options.salt}));
  return engine->explain(ids, options.salt);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<CachedPart>> LLM::explain_across_salts(const Prompt& prompt) const try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  QUIRE_TRY(const std::vector<TokenId> ids, prompt_ids(*engine, prompt, {}));
  QUIRE_TRY(const std::vector<std::int32_t> lengths, engine->cached_prefixes(ids));
  std::vector<CachedPart> parts;
  std::int64_t position = 0;
  for (std::size_t left = lengths.size(); left > 0; --left) {  // the shortest first
    if (const std::int64_t end = lengths[left - 1]; end > position) {
      parts.push_back({.position = position,
                       .tokens = end - position,
                       .num_salts = static_cast<std::int64_t>(left)});
      position = end;
    }
  }
  if (position < std::ssize(ids)) {
    parts.push_back({.position = position, .tokens = std::ssize(ids) - position});
  }
  return parts;
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
