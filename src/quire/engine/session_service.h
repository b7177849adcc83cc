// SessionService: the sessions that requests name, and what their users say about coming back. It
// decides nothing: what is said goes to the ledger, which evicts by it (kv/eviction_order.h).
//
// A session begins with the first request or retention that names it, and ends when it is closed.
// When kMostSessions are open, the least recently named one is forgotten: its KV is then evicted
// like that of requests without a session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "quire/engine/engine_thread.h"
#include "quire/engine/hooks.h"
#include "quire/kv/prefix_cache.h"
#include "quire/kv/types.h"
#include "quire/options.h"
#include "quire/result.h"

namespace quire::engine {

inline constexpr std::size_t kMostSessions = 16384;
inline constexpr std::size_t kLongestSessionId = 256;  // bytes
inline constexpr std::size_t kLongestSalt = 1024;      // bytes

class SessionService {
 public:
  // Borrows `thread` and `cache`. `salt` is that of sessions that are named without one.
  SessionService(EngineThread& thread, kv::PrefixCache& cache, std::string salt)
      : thread_(thread), cache_(cache), salt_(std::move(salt)) {}
  // Sets who hears that sessions end. Before the thread runs.
  void attach(BlockHolders& holders) { holders_ = &holders; }

  // Says that nobody uses the session until the expected return. Any thread but the engine's.
  // kInvalidArgument naming the argument; kNotFound for a session that is not open. The sessions of
  // two salts never meet, whatever they are called; an empty salt is the engine's own.
  [[nodiscard]] Status pause(const std::string& id, const std::string& salt,
                             std::optional<double> expected_return_seconds);
  [[nodiscard]] Status close(const std::string& id, const std::string& salt);
  [[nodiscard]] Status set_retention(const std::string& id, const std::string& salt,
                                     const SessionRetention& retention);
  [[nodiscard]] static Status check_id(const std::string& id);
  // Checks a salt. `argument` is the caller's name for it, "salt" or "tenant".
  [[nodiscard]] static Status check_salt(const char* argument, const std::string& salt);
  // Checks session, salt, tenant and deadline of a request, which may have none of them.
  [[nodiscard]] static Status check_user(const RequestOptions& options);
  // Checks a request behind something that has this salt, or none: it brings that one or none.
  // `message`: when it brings another.
  [[nodiscard]] static Status check_user(const RequestOptions& options, const std::string& salt,
                                         const char* message);

  // Returns the session of a request that begins now, or none for an empty id. Engine thread.
  [[nodiscard]] kv::SessionRef named(const std::string& id, const std::string& salt);

 private:
  struct Named {
    std::string key;  // key of salt and id
    kv::SessionRef session;
  };
  using Iterator = std::list<Named>::iterator;

  // Runs `change` with what the ledger knows of an open session.
  template <class Change>
  [[nodiscard]] Status change(const std::string& id, const std::string& salt, Change change);
  [[nodiscard]] std::string key_of(const std::string& id, const std::string& salt) const;

  EngineThread& thread_;
  kv::PrefixCache& cache_;
  const std::string salt_;
  BlockHolders* holders_ = nullptr;
  // Engine thread.
  std::list<Named> recent_;  // named last first
  std::unordered_map<std::string_view, Iterator> by_key_;
};

}  // namespace quire::engine
