// Holds: keeps the KV of prompts for a time, whatever others ask.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "keys.h"
#include "loop.h"
#include "quire/types.h"

namespace quire::server {

struct Services;

// A hold to make. Plain data.
struct HoldRequest {
  std::string tenant;
  // Salt of the engine.
  std::string salt;
  std::vector<TokenId> prompt;
  // Tokens from the beginning, in whole blocks; fewer than the prompt has.
  std::int64_t tokens = 0;
  double seconds = 0;
  // Limit of tokens that the tenant may hold.
  std::optional<std::int64_t> tenant_tokens;
};

// Returns how many tokens of a prompt's beginning can be held: whole blocks before its last token.
[[nodiscard]] std::int64_t holdable_tokens(std::int64_t tokens, std::int64_t block_tokens);

// Keeps KV of prompts by sequences that nobody uses. Threads: the loop's thread.
class Holds {
 public:
  explicit Holds(Services& services);
  ~Holds();
  Holds(const Holds&) = delete;
  Holds& operator=(const Holds&) = delete;

  // Holds a prompt that was just computed, or holds it for longer. Drops holds of the tenant when
  // its quota is full, and of all tenants when a quarter of the blocks is held. The least recently
  // used goes first.
  void hold(HoldRequest request);
  // Renews the holds that a prompt has read.
  void read(const std::string& salt, const std::vector<TokenId>& prompt);
  // Drops one hold to make room: an expired one, else the least recently used. Returns false if
  // there is none.
  [[nodiscard]] bool drop_one();
  [[nodiscard]] std::int64_t count() const;
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }

 private:
  struct Hold;
  using Place = std::list<std::shared_ptr<Hold>>::iterator;

  [[nodiscard]] bool make_room(const HoldRequest& request);
  void compute(const std::shared_ptr<Hold>& hold);
  void drop(Place place);
  void expire(const std::shared_ptr<Hold>& hold);
  void renew(const std::shared_ptr<Hold>& hold);

  Services& services_;
  // Tells work under way whether the holds still exist.
  std::shared_ptr<int> life_ = std::make_shared<int>(0);
  // The least recently used comes first.
  std::list<std::shared_ptr<Hold>> holds_;
  std::int64_t tokens_ = 0;
};

}  // namespace quire::server
