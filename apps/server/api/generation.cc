#include "api/generation.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <ratio>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "api/admission.h"
#include "api/bell.h"
#include "api/call.h"
#include "api/errors.h"
#include "api/holds.h"
#include "api/metrics.h"
#include "api/stall.h"
#include "engine.h"
#include "keys.h"
#include "loop.h"
#include "message.h"
#include "objects/objects.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::server {
namespace {

ApiError too_long(std::string path, std::int64_t tokens, std::int64_t limit, bool of_tenant) {
  ApiError error = invalid(
      std::move(path), "the prompt has " + std::to_string(tokens) +
                           " tokens, and the maximum context length is " + std::to_string(limit) +
                           " tokens" + (of_tenant ? " (max_prompt_tokens of this tenant)" : ""));
  error.code = "context_length_exceeded";
  error.cause = ErrorCode::kOverflow;
  error.prompt_tokens = tokens;
  error.context_tokens = limit;
  return error;
}

Check check_length(const PromptPlan& prompt, const TenantLimits& limits, std::int64_t context) {
  if (prompt.tokens >= context) {
    return too_long(prompt.path, prompt.tokens, context, false);
  }
  if (limits.max_prompt_tokens && prompt.tokens > *limits.max_prompt_tokens) {
    return too_long(prompt.path, prompt.tokens, *limits.max_prompt_tokens, true);
  }
  return passed();
}

bool is_composition(const PromptPlan& prompt) {
  return std::holds_alternative<CompositionSpec>(prompt.prompt);
}

// Appends `from` to `sources`, adding the numbers of equal sources.
void add_sources(ReuseReport& sum, const ReuseReport& more) {
  sum.grade = std::max(sum.grade, more.grade);
  sum.recompute_share = std::max(sum.recompute_share, more.recompute_share);
  for (const auto& [source, tokens] : more.sources) {
    const auto known =
        std::ranges::find(sum.sources, source, &std::pair<std::string, std::int64_t>::first);
    if (known != sum.sources.end()) {
      known->second += tokens;
    } else {
      sum.sources.emplace_back(source, tokens);
    }
  }
}

// Returns the tokens that were computed before the first token came.
std::int64_t computed_of(const GenerationOutput& output, bool composition) {
  std::int64_t computed = 0;
  if (composition) {
    for (const auto& [source, tokens] : output.reuse.sources) {
      computed += source.starts_with("computed") ? tokens : 0;
    }
  }
  return computed + output.usage.prompt_tokens - output.usage.cached_tokens;
}

}  // namespace

