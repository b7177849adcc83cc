// Admission: bounds how much may run and wait at once, in all and for each tenant.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>

#include "api/errors.h"
#include "config.h"
#include "keys.h"
#include "loop.h"

namespace quire::server {

// Amounts that a request wants to have admitted.
struct AdmissionRequest {
  std::int64_t generations = 1;
  // Tokens of all prompts, each prompt once.
  std::int64_t prompt_tokens = 0;
  // Most tokens that all choices may generate.
  std::int64_t completion_tokens = 0;
};

class Admission;

// A place among the requests that wait or run. Destroying it gives the place back.
class Ticket {
 public:
  Ticket() = default;
  Ticket(Admission& admission, std::string tenant, const AdmissionRequest& request);
  ~Ticket();
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  // Notes that the prompt's tokens no longer wait to be computed. Idempotent.
  void began();
  // Notes how many tokens were used, which corrects the reservation of tokens per minute.
  void used(std::int64_t tokens);

 private:
  Admission* admission_ = nullptr;
  std::string tenant_;
  AdmissionRequest request_;
  bool waiting_ = false;
  std::int64_t used_ = 0;
};

// Decides which requests may begin. Threads: the loop's thread.
class Admission {
 public:
  explicit Admission(Loop& loop) : loop_(loop) {}

  // Admits a request, or refuses it with 429.
  [[nodiscard]] Checked<std::unique_ptr<Ticket>> enter(const Config& config, const Caller& caller,
                                                       const AdmissionRequest& request);
  // Returns the generations that wait or run.
  [[nodiscard]] std::int64_t inflight() const { return inflight_; }
  // Returns the prompt tokens that wait.
  [[nodiscard]] std::int64_t waiting_tokens() const { return waiting_tokens_; }
  // Returns the milliseconds until a place may be free, from the rate of the last minute.
  [[nodiscard]] std::int64_t retry_after_ms();

 private:
  friend class Ticket;
  // An allowance per minute. It holds at most a minute's worth, and refills evenly.
  struct Bucket {
    double level = 0;
    Loop::Clock::time_point at = {};
    bool begun = false;

    void refill(double per_minute, Loop::Clock::time_point now);
  };
  struct Tenant {
    std::int64_t inflight = 0;
    Bucket requests, tokens;
  };

  [[nodiscard]] Check check_rates(Tenant& tenant, const TenantLimits& limits,
                                  const AdmissionRequest& request);
  void leave(const std::string& name, const AdmissionRequest& request, std::int64_t used);

  Loop& loop_;
  std::int64_t inflight_ = 0;
  std::int64_t waiting_tokens_ = 0;
  std::unordered_map<std::string, Tenant> tenants_;
  // Times at which generations ended in the last minute.
  std::deque<Loop::Clock::time_point> ends_;
};

}  // namespace quire::server
