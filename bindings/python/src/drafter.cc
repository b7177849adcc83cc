#include "drafter.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

#include "casters.h"  // IWYU pragma: keep (conversions)
#include "quire/drafter.h"
#include "quire/types.h"
#include "waiting.h"

namespace nb = nanobind;

namespace quire::python {

namespace {

template <class T>
std::vector<T> list_of(const nb::handle& given) {
  std::vector<T> list;
  for (const nb::handle each : given) {
    list.push_back(nb::cast<T>(each));
  }
  return list;
}

// Returns the tree of token ids that stand side by side: those that begin alike share that.
DraftTree joined(const std::vector<std::vector<TokenId>>& ways) {
  struct Node {
    TokenId token = 0;
    std::vector<std::size_t> children;  // by their first appearance
  };
  std::vector<Node> nodes(1);  // the first one stands for the last token so far
  for (const std::vector<TokenId>& way : ways) {
    std::size_t at = 0;
    for (const TokenId token : way) {
      const auto known = std::ranges::find(nodes[at].children, token,
                                           [&](std::size_t child) { return nodes[child].token; });
      if (known != nodes[at].children.end()) {
        at = *known;
        continue;
      }
      nodes[at].children.push_back(nodes.size());
      at = nodes.size();
      nodes.push_back({.token = token, .children = {}});
    }
  }
  DraftTree tree;
  std::vector<std::pair<std::size_t, std::int32_t>> next;  // nodes to visit, with their parents
  const auto visit_children = [&](std::size_t node, std::int32_t index) {
    for (const std::size_t child : nodes[node].children | std::views::reverse) {
      next.emplace_back(child, index);
    }
  };
  visit_children(0, -1);
  while (!next.empty()) {
    const auto [node, parent] = next.back();
    next.pop_back();
    const auto index = static_cast<std::int32_t>(tree.tokens.size());
    tree.tokens.push_back(nodes[node].token);
    tree.parents.push_back(parent);
    visit_children(node, index);
  }
  return tree;
}

// Reads what the function gave.
DraftTree tree_of(const nb::object& given) {
  if (nb::isinstance<nb::dict>(given)) {
    return {.tokens = list_of<TokenId>(given["tokens"]),
            .parents = list_of<std::int32_t>(given["parents"])};
  }
  std::vector<std::vector<TokenId>> ways;
  std::vector<TokenId> chain;
  for (const nb::handle each : given) {
    if (nb::isinstance<nb::list>(each) || nb::isinstance<nb::tuple>(each)) {
      ways.push_back(list_of<TokenId>(each));
    } else {
      chain.push_back(nb::cast<TokenId>(each));
    }
  }
  if (!ways.empty() && !chain.empty()) {
    throw nb::type_error("ids and lists of ids");
  }
  return ways.empty() ? DraftTree{.tokens = std::move(chain), .parents = {}} : joined(ways);
}

}  // namespace

PythonDrafter::~PythonDrafter() {
  if (Py_IsInitialized() == 0) {
    (void)propose_.release();  // nobody is left to give it to
    return;
  }
  const WithGil gil;
  propose_.reset();
}

std::vector<TokenId> PythonDrafter::propose(std::span<const TokenId> token_ids,
                                            std::int32_t max_tokens) {
  return propose_tree(token_ids, max_tokens, max_tokens).tokens;
}

DraftTree PythonDrafter::propose_tree(std::span<const TokenId> token_ids, std::int32_t max_tokens,
                                      std::int32_t /*max_in_tree*/) {
  const WithGil gil;
  try {
    nb::list tokens;
    for (const TokenId id : token_ids) {
      tokens.append(id);
    }
    return tree_of(propose_(tokens, max_tokens));
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("the function that proposes tokens");
  } catch (const std::exception&) {  // it gave something else than ids
    PyErr_SetString(PyExc_TypeError,
                    "propose must return a list of token ids (int), a list of such lists, or "
                    "{\"tokens\": ids, \"parents\": indices}");
    PyErr_WriteUnraisable(propose_.ptr());
  }
  return {};
}

}  // namespace quire::python