double milliseconds_between(Loop::Clock::time_point from, Loop::Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

GenerationRun::GenerationRun(Services& services, CallPtr call, GenerationPlan plan,
                             std::unique_ptr<Renderer> renderer)
    : services_(services),
      call_(std::move(call)),
      plan_(std::move(plan)),
      renderer_(std::move(renderer)),
      id_(new_id("gen_")) {
  for (std::size_t i = 0; i < plan_.prompts.size(); ++i) {
    for (std::int32_t number = 0; number < plan_.prompts[i].choices; ++number) {
      choices_.push_back({.prompt = i, .number = number});
    }
  }
  left_ = choices_.size();
}

GenerationRun::~GenerationRun() = default;

void GenerationRun::start(Services& services, CallPtr call, GenerationPlan plan,
                          std::unique_ptr<Renderer> renderer) {
  const auto run = std::make_shared<GenerationRun>(services, std::move(call), std::move(plan),
                                                   std::move(renderer));
  if (run->call_->gone) {
    return;
  }
  if (Check check = run->check_and_admit(); !check.ok()) {
    send_error(services, *run->call_, std::move(check).error());
    return;
  }
  run->begin();
}

Check GenerationRun::check_and_admit() {
  const TenantLimits& limits = call_->caller->limits;
  const std::int64_t context = services_.engine->facts().context_tokens;
  AdmissionRequest wanted{.generations = static_cast<std::int64_t>(choices_.size())};
  for (PromptPlan& prompt : plan_.prompts) {
    QUIRE_TRY_STATUS(check_length(prompt, limits, context));
    wanted.prompt_tokens += prompt.tokens;
    wanted.completion_tokens += std::int64_t{prompt.sampling.max_tokens} * prompt.choices;
    if (const Status status = prompt.sampling.validate(); !status.ok()) {
      return api_error(status.error());
    }
  }
  if (services_.draining) {
    return refusal(503, "draining", "the server is shutting down");
  }
  QUIRE_TRY(ticket_, services_.admission->enter(*services_.config, *call_->caller, wanted));
  return passed();
}

void GenerationRun::begin() {
  const auto self = shared_from_this();
  services_.runs.emplace(id_, self);
  const std::weak_ptr<GenerationRun> weak = self;
  bell_ = std::make_shared<Bell>(services_.loop, *services_.rounds, [weak] {
    const auto run = weak.lock();
    return run != nullptr && run->look();
  });
  double limit_ms = services_.config->request_timeout_seconds * 1000;
  if (const auto own = plan_.extension.deadline_ms) {
    limit_ms =
        limit_ms > 0 ? std::min(limit_ms, static_cast<double>(*own)) : static_cast<double>(*own);
  }
  if (limit_ms > 0) {
    const double left = limit_ms - milliseconds_between(call_->arrived, services_.loop.now());
    deadline_ = services_.loop.after(
        std::chrono::milliseconds(std::max<std::int64_t>(static_cast<std::int64_t>(left), 0)),
        [weak, limit_ms] {
          if (const auto run = weak.lock()) {
            ApiError error =
                refusal(504, "deadline_exceeded",
                        "the request has not ended within " +
                            std::to_string(static_cast<std::int64_t>(limit_ms)) + " ms");
            run->deadline_ = 0;
            run->fail(std::move(error));
          }
        });
  }
  call_->answer->on_gone([weak](Gone why) {
    if (const auto run = weak.lock()) {
      run->gone(why);
    }
  });
  if (over_) {
    return;
  }
  if (plan_.stream) {
    StreamHead head{.ping = renderer_->ping()};
    head.head.content_type = "text/event-stream";
    head.head.headers = success_headers(services_, *call_);
    head.head.headers.push_back({"x-accel-buffering", "no"});
    call_->answer->begin(std::move(head));
    call_->answer->on_writable([weak] {
      if (const auto run = weak.lock()) {
        run->pump();
      }
    });
  }
  for (std::size_t i = 0; i < choices_.size() && !over_; ++i) {
    if (choices_[i].number == 0) {
      ask(i);
    }
  }
}

void GenerationRun::ask(std::size_t index) {
  ChoiceState& choice = choices_[index];
  choice.asked = true;
  const PromptPlan& plan = plan_.prompts[choice.prompt];
  GenerationRequest request{
      .prompt = plan.prompt, .sampling = plan.sampling, .options = plan.options};
  request.options.explain = choice.number == 0;  // for counters and /v1/requests, too
  request.options.priority = plan.priority.value_or(plan_.extension.priority);
  request.options.tenant = call_->caller->tenant;
  if (request.sampling.seed) {
    *request.sampling.seed += static_cast<std::uint64_t>(choice.number);
  }
  ask_engine(index, std::move(request), [bell = bell_] { bell->ring(); });
}

// Starts a prompt of ids at once. A composition may wait for KV, so a worker starts it.
void GenerationRun::ask_engine(std::size_t index, GenerationRequest request,
                               std::function<void()> notify) {
  const PromptPlan& plan = plan_.prompts[choices_[index].prompt];
  if (!plan.starter && !plan.prepare && !is_composition(plan)) {
    asked(index, services_.engine->start(std::move(request), std::move(notify)));
    return;
  }
  request.interrupted = Call::interrupt(call_);
  using Started = Result<std::unique_ptr<Generation>>;
  services_.loop.work([self = shared_from_this(), index, request = std::move(request),
                       notify = std::move(notify)]() mutable {
    const PromptPlan& prompt = self->plan_.prompts[self->choices_[index].prompt];
    request.options.notify = notify;
    const bool first = self->choices_[index].number == 0;
    const Status ready = prompt.prepare && first ? prompt.prepare() : Status();
    auto started = std::make_shared<Started>(
        !ready.ok()      ? Started(ready.error())
        : prompt.starter ? prompt.starter(request.sampling, request.options)
                         : self->services_.engine->start(std::move(request), std::move(notify)));
    Services& services = self->services_;
    services.loop.post(
        [self = std::move(self), index, started] { self->asked(index, std::move(*started)); });
  });
}

void GenerationRun::asked(std::size_t index, Result<std::unique_ptr<Generation>> generation) {
  if (over_) {
    return;
  }
  if (!generation.ok()) {
    fail(api_error(generation.error(), ""));
    return;
  }
  choices_[index].generation = std::move(generation).value();
  bell_->ring();
}

void GenerationRun::ask_others(std::size_t prompt) {
  for (std::size_t i = 0; i < choices_.size() && !over_; ++i) {
    if (choices_[i].prompt == prompt && !choices_[i].asked) {
      ask(i);
    }
  }
}

bool GenerationRun::look() {
  const std::int64_t before = generated_;
  pump();
  return generated_ > before && !over_;
}

void GenerationRun::pump() {
  if (over_) {
    return;
  }
  const auto self = shared_from_this();
  std::string out;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    // The engine keeps the text that a slow reader does not take, and sends it later as one delta.
    if (plan_.stream && !call_->answer->writable()) {
      break;
    }
    if (!pump_choice(i, out)) {
      return;
    }
  }
  if (left_ == 0) {
    complete(out);
    return;
  }
  if (!out.empty()) {
    call_->answer->write(std::move(out));
  }
}

