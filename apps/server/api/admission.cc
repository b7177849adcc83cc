#include "api/admission.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ratio>
#include <string>
#include <utility>

#include "api/errors.h"
#include "config.h"
#include "keys.h"
#include "loop.h"
#include "quire/result.h"

namespace quire::server {
namespace {

constexpr double kMinuteMs = 60'000;
constexpr std::size_t kMostEnds = 4096;

ApiError too_many(const char* code, std::string message, std::int64_t retry_ms) {
  ApiError error = refusal(429, code, std::move(message));
  error.retry_after_ms = std::clamp<std::int64_t>(retry_ms, 1, 60'000);
  return error;
}

std::string counted(std::int64_t have, const char* what, std::int64_t limit) {
  return std::to_string(have) + " " + what + ", the limit is " + std::to_string(limit);
}

}  // namespace

Ticket::Ticket(Admission& admission, std::string tenant, const AdmissionRequest& request)
    : admission_(&admission), tenant_(std::move(tenant)), request_(request), waiting_(true) {}

Ticket::~Ticket() {
  if (admission_ != nullptr) {
    began();
    admission_->leave(tenant_, request_, used_);
  }
}

void Ticket::began() {
  if (waiting_) {
    waiting_ = false;
    admission_->waiting_tokens_ -= request_.prompt_tokens;
  }
}

void Ticket::used(std::int64_t tokens) { used_ = tokens; }

void Admission::Bucket::refill(double per_minute, Loop::Clock::time_point now) {
  if (!begun) {
    begun = true;
    level = per_minute;
  } else {
    const double ms = std::chrono::duration<double, std::milli>(now - at).count();
    level = std::min(per_minute, level + ms * per_minute / kMinuteMs);
  }
  at = now;
}

std::int64_t Admission::retry_after_ms() {
  const auto now = loop_.now();
  while (!ends_.empty() && now - ends_.front() > std::chrono::minutes(1)) {
    ends_.pop_front();
  }
  // One place is free after a mean interval between two ends.
  const double interval = ends_.empty() ? 1000 : kMinuteMs / static_cast<double>(ends_.size());
  return std::clamp<std::int64_t>(std::llround(interval), 1000, 60'000);
}

Check Admission::check_rates(Tenant& tenant, const TenantLimits& limits,
                             const AdmissionRequest& request) {
  const auto now = loop_.now();
  double wait_ms = 0;
  const char* what = nullptr;
  std::int64_t limit = 0;
  double cost = 0;
  if (limits.rpm) {
    const auto rate = static_cast<double>(*limits.rpm);
    tenant.requests.refill(rate, now);
    if (tenant.requests.level < 1) {
      what = "requests per minute";
      limit = *limits.rpm;
      wait_ms = (1 - tenant.requests.level) * kMinuteMs / std::max(rate, 1e-9);
    }
  }
  if (limits.tpm && what == nullptr) {
    const auto rate = static_cast<double>(*limits.tpm);
    tenant.tokens.refill(rate, now);
    cost = static_cast<double>(request.prompt_tokens + request.completion_tokens);
    const double needed = std::min(cost, rate);
    if (tenant.tokens.level < needed) {
      what = "tokens per minute";
      limit = *limits.tpm;
      wait_ms = (needed - tenant.tokens.level) * kMinuteMs / std::max(rate, 1e-9);
    }
  }
  if (what != nullptr) {
    return too_many("rate_limited",
                    "more than " + std::to_string(limit) + " " + what + " of this tenant",
                    static_cast<std::int64_t>(std::ceil(std::min(wait_ms, kMinuteMs))));
  }
  tenant.requests.level -= limits.rpm ? 1 : 0;
  tenant.tokens.level -= cost;
  return passed();
}

Checked<std::unique_ptr<Ticket>> Admission::enter(const Config& config, const Caller& caller,
                                                  const AdmissionRequest& request) {
  const std::int64_t after = inflight_ + request.generations;
  if (after > config.max_inflight) {
    return too_many("queue_full", counted(inflight_, "requests are in flight", config.max_inflight),
                    retry_after_ms());
  }
  if (config.max_queued_tokens && waiting_tokens_ > 0 &&
      waiting_tokens_ + request.prompt_tokens > *config.max_queued_tokens) {
    return too_many("queue_full",
                    counted(waiting_tokens_, "prompt tokens wait", *config.max_queued_tokens),
                    retry_after_ms());
  }
  Tenant& tenant = tenants_[caller.tenant];
  const TenantLimits& limits = caller.limits;
  if (limits.max_inflight && tenant.inflight + request.generations > *limits.max_inflight) {
    return too_many(
        "quota_exceeded",
        "max_inflight: " +
            counted(tenant.inflight, "requests of this tenant are in flight", *limits.max_inflight),
        retry_after_ms());
  }
  QUIRE_TRY_STATUS(check_rates(tenant, limits, request));
  inflight_ = after;
  tenant.inflight += request.generations;
  waiting_tokens_ += request.prompt_tokens;
  return std::make_unique<Ticket>(*this, caller.tenant, request);
}

void Admission::leave(const std::string& name, const AdmissionRequest& request, std::int64_t used) {
  inflight_ -= request.generations;
  Tenant& tenant = tenants_[name];
  tenant.inflight -= request.generations;
  // Only a bucket in use is corrected; refill() keeps it at its size.
  if (tenant.tokens.begun) {
    tenant.tokens.level +=
        static_cast<double>(request.prompt_tokens + request.completion_tokens - used);
  }
  const auto now = loop_.now();
  for (std::int64_t i = 0; i < request.generations && ends_.size() < kMostEnds; ++i) {
    ends_.push_back(now);
  }
}

}  // namespace quire::server
