#include "branches.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/context.h"
#include "quire/result.h"

namespace quire::cli {
namespace {

template <class Named>
std::vector<std::string> names_of(const std::vector<Named>& all) {
  std::vector<std::string> names;
  names.reserve(all.size());
  for (const Named& one : all) {
    names.push_back(one.name);
  }
  return names;
}

// Returns the first of `all` with the name, or its end.
template <class All>
auto find_named(All& all, std::string_view name) {
  return std::ranges::find_if(all, [name](const auto& one) { return one.name == name; });
}

// Returns `prefix` and the first number from `number` on that no name has.
template <class All>
std::string free_name(const All& all, const std::string& prefix, std::size_t number) {
  std::string name;
  do {
    name = prefix + std::to_string(number++);
  } while (find_named(all, name) != all.end());
  return name;
}

Status taken(std::string_view kind, const std::string& name) {
  return {ErrorCode::kInvalidArgument,
          "there is a " + std::string(kind) + " \"" + name + "\" already; choose another name"};
}

}  // namespace

std::vector<std::string> Branches::names() const { return names_of(branches_); }

std::vector<std::string> Branches::checkpoints() const {
  return names_of(branches_[current_].checkpoints);
}

bool Branches::knows(const State& state, std::string_view id) {
  return std::ranges::find(state, id, &Flag::id) != state.end();
}

Result<Branches::State> Branches::now() const {
  State state;
  QUIRE_TRY(const std::vector<ContextItem> items, context_.items());
  for (const ContextItem& item : items) {
    state.push_back({.id = item.id, .active = item.active});
  }
  return state;
}

// Activates the items of a state. Items that are gone in the meantime stay gone.
Status Branches::apply(const State& state) {
  QUIRE_TRY(const std::vector<ContextItem> items, context_.items());
  for (const ContextItem& item : items) {
    const auto known = std::ranges::find(state, item.id, &Flag::id);
    const bool active = known != state.end() && known->active;
    QUIRE_TRY_STATUS(active ? context_.activate(item.id) : context_.deactivate(item.id));
  }
  return {};
}

Status Branches::fork(std::string name) {
  if (name.empty()) {
    name = free_name(branches_, "fork-", 1);
  }
  if (find_named(branches_, name) != branches_.end()) {
    return taken("branch", name);
  }
  Branch& origin = branches_[current_];
  QUIRE_TRY(origin.state, now());
  branches_.push_back({.name = std::move(name), .state = {}, .checkpoints = origin.checkpoints});
  current_ = branches_.size() - 1;
  return {};
}

Status Branches::switch_to(std::string_view name) {
  const auto wanted = find_named(branches_, name);
  if (wanted == branches_.end()) {
    return {ErrorCode::kNotFound,
            "no branch \"" + std::string(name) + "\"; /switch without a name lists them"};
  }
  const auto next = static_cast<std::size_t>(std::distance(branches_.begin(), wanted));
  if (next == current_) {
    return {};
  }
  QUIRE_TRY(branches_[current_].state, now());
  QUIRE_TRY_STATUS(apply(wanted->state));
  current_ = next;
  return {};
}

Status Branches::checkpoint(std::string name) {
  std::vector<Checkpoint>& checkpoints = branches_[current_].checkpoints;
  if (name.empty()) {
    name = free_name(checkpoints, "", checkpoints.size() + 1);
  }
  if (find_named(checkpoints, name) != checkpoints.end()) {
    return taken("checkpoint", name);
  }
  QUIRE_TRY(State state, now());
  checkpoints.push_back({.name = std::move(name), .state = std::move(state)});
  return {};
}

// Returns whether a checkpoint of the branch knows the item.
bool Branches::marks(const Branch& branch, std::string_view id) {
  return std::ranges::any_of(branch.checkpoints, [id](const Checkpoint& checkpoint) {
    return knows(checkpoint.state, id);
  });
}

bool Branches::needed_elsewhere(const ContextItem& item) const {
  for (const Branch& branch : branches_) {
    if (&branch == &branches_[current_]) {
      continue;
    }
    if (marks(branch, item.id) || knows(branch.state, item.id)) {
      return true;
    }
  }
  return item.saved;
}

Result<std::int64_t> Branches::rollback(std::string_view name) {
  std::vector<Checkpoint>& checkpoints = branches_[current_].checkpoints;
  const auto wanted = name.empty() && !checkpoints.empty() ? std::prev(checkpoints.end())
                                                           : find_named(checkpoints, name);
  if (wanted == checkpoints.end()) {
    return {ErrorCode::kNotFound,
            checkpoints.empty() ? "this branch has no checkpoint; /checkpoint makes one"
                                : "no checkpoint \"" + std::string(name) + "\" in this branch"};
  }
  std::int64_t later = 0;
  QUIRE_TRY(const std::vector<ContextItem> items, context_.items());
  for (const ContextItem& item : items) {
    if (knows(wanted->state, item.id)) {
      continue;
    }
    ++later;
    QUIRE_TRY_STATUS(needed_elsewhere(item) ? Status() : context_.erase(item.id));
  }
  QUIRE_TRY_STATUS(apply(wanted->state));
  checkpoints.erase(std::next(wanted), checkpoints.end());
  return later;
}

Result<std::vector<std::string>> Branches::forget_turn() {
  QUIRE_TRY(std::vector<ContextItem> turn, context_.items());
  std::erase_if(turn, [](const ContextItem& item) {
    return !item.active || (item.kind != ItemKind::kUser && item.kind != ItemKind::kOutput);
  });
  const auto question =
      std::ranges::find(turn.rbegin(), turn.rend(), ItemKind::kUser, &ContextItem::kind);
  if (question != turn.rend()) {
    turn.erase(turn.begin(), std::prev(question.base()));
  }
  if (turn.empty()) {
    return {ErrorCode::kNotFound, "there is no turn to forget"};
  }
  std::vector<std::string> ids;
  for (const ContextItem& item : turn) {
    const bool needed = needed_elsewhere(item) || marks(branches_[current_], item.id);
    QUIRE_TRY_STATUS(needed ? context_.deactivate(item.id) : context_.erase(item.id));
    ids.push_back(item.id);
  }
  return ids;
}

void Branches::clear() {
  branches_ = {{.name = "main", .state = {}, .checkpoints = {}}};
  current_ = 0;
}

}  // namespace quire::cli