bool GenerationRun::pump_choice(std::size_t index, std::string& out) {
  ChoiceState& choice = choices_[index];
  Delta joined;
  bool any = false;
  while (choice.generation != nullptr && !choice.done && choice.generation->ready()) {
    auto next = choice.generation->next();
    if (!next.ok()) {
      if (try_again(index, next.error())) {
        return true;
      }
      if (!out.empty()) {
        call_->answer->write(std::move(out));
      }
      fail(api_error(next.error()));
      return false;
    }
    const bool last = !next->has_value() || (*next)->finished;
    if (next->has_value()) {
      Delta& delta = **next;
      note_delta(delta);
      any = true;
      joined.text += delta.text;
      joined.token_ids.insert(joined.token_ids.end(), delta.token_ids.begin(),
                              delta.token_ids.end());
      std::ranges::move(delta.logprobs, std::back_inserter(joined.logprobs));
    }
    if (last) {
      choice.done = true;
    }
  }
  if (any && plan_.stream) {
    renderer_->delta(out, index, joined);
  }
  if (choice.done && choice.generation != nullptr) {
    take_end(index, out);
  }
  if ((any || choice.done) && choice.number == 0) {
    ask_others(choice.prompt);
  }
  return !over_;
}

void GenerationRun::note_delta(const Delta& delta) {
  const auto count = static_cast<std::int64_t>(delta.token_ids.size());
  if (count == 0) {
    return;
  }
  const auto now = services_.loop.now();
  if (last_token_ && choices_.size() == 1) {
    services_.metrics->observe_gap(milliseconds_between(*last_token_, now) / 1000, count);
  }
  last_token_ = now;
  services_.stall->note_step();
  generated_ += count;
  if (!began_) {
    began_ = true;
    ticket_->began();
  }
}

