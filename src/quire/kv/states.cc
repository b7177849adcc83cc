#include "quire/kv/states.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;

// Adds a value to a hash: multiplies and rotates. It is chosen for speed, as every hit is verified.
std::uint64_t mixed(std::uint64_t hash, std::uint32_t value) {
  return (std::rotl(hash, 5) ^ value) * kOdd;
}

std::uint64_t hash_of_salt(std::string_view salt) {
  std::uint64_t hash = kOdd;
  for (const char letter : salt) {
    hash = mixed(hash, static_cast<unsigned char>(letter));
  }
  return mixed(hash, static_cast<std::uint32_t>(salt.size()));
}

std::uint64_t hash_of(std::span<const TokenId> tokens, std::string_view salt) {
  std::uint64_t hash = hash_of_salt(salt);
  for (const TokenId token : tokens) {
    hash = mixed(hash, static_cast<std::uint32_t>(token));
  }
  return hash;
}

// Calls visitor(length, hash) for each of the lengths within `tokens`, which ascend. The hash is
// that of as many tokens.
template <class Lengths, class Visitor>
void visit_prefixes(const Lengths& lengths, std::span<const TokenId> tokens, std::string_view salt,
                    const Visitor& visitor) {
  std::uint64_t hash = hash_of_salt(salt);
  std::size_t done = 0;
  for (const auto& [length, count] : lengths) {
    if (std::cmp_greater(length, tokens.size())) {
      break;
    }
    for (; std::cmp_less(done, length); ++done) {
      hash = mixed(hash, static_cast<std::uint32_t>(tokens[done]));
    }
    visitor(done, hash);
  }
}

constexpr std::size_t kRememberedPoints = 4096;
constexpr std::size_t kRememberedForms = 256;

// Returns the length of the longest beginning of `tokens` whose hash is one of `known`; 0 for none.
std::int32_t longest_of(std::span<const std::uint64_t> known, std::span<const TokenId> tokens,
                        std::string_view salt) {
  const std::unordered_set<std::uint64_t> hashes(known.begin(), known.end());
  std::uint64_t hash = hash_of_salt(salt);
  std::int32_t longest = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    hash = mixed(hash, static_cast<std::uint32_t>(tokens[i]));
    if (hashes.contains(hash)) {
      longest = static_cast<std::int32_t>(i) + 1;
    }
  }
  return longest;
}

}  // namespace

States::States(std::int32_t num_states) : slots_(static_cast<std::size_t>(num_states)) {
  free_.reserve(slots_.size());
  lost_.resize(slots_.empty() ? 0 : kRememberedPoints);
  for (std::int32_t i = num_states; i > 0; --i) {
    free_.push_back(i - 1);
  }
}

const States::Slot& States::slot(StateRef state) const {
  QUIRE_CHECK(state.index >= 0 && state.index < num_states(), "a handle of no state");
  const Slot& found = slots_[static_cast<std::size_t>(state.index)];
  QUIRE_CHECK(found.generation == state.generation, "a stale handle of a state");
  return found;
}

bool States::Point::begins(const Point& other) const {
  return other.tokens.size() > tokens.size() && other.salt == salt &&
         std::equal(tokens.begin(), tokens.end(), other.tokens.begin());
}

States::Points::iterator States::least_useful() {
  auto least = points_.end();
  const auto rank = [this](const Point& point) {
    return std::pair(worth(point), slot(point.state).last_use);
  };
  for (auto point = points_.begin(); point != points_.end(); ++point) {
    const bool idle = slot(point->second.state).references == 1;
    if (idle && (least == points_.end() || rank(point->second) < rank(least->second))) {
      least = point;
    }
  }
  QUIRE_CHECK(least != points_.end(), "no restore point is idle");
  return least;
}

StateRef States::acquire() {
  QUIRE_CHECK(num_available() > 0, "more states asked for than are free or idle points");
  if (free_.empty()) {
    const auto gone = least_useful();
    if (on_eviction_) {
      on_eviction_({gone->second.tokens, gone->second.salt, gone->second.state});
    }
    give_way(gone);
  }
  const std::int32_t index = free_.back();
  free_.pop_back();
  Slot& taken = slots_[static_cast<std::size_t>(index)];
  taken.references = 1;
  taken.is_point = false;
  return {index, taken.generation};
}

