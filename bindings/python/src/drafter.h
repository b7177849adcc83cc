// A Drafter that calls a function of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <vector>

#include "quire/drafter.h"
#include "quire/types.h"

namespace quire::python {

// Takes the GIL for each call, so whoever waits for the engine may not hold it. The function gives
// ids, lists of ids that stand side by side, or a dict of a DraftTree. An exception of the function
// goes to sys.unraisablehook and counts as no guess.
class PythonDrafter final : public Drafter {
 public:
  explicit PythonDrafter(nanobind::callable propose) : propose_(std::move(propose)) {}
  ~PythonDrafter() override;
  [[nodiscard]] std::vector<TokenId> propose(std::span<const TokenId> token_ids,
                                             std::int32_t max_tokens) override;
  [[nodiscard]] DraftTree propose_tree(std::span<const TokenId> token_ids, std::int32_t max_tokens,
                                       std::int32_t max_in_tree) override;

 private:
  nanobind::callable propose_;
};

}  // namespace quire::python
