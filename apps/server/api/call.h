// Call: one request on its way through the API. Services: state that all endpoints share.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/errors.h"
#include "api/fields.h"
#include "api/json.h"
#include "api/router.h"
#include "config.h"
#include "engine.h"
#include "keys.h"
#include "loop.h"
#include "message.h"
#include "quire/interrupt.h"
#include "service.h"

namespace quire::server {

class Admission;
class GenerationRun;
class Holds;
class Metrics;
class Objects;
class Rounds;
class StallWatch;
class TokenPieces;

// State that all endpoints share. Lives as long as the loop runs tasks.
// Threads: the loop's thread, but for `loop` and, once it is there, `engine`.
struct Services {
  Services(std::shared_ptr<const Config> configuration, Loop& its_loop);
  ~Services();
  Services(const Services&) = delete;
  Services& operator=(const Services&) = delete;

  std::shared_ptr<const Config> config;
  Loop& loop;
  // Returns true where the model's chat template reads the variable.
  [[nodiscard]] bool template_reads(std::string_view variable) const;

  // Null until the model is loaded, then set for good.
  Engine* engine = nullptr;
  // Names of the model; responses give the first.
  std::vector<std::string> names;
  // "bq-VERSION-FINGERPRINT8".
  std::string system_fingerprint;
  // Seconds since 1970 at which the server was started.
  std::int64_t started_at = 0;
  // Variables that the model's chat template reads.
  std::vector<std::string> template_variables;
  bool draining = false;
  std::function<TransportStats()> transport_stats;
  Router router;
  std::unique_ptr<Admission> admission;
  std::unique_ptr<Metrics> metrics;
  std::unique_ptr<StallWatch> stall;
  std::unique_ptr<Holds> holds;
  // Looks after streams that give tokens.
  std::unique_ptr<Rounds> rounds;
  // Null for a model without a tokenizer.
  std::unique_ptr<TokenPieces> pieces;
  // State of apps/server/objects: chunks' owners, sequences, sessions.
  std::shared_ptr<Objects> objects;
  // Generations that wait or run, by their ids ("req_..." with a counter).
  std::unordered_map<std::string, std::shared_ptr<GenerationRun>> runs;
};

// One request on its way through the API. Handlers share it.
// Threads: the loop's thread, but for `gone` and reading what a handler has set up.
struct Call {
  std::shared_ptr<const Request> request;
  std::shared_ptr<Answer> answer;
  // Never null after routing.
  std::shared_ptr<const Caller> caller;
  const Endpoint* endpoint = nullptr;
  Captures captures;
  // Body after the check by its table: no member is null, unknown or refused.
  json::object body;
  FieldNotes notes;
  Loop::Clock::time_point arrived;
  // True once nobody reads the answer. For work on other threads.
  std::atomic<bool> gone = false;

  [[nodiscard]] Members members() const { return Members(body); }
  // Returns the part of the path that matched `name` in the pattern, or "".
  [[nodiscard]] std::string_view capture(std::string_view name) const;
  // Returns a parameter of the query, percent-decoded. The first counts.
  [[nodiscard]] std::optional<std::string> query(std::string_view name) const;
  [[nodiscard]] bool is_admin() const { return caller->role == Role::kAdmin; }
  // Returns an interrupt that ends work once nobody reads the answer.
  [[nodiscard]] static Interrupt interrupt(const std::shared_ptr<Call>& call);
};
using CallPtr = std::shared_ptr<Call>;

// Returns the salt of the engine for a tenant and a client's `cache_salt`. Chunks and sequences use
// the salt without `cache_salt`.
[[nodiscard]] std::string engine_salt(std::string_view tenant, std::string_view cache_salt = {});

// Sends a JSON body. Names fields without effect in `x-quire-ignored`.
void send_json(Services& services, Call& call, const json::value& body, int status = 200);
// Sends an error.
void send_error(Services& services, Call& call, ApiError error);
// Returns the headers that a success has: `x-quire-ignored`.
[[nodiscard]] std::vector<HeaderField> success_headers(Services& services, const Call& call);

// Runs `work` on a worker, and then `then` with its value on the loop's thread. Answers with the
// error of `work`, if it fails. Does nothing more once nobody reads the answer. `work` may block,
// and should then ask Call::interrupt().
template <class T>
void on_worker(Services& services, CallPtr call, std::function<Checked<T>()> work,
               std::function<void(T)> then) {
  services.loop.work([&services, call = std::move(call), work = std::move(work),
                      then = std::move(then)]() mutable {
    if (call->gone) {
      return;
    }
    auto result = std::make_shared<Checked<T>>(work());
    services.loop.post([&services, call = std::move(call), result, then = std::move(then)] {
      if (call->gone) {
        return;
      }
      if (!result->ok()) {
        send_error(services, *call, std::move(*result).error());
        return;
      }
      then(std::move(*result).value());
    });
  });
}

// Checks that the member `model` of the body names this server's model.
[[nodiscard]] Check check_model(const Services& services, const Call& call);

// Returns a new id: `prefix` and 26 characters of ULID's alphabet. Ids sort by time.
[[nodiscard]] std::string new_id(std::string_view prefix);
// Returns seconds since 1970.
[[nodiscard]] std::int64_t unix_seconds();

}  // namespace quire::server