void States::retain(StateRef state) {
  Slot& held = slot(state);
  num_idle_ -= held.is_point && held.references == 1 ? 1 : 0;
  ++held.references;
}

void States::release(StateRef state) {
  Slot& held = slot(state);
  QUIRE_CHECK(held.references > 0, "a state was given back twice");
  --held.references;
  num_idle_ += held.is_point && held.references == 1 ? 1 : 0;
  if (held.references == 0) {
    ++held.generation;
    free_.push_back(state.index);
  }
}

const States::Point* States::look_up(std::uint64_t hash, std::span<const TokenId> tokens,
                                     std::string_view salt) const {
  const auto [first, last] = points_.equal_range(hash);
  for (auto point = first; point != last; ++point) {
    if (point->second.salt == salt && std::ranges::equal(point->second.tokens, tokens)) {
      return &point->second;
    }
  }
  return nullptr;
}

std::optional<States::Found> States::find(std::span<const TokenId> tokens, std::string_view salt,
                                          const std::function<bool(std::int32_t)>& accepts) const {
  std::vector<std::pair<std::size_t, std::uint64_t>> candidates;  // lengths and hashes
  visit_prefixes(lengths_, tokens, salt, [&](std::size_t length, std::uint64_t hash) {
    if (points_.contains(hash)) {
      candidates.emplace_back(length, hash);
    }
  });
  for (auto candidate = candidates.rbegin(); candidate != candidates.rend(); ++candidate) {
    const auto length = static_cast<std::int32_t>(candidate->first);
    const Point* point = look_up(candidate->second, tokens.first(candidate->first), salt);
    if (point != nullptr && accepts(length)) {
      return Found{.tokens = length, .state = point->state};
    }
  }
  return std::nullopt;
}

bool States::has_point(std::span<const TokenId> tokens, std::string_view salt) const {
  return look_up(hash_of(tokens, salt), tokens, salt) != nullptr;
}

// Asks for all memory before anything changes.
void States::add_point(std::span<const TokenId> tokens, std::string_view salt, StateRef state,
                       bool stays) {
  QUIRE_CHECK(!tokens.empty(), "a restore point behind no token");
  const std::uint64_t hash = hash_of(tokens, salt);
  Slot& held = slot(state);
  if (held.is_point || look_up(hash, tokens, salt) != nullptr) {
    return;
  }
  const std::vector<Points::iterator> shorter = points_within(tokens, salt);
  std::int32_t& same = lengths_[static_cast<std::int32_t>(tokens.size())];
  const Point* added = nullptr;
  try {
    added =
        &points_
             .emplace(hash, Point{.salt = std::string(salt),
                                  .tokens = {tokens.begin(), tokens.end()},
                                  .state = state,
                                  .before = shorter.empty() ? nullptr : &shorter.back()->second})
             ->second;
  } catch (const std::bad_alloc&) {
    if (same == 0) {
      lengths_.erase(static_cast<std::int32_t>(tokens.size()));
    }
    throw;
  }
  ++same;
  retain(state);
  held.is_point = true;
  held.stays = stays;
  held.last_use = ++uses_;
  held.worth_before = worth_of_evicted_;
  for (auto& [other_hash, point] : points_) {
    if (point.before == added->before && added->begins(point)) {
      point.before = added;
    }
  }
}

void States::visit_points(std::span<const TokenId> tokens, std::string_view salt,
                          const std::function<void(std::int32_t, bool)>& visitor) const {
  visit_prefixes(lengths_, tokens, salt, [&](std::size_t length, std::uint64_t hash) {
    if (const Point* point = look_up(hash, tokens.first(length), salt)) {
      visitor(static_cast<std::int32_t>(length), slot(point->state).stays);
    }
  });
}

