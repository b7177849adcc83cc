// Branches of a conversation: each says which items of a context it has, and which of these are on.
// Branches share items; changing the branch computes and copies nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/context.h"
#include "quire/result.h"

namespace quire::cli {

class Branches {
 public:
  // Makes one branch, `main`. `context` must outlive the branches.
  explicit Branches(ContextManager& context) : context_(context) {}

  [[nodiscard]] const std::string& current() const { return branches_[current_].name; }
  [[nodiscard]] std::vector<std::string> names() const;
  // Returns the names of the current branch's checkpoints, oldest first.
  [[nodiscard]] std::vector<std::string> checkpoints() const;

  // Makes a branch that begins as the current one, its checkpoints included, and becomes the
  // current one. "": a name that is free. kInvalidArgument for a name that is taken.
  [[nodiscard]] Status fork(std::string name);
  // Makes the branch `name` the current one, and remembers the one before. Items that `name` does
  // not know are switched off.
  [[nodiscard]] Status switch_to(std::string_view name);
  // Remembers this moment of the current branch. "": the next free number. kInvalidArgument for a
  // name that is taken.
  [[nodiscard]] Status checkpoint(std::string name);
  // Goes back to a checkpoint of the current branch, "" the last one; later checkpoints are
  // forgotten. Later items are erased, or switched off where another branch or the store has them.
  // Returns how many came later.
  [[nodiscard]] Result<std::int64_t> rollback(std::string_view name);
  // Takes back the last question that is on and all answers behind it, or the answers alone where
  // no question is on. Erases the items, or switches them off where a branch, a checkpoint or the
  // store has them. Returns their ids. kNotFound when no turn is on.
  [[nodiscard]] Result<std::vector<std::string>> forget_turn();
  // Forgets all but an empty main.
  void clear();

 private:
  struct Flag {
    std::string id;
    bool active = false;
  };
  using State = std::vector<Flag>;
  struct Checkpoint {
    std::string name;
    State state;
  };
  struct Branch {
    std::string name;
    State state;  // state of the current branch, as when it was last left
    std::vector<Checkpoint> checkpoints;
  };

  [[nodiscard]] static bool knows(const State& state, std::string_view id);
  [[nodiscard]] Result<State> now() const;
  [[nodiscard]] Status apply(const State& state);
  [[nodiscard]] static bool marks(const Branch& branch, std::string_view id);
  [[nodiscard]] bool needed_elsewhere(const ContextItem& item) const;

  ContextManager& context_;
  std::vector<Branch> branches_ = {{.name = "main", .state = {}, .checkpoints = {}}};
  std::size_t current_ = 0;
};

}  // namespace quire::cli