void GenerationRun::take_end(std::size_t index, std::string& out) {
  ChoiceState& choice = choices_[index];
  choice.output = choice.generation->output();
  choice.generation.reset();
  choice.parts = choice.output.parts;
  if (!plan_.extension.explain) {
    choice.output.parts.clear();
  }
  --left_;
  if (choice.output.finish_reason == FinishReason::kCancelled) {
    if (!out.empty()) {
      call_->answer->write(std::move(out));
    }
    fail(api_error({ErrorCode::kCancelled, "the request was aborted"}));
    return;
  }
  if (plan_.stream) {
    if (left_ == 0) {
      const RunReport last = report();
      renderer_->finish(out, index, choice.output, &last);
    } else {
      renderer_->finish(out, index, choice.output, nullptr);
    }
  }
}

RunReport GenerationRun::report() const {
  RunReport report{.request_id = call_->request->id};
  bool first = true;
  for (const ChoiceState& choice : choices_) {
    const GenerationOutput& output = choice.output;
    report.usage.completion_tokens += output.usage.completion_tokens;
    report.usage.drafted_tokens += output.usage.drafted_tokens;
    report.usage.accepted_tokens += output.usage.accepted_tokens;
    if (choice.number != 0) {
      continue;
    }
    report.usage.prompt_tokens += output.usage.prompt_tokens;
    report.usage.cached_tokens += output.usage.cached_tokens;
    report.cache_write_tokens += std::max<std::int64_t>(
        held_tokens(plan_.prompts[choice.prompt]) - output.usage.cached_tokens, 0);
    report.computed_tokens += computed_of(output, is_composition(plan_.prompts[choice.prompt]));
    add_sources(report.reuse, output.reuse);
    const double queue_ms = output.timing.queue_seconds * 1000;
    const double token_ms = output.timing.first_token_seconds * 1000;
    report.queue_ms = first ? queue_ms : std::min(report.queue_ms, queue_ms);
    report.first_token_ms = first ? token_ms : std::min(report.first_token_ms, token_ms);
    first = false;
  }
  if (plan_.extension.explain) {
    report.parts = choices_.front().output.parts;
  }
  report.total_ms = milliseconds_between(call_->arrived, services_.loop.now());
  return report;
}

RunState GenerationRun::state() const {
  if (over_) {
    return RunState::kDone;
  }
  if (began_) {
    return RunState::kDecode;
  }
  const bool computes = std::ranges::any_of(choices_, [](const ChoiceState& choice) {
    return choice.generation != nullptr && choice.generation->computed_tokens() > 0;
  });
  return computes ? RunState::kPrefill : RunState::kQueued;
}

void GenerationRun::complete(std::string& out) {
  const RunReport report = this->report();
  over_ = true;
  note_facts(report);
  services_.objects->run_ended(*this, &report, "");
  let_go();
  if (plan_.stream) {
    renderer_->end(out, report);
    call_->answer->write(std::move(out));
    call_->answer->end();
  } else {
    Response response{.headers = success_headers(services_, *call_)};
    response.headers.push_back({"x-quire-grade", reuse_grade_name(report.reuse.grade)});
    response.headers.push_back(
        {"x-quire-cached-tokens", std::to_string(report.usage.cached_tokens)});
    response.body = json::serialize(renderer_->body(choices_, report));
    call_->answer->send(std::move(response));
  }
  ticket_->used(report.usage.prompt_tokens + report.usage.completion_tokens);
  after();
  leave();
}

void GenerationRun::note_facts(const RunReport& report) {
  AnswerFacts& facts = call_->answer->facts();
  facts.model = services_.names.front();
  facts.prompt_tokens = report.usage.prompt_tokens;
  facts.cached_tokens = report.usage.cached_tokens;
  facts.completion_tokens = report.usage.completion_tokens;
  facts.grade = reuse_grade_name(report.reuse.grade);
  facts.queue_ms = report.queue_ms;
  facts.first_token_ms = report.first_token_ms;
  facts.finish_reason = finish_reason_name(choices_.front().output.finish_reason);
  services_.metrics->observe_run(plan_, choices_, report);
}

