// GenerationRun: the generations of one HTTP request, from admission to the last byte. A Renderer
// writes their tokens in the format of the request's API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "api/admission.h"
#include "api/call.h"
#include "api/errors.h"
#include "api/extension.h"
#include "engine.h"
#include "quire/output.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire::server {

class Bell;

// A prompt and its choices.
struct PromptPlan {
  std::variant<std::vector<TokenId>, CompositionSpec> prompt;
  SamplingParams sampling = {};
  // Number of choices; choice j has seed + j.
  std::int32_t choices = 1;
  // Salt of the engine and session.
  RequestOptions options = {};
  // Not given: that of Extension.
  std::optional<std::int32_t> priority = {};
  // Path of the prompt, for errors: "prompt", "messages".
  std::string path = {};
  // Number of tokens, known beforehand for a composition too.
  std::int64_t tokens = 0;
  // Tokens at the beginning to hold after the answer, for Extension::hold_seconds. Not given: all
  // of a prompt of ids.
  std::optional<std::int64_t> hold_tokens = {};
  // Work that a worker does once before the engine gets the prompt. May block.
  std::function<Status()> prepare = {};
  // Starts a generation that is neither of ids nor of a composition: on a sequence. A worker calls
  // it; it may block.
  std::function<Result<std::unique_ptr<Generation>>(const SamplingParams& sampling,
                                                    const RequestOptions& options)>
      starter = {};
};

// Generations of one HTTP request. Plain data.
struct GenerationPlan {
  // At least one.
  std::vector<PromptPlan> prompts;
  Extension extension = {};
  bool stream = false;
  // Kept until the request is over, however it ends.
  std::shared_ptr<void> keeps = {};
};

// One choice of a prompt.
struct ChoiceState {
  std::size_t prompt = 0;
  std::int32_t number = 0;
  std::unique_ptr<Generation> generation = nullptr;
  bool asked = false;  // the engine was asked for it
  bool done = false;
  GenerationOutput output = {};
  // Parts of the prompt, for the first choice of a prompt. `output` has them if the request asked
  // for them.
  std::vector<ReusePart> parts = {};
};

// Facts about a run at its end. Plain data.
struct RunReport {
  std::string request_id;
  // Each prompt counts once, however many choices it has.
  Usage usage = {};
  // Tokens written to the cache for a hold.
  std::int64_t cache_write_tokens = 0;
  ReuseReport reuse = {};
  // Tokens that were computed until the first token.
  std::int64_t computed_tokens = 0;
  // Given where the request asked for it.
  std::optional<std::vector<ReusePart>> parts = {};
  double queue_ms = 0;
  double first_token_ms = 0;
  double total_ms = 0;
};

// Writes generations in the format of one API. The loop's thread calls it.
class Renderer {
 public:
  Renderer() = default;
  Renderer(const Renderer&) = delete;
  Renderer& operator=(const Renderer&) = delete;
  virtual ~Renderer() = default;

  // Returns the bytes to send after 15 seconds of silence.
  [[nodiscard]] virtual std::string ping() const { return ": ping\n\n"; }
  // Appends the events for a delta of choice `index`.
  virtual void delta(std::string& out, std::size_t index, const Delta& delta) = 0;
  // Appends the events for the end of choice `index`. `report` is null unless all others have
  // ended.
  virtual void finish(std::string& out, std::size_t index, const GenerationOutput& output,
                      const RunReport* report) = 0;
  // Appends the events behind the last choice.
  virtual void end(std::string& out, const RunReport& report) = 0;
  // Returns the body of a request that does not stream.
  [[nodiscard]] virtual json::value body(const std::vector<ChoiceState>& choices,
                                         const RunReport& report) = 0;
  // Returns the event for an error in the middle of a stream.
  [[nodiscard]] virtual std::string error_event(const ApiError& error, bool admin) {
    return "data: " + error_body(error, ErrorShape::kOpenAI, admin) + "\n\n";
  }
};

// State of a run.
// * kQueued: the engine has computed nothing of it.
// * kPrefill: a prompt is being computed.
// * kDecode: a token has come.
// * kDone: it has ended.
enum class RunState : std::uint8_t { kQueued, kPrefill, kDecode, kDone };

// The generations of one HTTP request. Owns itself through Services::runs until it has ended.
// Threads: the loop's thread.
class GenerationRun : public std::enable_shared_from_this<GenerationRun> {
 public:
  // Admits the request and starts it, or answers why not. The run answers `call` from then on.
  static void start(Services& services, CallPtr call, GenerationPlan plan,
                    std::unique_ptr<Renderer> renderer);

  GenerationRun(Services& services, CallPtr call, GenerationPlan plan,
                std::unique_ptr<Renderer> renderer);
  ~GenerationRun();
  GenerationRun(const GenerationRun&) = delete;
  GenerationRun& operator=(const GenerationRun&) = delete;

  // Ends the run with an error. Idempotent.
  void fail(ApiError error);

  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] const Call& call() const { return *call_; }
  [[nodiscard]] const GenerationPlan& plan() const { return plan_; }
  [[nodiscard]] const std::vector<ChoiceState>& choices() const { return choices_; }
  [[nodiscard]] RunState state() const;
  // Returns the report of a run. Precondition: all choices have ended.
  [[nodiscard]] RunReport report() const;
  // Returns the number of tokens of all choices so far.
  [[nodiscard]] std::int64_t generated() const { return generated_; }

 private:
  [[nodiscard]] Check check_and_admit();
  void begin();
  void ask(std::size_t index);
  void ask_engine(std::size_t index, GenerationRequest request, std::function<void()> notify);
  void asked(std::size_t index, Result<std::unique_ptr<Generation>> generation);
  void ask_others(std::size_t prompt);
  // Takes what is there. Returns true where tokens have come and more may come.
  [[nodiscard]] bool look();
  // Takes all available deltas of all choices.
  void pump();
  // Returns false when the run has ended.
  [[nodiscard]] bool pump_choice(std::size_t index, std::string& out);
  void take_end(std::size_t index, std::string& out);
  void note_delta(const Delta& delta);
  void complete(std::string& out);
  void after();
  void hold_prompts();
  [[nodiscard]] std::int64_t held_tokens(const PromptPlan& prompt) const;
  [[nodiscard]] bool try_again(std::size_t index, const Error& error);
  void note_facts(const RunReport& report);
  void gone(Gone why);
  // Drops `keeps` of the plan before the answer is sent, so that the client's next call finds
  // nothing in use. All choices have ended, so no worker starts one.
  void let_go();
  void leave();

  Services& services_;
  CallPtr call_;
  GenerationPlan plan_;
  std::unique_ptr<Renderer> renderer_;
  std::string id_;
  std::vector<ChoiceState> choices_;
  std::unique_ptr<Ticket> ticket_;
  std::shared_ptr<Bell> bell_;
  Loop::Timer deadline_ = 0;
  std::int64_t generated_ = 0;
  std::optional<Loop::Clock::time_point> last_token_;
  std::size_t left_ = 0;  // choices that have not ended
  bool began_ = false;    // a token has come
  bool over_ = false;
  bool tried_again_ = false;
};

// Returns the milliseconds from one moment to another.
[[nodiscard]] double milliseconds_between(Loop::Clock::time_point from, Loop::Clock::time_point to);

}  // namespace quire::server