// Returns the points behind some of `tokens`, the shortest first.
std::vector<States::Points::iterator> States::points_within(std::span<const TokenId> tokens,
                                                            std::string_view salt) {
  std::vector<Points::iterator> found;
  visit_prefixes(lengths_, tokens, salt, [&](std::size_t length, std::uint64_t hash) {
    const auto [first, last] = points_.equal_range(hash);
    for (auto point = first; point != last; ++point) {
      if (point->second.salt == salt &&
          std::ranges::equal(point->second.tokens, tokens.first(length))) {
        found.push_back(point);
      }
    }
  });
  return found;
}

// Goes from the end backwards. A point is left out if the one before it is near enough.
void States::thin(std::span<const TokenId> tokens, std::string_view salt, std::int32_t slack,
                  std::int32_t keep_from) {
  constexpr std::int64_t kHalfAgain = 6, kMost = 40;  // quarters of a distance
  constexpr std::int32_t kLeast = 4, kSlackSteps = 4;
  const std::vector<Points::iterator> points = points_within(tokens, salt);
  const std::int64_t most =
      std::max(kLeast, static_cast<std::int32_t>(std::bit_width(tokens.size())) - 1);
  // Begins with none, so that nothing goes before it must.
  for (std::int64_t step = -kSlackSteps; kHalfAgain + step <= kMost; ++step) {
    const bool all_stay = step == -kSlackSteps;
    const std::int64_t quarters = all_stay ? 0 : kHalfAgain + std::max<std::int64_t>(step, 0);
    const auto near = static_cast<std::int32_t>(slack * (step + kSlackSteps) / kSlackSteps);
    std::int64_t left = 0;
    const std::vector<Points::iterator> close = points_too_close(
        points, std::ssize(tokens), quarters, std::min(near, slack), keep_from, left);
    if (left <= most || kHalfAgain + step == kMost) {
      std::ranges::for_each(close, [this](Points::iterator point) { drop(point); });
      return;
    }
  }
}

// Returns the points of a history without which the others still are near enough. `left` gets how
// many stay that no user owns.
std::vector<States::Points::iterator> States::points_too_close(
    std::span<const Points::iterator> points, std::int64_t length, std::int64_t quarters,
    std::int32_t slack, std::int32_t keep_from, std::int64_t& left) const {
  const auto distance = [&](std::size_t i) {
    return length - std::ssize(points[i]->second.tokens);
  };
  std::vector<Points::iterator> close;
  std::int64_t kept = 0;
  for (std::size_t i = points.size(); i-- > 0;) {
    const Slot& held = slot(points[i]->second.state);
    // The beginning is as good as a point.
    const std::int64_t farther = i == 0 ? length : distance(i - 1);
    const bool is_own = held.references > 1 || held.stays;
    const bool may_go = !is_own && std::cmp_less(points[i]->second.tokens.size(), keep_from);
    if (may_go && 4 * farther <= quarters * kept + 4 * std::int64_t{slack}) {
      close.push_back(points[i]);
    } else {
      kept = distance(i);
      left += is_own && kept > 0 ? 0 : 1;  // the end is held by the sequence that has come there
    }
  }
  return close;
}

std::int32_t States::lost_point(std::span<const TokenId> tokens, std::string_view salt) const {
  return longest_of(lost_, tokens, salt);
}

void States::note_other_form(std::span<const TokenId> tokens, std::string_view salt) {
  foreign_.resize(kRememberedForms);
  foreign_[next_foreign_++ % kRememberedForms] = hash_of(tokens, salt);
}

std::int32_t States::other_form(std::span<const TokenId> tokens, std::string_view salt) const {
  return foreign_.empty() ? 0 : longest_of(foreign_, tokens, salt);
}

void States::touch(StateRef state) {
  slot(state).last_use = ++uses_;
  slot(state).worth_before = worth_of_evicted_;
}

void States::drop(Points::iterator point) {
  const StateRef state = point->second.state;
  const auto length = lengths_.find(static_cast<std::int32_t>(point->second.tokens.size()));
  if (--length->second == 0) {
    lengths_.erase(length);
  }
  for (auto& [hash, other] : points_) {
    if (other.before == &point->second) {
      other.before = point->second.before;
    }
  }
  points_.erase(point);
  Slot& held = slot(state);
  num_idle_ -= held.references == 1 ? 1 : 0;
  held.is_point = false;
  release(state);
}

