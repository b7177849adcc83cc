#include "quire/engine/session_service.h"

#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "quire/base/str.h"
#include "quire/engine/engine_thread.h"
#include "quire/engine/hooks.h"
#include "quire/kv/types.h"
#include "quire/options.h"
#include "quire/result.h"

namespace quire::engine {
namespace {

constexpr double kLongestSeconds = 1e9;  // thirty years: beyond it, it is a slip

// Checks a time. NaN is out of range too.
Status check_seconds(std::string_view what, std::optional<double> seconds) {
  if (!seconds || (*seconds >= 0 && *seconds <= kLongestSeconds)) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(what, " must be 0 to ", kLongestSeconds, " seconds, not ", *seconds)};
}

kv::Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<kv::Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Status SessionService::check_id(const std::string& id) {
  if (!id.empty() && id.size() <= kLongestSessionId) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("session must be a name of 1 to ", kLongestSessionId, " bytes, not of ",
                        id.size())};
}

Status SessionService::check_salt(const char* argument, const std::string& salt) {
  if (salt.size() <= kLongestSalt) {
    return {};
  }
  return {ErrorCode::kInvalidArgument, base::str_cat(argument, " must have at most ", kLongestSalt,
                                                     " bytes, not ", salt.size())};
}

Status SessionService::check_user(const RequestOptions& options) {
  QUIRE_TRY_STATUS(check_salt("salt", options.salt));
  QUIRE_TRY_STATUS(check_salt("tenant", options.tenant));
  if (const std::optional<double> seconds = options.deadline_seconds;
      seconds && !(*seconds > 0 && std::isfinite(*seconds))) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("deadline_seconds must be a number above 0, not ", *seconds,
                          "; leave it out for no deadline")};
  }
  if (options.followers < 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("followers must be 0 or more, not ", options.followers)};
  }
  return options.session.empty() ? Status() : check_id(options.session);
}

Status SessionService::check_user(const RequestOptions& options, const std::string& salt,
                                  const char* message) {
  QUIRE_TRY_STATUS(check_user(options));
  if (options.salt.empty() || options.salt == salt) {
    return {};
  }
  return {ErrorCode::kInvalidArgument, message};
}

// Returns the key of a session id and a salt. No two pairs have one key.
std::string SessionService::key_of(const std::string& id, const std::string& salt) const {
  const std::string& whose = salt.empty() ? salt_ : salt;
  return base::str_cat(whose.size(), ":", whose, id);
}

kv::SessionRef SessionService::named(const std::string& id, const std::string& salt) {
  if (id.empty()) {
    return {};
  }
  const std::string key = key_of(id, salt);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    recent_.splice(recent_.begin(), recent_, found->second);
    return found->second->session;
  }
  if (recent_.size() == kMostSessions) {
    cache_.forget_session(recent_.back().session);
    holders_->session_forgotten(recent_.back().session);
    by_key_.erase(recent_.back().key);
    recent_.pop_back();
  }
  recent_.push_front({.key = key, .session = cache_.open_session()});
  by_key_.emplace(recent_.front().key, recent_.begin());
  return recent_.front().session;
}

template <class Change>
Status SessionService::change(const std::string& id, const std::string& salt, Change change) {
  QUIRE_TRY_STATUS(check_id(id));
  QUIRE_TRY_STATUS(check_salt("salt", salt));
  return thread_.ask_status([&]() -> Status {
    const auto found = by_key_.find(key_of(id, salt));
    if (found == by_key_.end()) {
      return Error{.code = ErrorCode::kNotFound,
                   .message = base::str_cat(
                       "no session ", base::quoted(id), " is open: no request named it, or it ",
                       "was closed, or ", kMostSessions, " others were named since")};
    }
    change(found->second);
    return {};
  });
}

Status SessionService::pause(const std::string& id, const std::string& salt,
                             std::optional<double> expected_return_seconds) {
  QUIRE_TRY_STATUS(check_seconds("expected_return", expected_return_seconds));
  return change(id, salt, [&](Iterator named) {
    kv::Retention retention = cache_.retention(named->session);
    retention.expected_return.reset();
    if (expected_return_seconds) {
      retention.expected_return = kv::Clock::now() + to_duration(*expected_return_seconds);
    }
    cache_.set_retention(named->session, retention);
  });
}

Status SessionService::close(const std::string& id, const std::string& salt) {
  return change(id, salt, [&](Iterator named) {
    cache_.close_session(named->session);
    holders_->session_closed(named->session);
    by_key_.erase(named->key);
    recent_.erase(named);
  });
}

Status SessionService::set_retention(const std::string& id, const std::string& salt,
                                     const SessionRetention& retention) {
  QUIRE_TRY_STATUS(check_id(id));
  QUIRE_TRY_STATUS(check_salt("salt", salt));
  QUIRE_TRY_STATUS(check_seconds("ttl", retention.ttl_seconds));
  return thread_.ask_status([&]() -> Status {
    const kv::SessionRef session = named(id, salt);
    kv::Retention said = cache_.retention(session);
    said.priority = retention.priority;
    said.ttl.reset();
    if (retention.ttl_seconds) {
      said.ttl = to_duration(*retention.ttl_seconds);
    }
    cache_.set_retention(session, said);
    return {};
  });
}

}  // namespace quire::engine
