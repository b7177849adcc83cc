// PrefixCache: finds cached prefixes, and keeps the hints of sessions, which decide the cached
// blocks that go first (eviction_order.h). A view: Ledger::cache() lends it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/types.h"
#include "quire/types.h"

namespace quire::kv {

struct LedgerState;

class PrefixCache {
 public:
  // Borrows `state`.
  explicit PrefixCache(LedgerState& state) : state_(&state) {}

  // Returns the length of the longest prefix of `tokens` that is cached for `salt`, at most
  // tokens.size() - 1. The sequence would free KV behind the window. Uses nothing. Cost: O(match).
  [[nodiscard]] std::int32_t match(std::span<const TokenId> tokens,
                                   std::string_view salt = {}) const;
  // Returns the length that match() finds, with the blocks that attaching it would hold. Cost:
  // O(match).
  [[nodiscard]] PrefixMatch probe(std::span<const TokenId> tokens, std::string_view salt = {},
                                  BehindWindow past = BehindWindow::kFrees) const;
  // Returns the length of the match of each salt that has one, the longest first. For the operator;
  // names no salt. Cost: O(salts * match).
  [[nodiscard]] std::vector<std::int32_t> match_each_salt(std::span<const TokenId> tokens) const;
  // Returns the reason why the match ends where it does. `elsewhere`: tokens whose KV and state
  // come from elsewhere. Cost: O(match + blocks).
  [[nodiscard]] PrefixMiss explain(std::span<const TokenId> tokens, std::string_view salt = {},
                                   std::int32_t elsewhere = 0) const;
  // Notes that a state behind these tokens is known that other arithmetic has computed. A match
  // never ends there; explain() tells why. The last ones are known, by hash alone.
  void note_other_form(std::span<const TokenId> tokens, std::string_view salt);
  // Forgets every cached block that no sequence uses. Returns how many became free.
  std::int32_t clear();

  // Sets the time that now() returns. The clock stands still between two calls of set_time.
  void set_time(TimePoint now);
  [[nodiscard]] TimePoint now() const;

  // Opens a session. All other methods take stale handles too, which name no session.
  [[nodiscard]] SessionRef open_session();
  [[nodiscard]] Retention retention(SessionRef session) const;
  void set_retention(SessionRef session, const Retention& retention);
  // Ends a session: blocks that it alone has used go first.
  void close_session(SessionRef session);
  // Forgets the hints of a session.
  void forget_session(SessionRef session);
  // Makes the sequence a request of `session` from now on, and of no other session. Precondition
  // (QUIRE_CHECK): the sequence is known.
  void assign(SeqId id, SessionRef session);
  // Returns what EvictionOrder::standing() returns.
  [[nodiscard]] Standing standing(std::span<const SessionRef> users, bool others,
                                  TimePoint last_use) const;

 private:
  LedgerState* state_;
};

}  // namespace quire::kv