void States::give_way(Points::iterator point) {
  lost_[next_lost_++ % kRememberedPoints] = point->first;
  worth_of_evicted_ = std::max(worth_of_evicted_, worth(point->second));
  drop(point);
  ++num_evictions_;
}

std::vector<States::KnownPoint> States::points_within_block(std::span<const TokenId> tokens,
                                                            std::string_view salt,
                                                            std::int32_t more) const {
  std::vector<KnownPoint> found;
  for (const auto& [hash, point] : points_) {
    const std::int64_t behind = std::ssize(point.tokens) - std::ssize(tokens);
    if (behind >= 0 && behind < more && point.salt == salt &&
        std::ranges::equal(tokens, std::span(point.tokens).first(tokens.size()))) {
      found.push_back({point.tokens, point.salt, point.state});
    }
  }
  return found;
}

void States::drop_idle(const KnownPoint& point) {
  const auto [first, last] = points_.equal_range(hash_of(point.tokens, point.salt));
  const auto found = std::find_if(
      first, last, [&](const auto& known) { return known.second.state == point.state; });
  if (found != last && slot(point.state).references == 1) {
    give_way(found);
  }
}

void States::clear_points() {
  while (!points_.empty()) {
    drop(points_.begin());
  }
}

Status States::check(std::span<const std::int32_t> users) const {
  std::vector<std::int32_t> points(slots_.size());
  for (const auto& [hash, point] : points_) {
    if (hash != hash_of(point.tokens, point.salt) || !slot(point.state).is_point) {
      return {ErrorCode::kInternal, "a restore point is not found by its tokens"};
    }
    ++points[static_cast<std::size_t>(point.state.index)];
    const bool has_shorter = point.before != nullptr;
    if (has_shorter && !point.before->begins(point)) {
      return {ErrorCode::kInternal, "a restore point follows one of another history"};
    }
  }
  std::int32_t idle = 0;
  std::size_t unused = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& held = slots_[i];
    if (held.references != users[i] + points[i] || points[i] > 1 ||
        (held.references > 0 && held.is_point != (points[i] == 1))) {
      return {ErrorCode::kInternal,
              base::str_cat("state ", i, " has ", held.references, " references, ", users[i],
                            " users and ", points[i], " points")};
    }
    idle += points[i] == 1 && users[i] == 0 ? 1 : 0;
    unused += held.references == 0 ? 1 : 0;
  }
  if (idle != num_idle_ || unused != free_.size()) {
    return {ErrorCode::kInternal,
            base::str_cat(idle, " restore points are idle, counted are ", num_idle_, "; ", unused,
                          " states are free, listed are ", free_.size())};
  }
  return {};
}

HeldState HeldState::clone() const {
  if (!is_there()) {
    return {};
  }
  states_->retain(state_);
  return {*states_, state_};
}

SequenceStates SequenceStates::fork() const {
  SequenceStates copy(*states_);
  copy.now_ = now_.clone();
  copy.lacks_tail_ = lacks_tail_;
  return copy;
}

void SequenceStates::mark(std::span<const PointMark> marks, std::int32_t prompt_tokens) {
  marks_.assign(marks.begin(), marks.end());
  own_points_from_ = std::max(0, prompt_tokens - 1);
  for (const PointMark& mark : marks_) {
    own_points_from_ = std::min(own_points_from_, mark.stays ? own_points_from_ : mark.tokens);
  }
}

void SequenceStates::drop() {
  now_ = HeldState();
  next_ = HeldState();
  lacks_tail_ = false;
}

void SequenceStates::make_room() {
  if (needs_one()) {
    next_ = HeldState(*states_, states_->acquire());
  }
}

void SequenceStates::restore(StateRef point) {
  states_->touch(point);
  states_->retain(point);
  now_ = HeldState(*states_, point);
  next_ = HeldState();
}

}  // namespace quire::kv
