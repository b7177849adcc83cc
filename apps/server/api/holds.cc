#include "api/holds.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/call.h"
#include "engine.h"
#include "loop.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire::server {
namespace {

// Share of all blocks that holds may take.
constexpr std::int64_t kShareOfBlocks = 4;

bool begins_with(const std::vector<TokenId>& ids, const std::vector<TokenId>& prefix,
                 std::int64_t tokens) {
  return static_cast<std::int64_t>(ids.size()) >= tokens &&
         std::equal(prefix.begin(), prefix.begin() + tokens, ids.begin());
}

std::chrono::milliseconds time_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

}  // namespace

struct Holds::Hold {
  HoldRequest request;
  Loop::Clock::time_point expires;
  Loop::Timer timer = 0;
  // Not given while a worker makes it.
  std::optional<Sequence> sequence;
  bool dropped = false;
};

std::int64_t holdable_tokens(std::int64_t tokens, std::int64_t block_tokens) {
  return tokens <= 1 ? 0 : (tokens - 1) / block_tokens * block_tokens;
}

Holds::Holds(Services& services) : services_(services) {}

Holds::~Holds() {
  life_.reset();
  for (const auto& hold : holds_) {
    services_.loop.cancel(hold->timer);
  }
}

std::int64_t Holds::count() const { return static_cast<std::int64_t>(holds_.size()); }

bool Holds::make_room(const HoldRequest& request) {
  const ModelFacts& facts = services_.engine->facts();
  const std::int64_t most = facts.num_blocks * facts.block_tokens / kShareOfBlocks;
  const std::int64_t quota = request.tenant_tokens.value_or(most);
  if (request.tokens > std::min(most, quota)) {
    return false;
  }
  const auto held = [&] {
    std::int64_t sum = 0;
    for (const auto& hold : holds_) {
      sum += hold->request.tenant == request.tenant ? hold->request.tokens : 0;
    }
    return sum;
  };
  while (held() + request.tokens > quota) {
    drop(std::ranges::find_if(
        holds_, [&](const auto& hold) { return hold->request.tenant == request.tenant; }));
  }
  while (tokens_ + request.tokens > most) {
    drop(holds_.begin());
  }
  return true;
}

void Holds::hold(HoldRequest request) {
  if (request.tokens <= 0 || services_.engine->chunks() == nullptr) {
    return;
  }
  for (const auto& hold : holds_) {
    if (hold->request.salt == request.salt && hold->request.tokens == request.tokens &&
        begins_with(request.prompt, hold->request.prompt, request.tokens)) {
      hold->request.seconds = std::max(hold->request.seconds, request.seconds);
      renew(hold);
      return;
    }
  }
  if (!make_room(request)) {
    return;
  }
  request.prompt.resize(static_cast<std::size_t>(request.tokens) + 1);
  auto hold = std::make_shared<Hold>();
  hold->request = std::move(request);
  tokens_ += hold->request.tokens;
  holds_.push_back(hold);
  renew(hold);
  compute(hold);
}

// Makes the sequence that holds a prompt's KV. That KV is cached, so this computes nothing. The
// last id of a sequence has no KV: it is the one behind what is held.
void Holds::compute(const std::shared_ptr<Hold>& hold) {
  services_.loop.work([this, hold, alive = std::weak_ptr<int>(life_),
                       llm = &services_.engine->chunks()->llm(), loop = &services_.loop] {
    auto made = std::make_shared<Result<Sequence>>(
        llm->sequence(hold->request.prompt, {}, {.salt = hold->request.salt}));
    loop->post([this, hold, alive, made] {
      if (alive.expired() || hold->dropped) {
        return;
      }
      if (made->ok()) {
        hold->sequence = std::move(*made).value();
      } else {
        expire(hold);
      }
    });
  });
}

void Holds::renew(const std::shared_ptr<Hold>& hold) {
  const auto place = std::ranges::find(holds_, hold);
  holds_.splice(holds_.end(), holds_, place);
  const auto time = time_of(hold->request.seconds);
  hold->expires = services_.loop.now() + time;
  services_.loop.cancel(hold->timer);
  hold->timer = services_.loop.after(
      time, [this, alive = std::weak_ptr<int>(life_), weak = std::weak_ptr<Hold>(hold)] {
        const auto expired = weak.lock();
        if (!alive.expired() && expired != nullptr) {
          expire(expired);
        }
      });
}

void Holds::expire(const std::shared_ptr<Hold>& hold) {
  const auto place = std::ranges::find(holds_, hold);
  if (place != holds_.end()) {
    drop(place);
  }
}

void Holds::drop(Place place) {
  const std::shared_ptr<Hold> hold = std::move(*place);
  holds_.erase(place);
  hold->dropped = true;
  services_.loop.cancel(hold->timer);
  tokens_ -= hold->request.tokens;
  hold->sequence.reset();
}

void Holds::read(const std::string& salt, const std::vector<TokenId>& prompt) {
  std::vector<std::shared_ptr<Hold>> used;
  for (const auto& hold : holds_) {
    if (hold->request.salt == salt &&
        begins_with(prompt, hold->request.prompt, hold->request.tokens)) {
      used.push_back(hold);
    }
  }
  for (const auto& hold : used) {
    renew(hold);
  }
}

bool Holds::drop_one() {
  if (holds_.empty()) {
    return false;
  }
  const auto now = services_.loop.now();
  const auto expired =
      std::ranges::find_if(holds_, [&](const auto& hold) { return hold->expires <= now; });
  drop(expired != holds_.end() ? expired : holds_.begin());
  return true;
}

}  // namespace quire::server