// Returns the tokens of a prompt that are to be held.
std::int64_t GenerationRun::held_tokens(const PromptPlan& prompt) const {
  if (!plan_.extension.hold_seconds ||
      !std::holds_alternative<std::vector<TokenId>>(prompt.prompt) || prompt.starter) {
    return 0;
  }
  return holdable_tokens(
      std::min(prompt.tokens, prompt.hold_tokens ? *prompt.hold_tokens + 1 : prompt.tokens),
      services_.engine->facts().block_tokens);
}

void GenerationRun::hold_prompts() {
  for (const PromptPlan& prompt : plan_.prompts) {
    const auto* const ids = std::get_if<std::vector<TokenId>>(&prompt.prompt);
    if (ids == nullptr || prompt.starter) {
      continue;
    }
    services_.holds->read(prompt.options.salt, *ids);
    if (const std::int64_t tokens = held_tokens(prompt); tokens > 0) {
      services_.holds->hold({.tenant = call_->caller->tenant,
                             .salt = prompt.options.salt,
                             .prompt = *ids,
                             .tokens = tokens,
                             .seconds = plan_.extension.hold_seconds.value_or(0),
                             .tenant_tokens = call_->caller->limits.hold_tokens});
    }
  }
}

// Makes room by what is held, once, where a request does not fit.
bool GenerationRun::try_again(std::size_t index, const Error& error) {
  if (error.code == ErrorCode::kDevice) {
    services_.stall->device_failed();
  }
  if (error.code != ErrorCode::kOutOfBlocks || began_ || tried_again_) {
    return false;
  }
  tried_again_ = true;
  bool room = services_.objects->make_room();
  while (services_.holds->drop_one()) {
    room = true;
  }
  if (!room) {
    return false;
  }
  choices_[index].generation.reset();
  ask(index);
  return true;
}

// Does what the session asks for behind its answer.
void GenerationRun::after() {
  const Extension& extension = plan_.extension;
  hold_prompts();
  ChunkedLLM* const chunks = services_.engine->chunks();
  if (chunks == nullptr || extension.session.empty() ||
      (!extension.close_session && !extension.expected_return_seconds)) {
    return;
  }
  services_.loop.work([chunks, extension, salt = plan_.prompts.front().options.salt] {
    // The session may have been forgotten meanwhile: then nothing is to be done.
    LLM& llm = chunks->llm();
    if (extension.close_session) {
      (void)llm.close_session(extension.session, salt).ok();
    } else {
      (void)llm.pause_session(extension.session, extension.expected_return_seconds, salt).ok();
    }
  });
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): callers hand their error over
void GenerationRun::fail(ApiError error) {
  if (over_) {
    return;
  }
  const auto self = shared_from_this();
  over_ = true;
  call_->gone = true;
  services_.metrics->count_rejection(error.status, error.code);
  call_->answer->facts().error_code = error.code;
  services_.objects->run_ended(*this, nullptr, error.code);
  std::string event = renderer_->error_event(error, call_->is_admin());
  Response response = error_response(error, ErrorShape::kOpenAI, call_->is_admin());
  call_->answer->fail(std::move(response), std::move(event));
  leave();
}

void GenerationRun::gone(Gone why) {
  if (over_) {
    return;
  }
  over_ = true;
  call_->gone = true;
  services_.metrics->count_abort(why);
  services_.objects->run_ended(*this, nullptr,
                               why == Gone::kSlowReader ? "slow_reader" : "client_gone");
  leave();
}

void GenerationRun::let_go() {
  plan_.keeps.reset();
  for (PromptPlan& prompt : plan_.prompts) {
    prompt.starter = nullptr;
    prompt.prepare = nullptr;
  }
}

void GenerationRun::leave() {
  for (ChoiceState& choice : choices_) {
    choice.generation.reset();
  }
  if (deadline_ != 0) {
    services_.loop.cancel(std::exchange(deadline_, 0));
  }
  ticket_.reset();
  services_.runs.erase(id_);
}

}  // namespace quire::server
