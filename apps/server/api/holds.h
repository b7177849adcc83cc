// Holds: prompts whose KV is kept for a time, whatever others ask (rule M4).
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

// Says what is to be held.
struct HoldRequest {
  std::string tenant;
  // Salt of the engine.
  std::string salt;
  std::vector<TokenId> prompt;
  // Tokens from the beginning, in whole blocks; fewer than the prompt has.
  std::int64_t tokens = 0;
  double seconds = 0;
  // Most tokens that the tenant may hold.
  std::optional<std::int64_t> tenant_tokens;
};

// Returns the tokens of a prompt's beginning that can be held: whole blocks in front of its last
// token.
[[nodiscard]] std::int64_t holdable_tokens(std::int64_t tokens, std::int64_t block_tokens);

// Keeps KV of prompts by sequences that nobody uses.
// Threads: the loop's thread.
class Holds {
 public:
  explicit Holds(Services& services);
  ~Holds();
  Holds(const Holds&) = delete;
  Holds& operator=(const Holds&) = delete;

  // Holds a prompt that was just computed, or holds it for longer. Holds of the tenant go where its
  // quota is full, and of all where a quarter of the blocks is held: the least recently used first.
  void hold(HoldRequest request);
  // Renews what a prompt has read.
  void read(const std::string& salt, const std::vector<TokenId>& prompt);
  // Drops a hold to make room: one that has expired, else the least recently used. Returns false
  // without any.
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
  // Ends work under way when the holds are gone.
  std::shared_ptr<int> life_ = std::make_shared<int>(0);
  // The least recently used first.
  std::list<std::shared_ptr<Hold>> holds_;
  std::int64_t tokens_ = 0;
};

}  // namespace quire::server
