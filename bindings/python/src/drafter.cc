#include "drafter.h"

#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "casters.h"  // IWYU pragma: keep (conversions)
#include "quire/types.h"
#include "waiting.h"

namespace nb = nanobind;

namespace quire::python {

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
  const WithGil gil;
  try {
    nb::list tokens;
    for (const TokenId id : token_ids) {
      tokens.append(id);
    }
    std::vector<TokenId> guess;
    for (const nb::handle id : propose_(tokens, max_tokens)) {
      guess.push_back(nb::cast<TokenId>(id));
    }
    return guess;
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("the function that proposes tokens");
  } catch (const std::exception&) {  // it gave something else than ids
    PyErr_SetString(PyExc_TypeError, "propose must return a list of token ids (int)");
    PyErr_WriteUnraisable(propose_.ptr());
  }
  return {};
}

}  // namespace quire::python
